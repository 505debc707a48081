"""Probes as a user runs them: the commands, their files, and a run that is resumed."""

import shutil
from pathlib import Path

import pytest
from tests.builders.commands import run_esper
from tests.simic.training.runs import last_checkpoint, lines_of, weights_digest

from esper.leyline.probes import PROBES
from esper.nissa.storage.run_directory import read_manifest

TASK = "probe:memory"
"""Its envs start with a seed, whose events must add up as those of other seeds do."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a finished run of three rounds."""
    directory = tmp_path_factory.mktemp("runs")
    done = run_esper(
        *("train", "ppo", "--task", TASK, "--rounds", "3", "--envs", "3", "--quiet"),
        *("--telemetry-dir", str(directory)),
    )
    assert done.returncode == 0, done.stderr
    (found,) = directory.glob("*_*")
    return found


def test_a_probe_leaves_a_valid_log_and_no_network(run: Path) -> None:
    checked = run_esper("telemetry", "validate", str(run))
    assert checked.returncode == 0, checked.stdout
    assert read_manifest(run).data_source == "none"
    assert {path.name for path in run.iterdir()} == {
        *("checkpoints", "events.crc", "events.jsonl", "operational.jsonl", "run.json")
    }


def test_a_resumed_probe_equals_one_that_was_not_interrupted(run: Path, tmp_path: Path) -> None:
    again = Path(shutil.copytree(run, tmp_path / run.name))
    checkpoint = again / "checkpoints" / "round-000001.pt"
    resumed = run_esper(
        *("train", "ppo", "--resume", str(checkpoint), "--quiet"),
        *("--telemetry-dir", str(tmp_path)),
    )
    assert resumed.returncode == 0, resumed.stderr
    assert weights_digest(last_checkpoint(again)) == weights_digest(last_checkpoint(run))
    assert lines_of(again) == lines_of(run)
    assert list(again.glob("events.redone-*.jsonl")) != []


def test_a_policy_is_evaluated_on_a_probe(run: Path) -> None:
    done = run_esper(
        *("train", "eval", "--checkpoint", str(last_checkpoint(run)), "--seeds", "5", "--greedy")
    )
    assert done.returncode == 0, done.stderr
    assert f"ppo on {TASK}" in done.stdout


def test_a_probe_has_no_network_to_save(run: Path, tmp_path: Path) -> None:
    refused = run_esper(
        *("train", "eval", "--checkpoint", str(last_checkpoint(run)), "--seeds", "5"),
        *("--save-model", str(tmp_path / "grown.pt")),
    )
    assert refused.returncode == 2
    assert "a probe has no network to save" in refused.stderr


def test_a_probe_has_no_network_to_train_from_scratch(run: Path, tmp_path: Path) -> None:
    refused = run_esper(
        *("train", "compare", "--task", TASK, "--arms", f"static-final:{run}", "random"),
        *("--seeds", "5", "6", "--envs", "2", "--out", str(tmp_path / "out")),
    )
    assert refused.returncode == 2
    assert "has no network" in refused.stderr


def test_all_probes_are_listed() -> None:
    listed = run_esper("train", "tasks").stdout
    assert all(f"probe:{name} " in listed for name in PROBES)
