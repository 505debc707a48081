"""Reference runs, run again and compared with their committed counts."""

from pathlib import Path

import pytest

from esper.leyline.telemetry import EventType
from esper.nissa.analysis.baseline_store import read_baseline, write_baseline
from esper.nissa.analysis.diff import diff_paths
from esper.nissa.analysis.validation import validate_run
from esper.scripts.train import main

BASELINES = Path(__file__).resolve().parents[1] / "telemetry" / "baselines"
COMMANDS = {
    "cifar_minimal_run.json": (
        "ppo --preset cifar_baseline --task cifar_baseline --rounds 1 --envs 1 --episode-length 5 "
        "--data synthetic"
    ),
    "digits.json": "ppo --task digits --rounds 1",
}
"""The runs behind the baselines. The first is the shortest whole run, on the stand-in for CIFAR-10
that every machine has; in the second a fresh policy prunes most seeds and keeps some."""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_reference_run_has_the_counts_of_its_baseline(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = COMMANDS[name].split()
    assert main([*arguments, "--quiet", "--telemetry-dir", str(tmp_path)]) == 0
    (run_dir,) = tmp_path.iterdir()

    assert validate_run(run_dir).is_valid
    difference = diff_paths(BASELINES / name, run_dir)

    assert difference.is_same, difference


def test_baselines_on_disk_are_those_that_are_run_again() -> None:
    assert {path.name for path in BASELINES.glob("*.json")} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_baseline_on_disk_is_what_capturing_it_again_would_write(
    name: str, tmp_path: Path
) -> None:
    write_baseline(read_baseline(BASELINES / name), tmp_path / name)

    assert (BASELINES / name).read_bytes() == (tmp_path / name).read_bytes()


def test_the_digits_baseline_reaches_every_stage_of_a_seeds_life() -> None:
    counts = read_baseline(BASELINES / "digits.json").profile.counts
    seed_types = [event_type for event_type in EventType if event_type.startswith("SEED_")]
    assert all(counts.get(event_type, 0) > 0 for event_type in seed_types), counts
