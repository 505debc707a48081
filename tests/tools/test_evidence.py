"""The quick form of the evidence: machinery, not claims."""

from pathlib import Path

import msgspec
import pytest
from tests.simic.training.runs import weights_digest
from tools.evidence import __main__ as evidence
from tools.evidence.reports import KNOWN
from tools.evidence.training import Course, latest_checkpoint, train_all

from esper.leyline.comparison import ComparisonReport
from esper.leyline.errors import ExitCode


@pytest.mark.timeout(400)  # two experiments, one of them with searches
def test_quick_evidence_trains_compares_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evidence.main(["--quick", "--out", str(tmp_path)]) == 0

    output = capsys.readouterr().out
    assert all(arm.partition(":")[0] in output for arm in (*evidence.ARMS, "ppo: "))
    assert (tmp_path / "policy-1.pt").exists()
    assert 'id="growth"' in (tmp_path / "digits_growth.html").read_text(encoding="utf-8")
    report_path = tmp_path / "digits_growth.json"
    report = msgspec.json.decode(report_path.read_bytes(), type=ComparisonReport)
    assert report.learning is not None
    assert [run.seed for run in report.learning.runs] == [1]
    runs = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*-seed*.json")}
    # The twelve arms of the second experiment as well.
    assert len(runs) == 2 * (1 + len(evidence.ARMS) + 12)

    assert evidence.main(["--quick", "--out", str(tmp_path)]) == 0

    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*-seed*.json")} == runs
    assert msgspec.json.decode(report_path.read_bytes(), type=ComparisonReport) == report


TINY = ("--rounds", "2", "--envs", "2", "--episode-length", "3")


def course(folder: Path, seed: int = 1) -> Course:
    return Course(KNOWN, seed, folder / f"policy-{seed}.pt", TINY)


@pytest.mark.parametrize("num_lost", [0, 1])
def test_interrupted_training_goes_on_where_it_was(tmp_path: Path, num_lost: int) -> None:
    tiny = course(tmp_path)
    assert train_all([tiny], tmp_path) == 0
    (run_dir,) = (tmp_path / "runs").iterdir()
    whole = weights_digest(tiny.policy)
    tiny.policy.unlink()
    rounds = sorted((run_dir / "checkpoints").glob("round-*.pt"))
    for checkpoint in rounds[len(rounds) - num_lost :]:
        checkpoint.unlink()

    assert train_all([tiny], tmp_path) == 0

    assert [path.name for path in (tmp_path / "runs").iterdir()] == [run_dir.name]
    assert weights_digest(tiny.policy) == whole


def test_policies_are_trained_side_by_side_and_distinguished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    courses = [course(tmp_path, seed) for seed in (1, 2)]

    assert train_all(courses, tmp_path) == 0

    output = capsys.readouterr().out.splitlines()
    assert {line.partition(":")[0] for line in output} == {"policy-1", "policy-2"}
    found = [latest_checkpoint(tmp_path / "runs", KNOWN, each.seed) for each in courses]
    assert [path.read_bytes() for path in found if path is not None] == [
        each.policy.read_bytes() for each in courses
    ]
    assert len(set(found)) == 2
    assert latest_checkpoint(tmp_path / "runs", KNOWN, 3) is None
    assert latest_checkpoint(tmp_path / "runs", "fashion_growth", 1) is None
    assert latest_checkpoint(tmp_path / "none", KNOWN, 1) is None


def test_run_that_fails_is_reported_by_its_exit_code_and_leaves_no_policy(tmp_path: Path) -> None:
    broken = Course(KNOWN, 1, tmp_path / "policy-1.pt", ("--envs", "0"))

    assert train_all([broken], tmp_path) == ExitCode.USAGE
    assert not broken.policy.exists()


def test_policies_of_the_quick_form_are_kept_apart() -> None:
    assert evidence.QUICK.folder != evidence.FULL.folder
