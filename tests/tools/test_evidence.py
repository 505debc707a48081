"""The quick form of the evidence: machinery, not claims."""

from pathlib import Path

import msgspec
import pytest
from tests.simic.training.runs import weights_digest
from tools.evidence import __main__ as evidence
from tools.evidence.reports import KNOWN

from esper.leyline.comparison import ComparisonReport


def test_quick_evidence_trains_compares_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evidence.main(["--quick", "--out", str(tmp_path)]) == 0

    told = capsys.readouterr().out
    assert all(arm in told for arm in (*evidence.ARMS, "ppo: "))
    assert (tmp_path / "policy-1.pt").exists()
    assert 'id="growth"' in (tmp_path / "digits_growth.html").read_text(encoding="utf-8")
    report_path = tmp_path / "digits_growth.json"
    report = msgspec.json.decode(report_path.read_bytes(), type=ComparisonReport)
    assert report.learning is not None
    assert [run.seed for run in report.learning.runs] == [1]
    runs = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*-seed*.json")}
    assert len(runs) == 2 * (1 + len(evidence.ARMS))

    assert evidence.main(["--quick", "--out", str(tmp_path)]) == 0

    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*-seed*.json")} == runs
    assert msgspec.json.decode(report_path.read_bytes(), type=ComparisonReport) == report


TINY = evidence.Plan(
    num_policies=1,
    seeds="1000-1001",
    flags=("--rounds", "2", "--envs", "2", "--episode-length", "3", "--quiet"),
    folder="",
)


@pytest.mark.parametrize("num_lost", [0, 1])
def test_interrupted_training_goes_on_where_it_was(tmp_path: Path, num_lost: int) -> None:
    policy = tmp_path / "policy-1.pt"
    assert evidence._train(KNOWN, [policy], TINY, tmp_path) == 0
    (run_dir,) = (tmp_path / "runs").iterdir()
    whole = weights_digest(policy)
    policy.unlink()
    rounds = sorted((run_dir / "checkpoints").glob("round-*.pt"))
    for checkpoint in rounds[len(rounds) - num_lost :]:
        checkpoint.unlink()

    assert evidence._train(KNOWN, [policy], TINY, tmp_path) == 0

    assert [path.name for path in (tmp_path / "runs").iterdir()] == [run_dir.name]
    assert weights_digest(policy) == whole


def test_training_run_of_another_seed_or_preset_is_left_alone(tmp_path: Path) -> None:
    assert evidence._train(KNOWN, [tmp_path / "policy-1.pt"], TINY, tmp_path) == 0

    assert evidence._checkpoint(tmp_path / "runs", KNOWN, 1) is not None
    assert evidence._checkpoint(tmp_path / "runs", KNOWN, 2) is None
    assert evidence._checkpoint(tmp_path / "runs", "fashion_growth", 1) is None
    assert evidence._checkpoint(tmp_path / "none", KNOWN, 1) is None


def test_policies_of_the_quick_form_are_kept_apart() -> None:
    assert evidence.QUICK.folder != evidence.FULL.folder
