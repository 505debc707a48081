"""Which run an argument means."""

from pathlib import Path

import msgspec
import pytest
from tests.nissa.fake_run import FakeRun, write_run

from esper.leyline.config import Job, RunOptions
from esper.leyline.errors import UnreadableFileError, UsageError
from esper.nissa.reading.run_lookup import find_log, find_logs, find_run, run_directories


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write four runs into `runs` below the working directory; the last two share a name."""
    monkeypatch.chdir(tmp_path)
    make("20260101T000000Z", "aa11", name="small")
    make("20260102T000000Z", "aa22")
    make("20260103T000000Z", "bb33", name="twice")
    make("20260104T000000Z", "cc44", name="twice")
    return Path("runs")


def make(stamp: str, run_id: str, name: str | None = None, parent: str = "runs") -> Path:
    run = FakeRun(num_rounds=1, num_envs=1, num_steps=1, run_id=run_id)
    job = Job(training=run.manifest().job.training, run=RunOptions(name=name))
    directory = Path(parent) / f"{stamp}_{run_id}"
    write_run(directory, run.lines(), msgspec.structs.replace(run.manifest(), job=job))
    return directory


@pytest.mark.parametrize(
    ("reference", "run_id"),
    [
        ("runs/20260101T000000Z_aa11", "aa11"),
        ("runs/20260101T000000Z_aa11/events.jsonl", "aa11"),
        ("20260102T000000Z_aa22", "aa22"),
        ("20260102", "aa22"),
        ("aa11", "aa11"),
        ("bb", "bb33"),
        ("small", "aa11"),
        ("sma", "aa11"),
        ("latest", "cc44"),
        ("runs/latest", "cc44"),
        ("runs/small", "aa11"),
    ],
)
def test_run_is_found_by_directory_log_id_prefix_name_or_latest(
    runs: Path, reference: str, run_id: str
) -> None:
    assert find_run(Path(reference)).name.endswith(run_id)
    assert find_log(Path(reference)) == find_run(Path(reference)) / "events.jsonl"


def test_whole_name_wins_over_a_longer_one_that_it_begins(runs: Path) -> None:
    make("20260105T000000Z", "dd55", name="smaller")

    assert find_run(Path("small")).name.endswith("aa11")


def test_other_directory_of_runs_is_named_before_the_reference(runs: Path) -> None:
    make("20250101T000000Z", "ee66", name="small", parent="elsewhere")

    assert find_run(Path("elsewhere/small")).name.endswith("ee66")
    assert find_run(Path("small"), Path("elsewhere")).name.endswith("ee66")


@pytest.mark.parametrize(
    ("reference", "sentence"),
    [
        ("aa", "aa: fits 2 runs of runs: 20260101T000000Z_aa11, 20260102T000000Z_aa22; write more"),
        ("twice", "twice: fits 2 runs of runs: 20260103T000000Z_bb33, 20260104T000000Z_cc44; "),
        ("smal1", "no such file, nor a run of runs with this id or name; did you mean 'small'?"),
        (
            "runs",
            "runs: contains 4 runs; name one of them, such as runs/20260104T000000Z_cc44,",
        ),
        ("nowhere/small", "nowhere/small: no such file or directory"),
    ],
)
def test_reference_without_one_run_is_one_sentence(
    runs: Path, reference: str, sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        find_log(Path(reference))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_runs_are_sorted_by_age_even_if_renamed(runs: Path) -> None:
    (runs / "20260103T000000Z_bb33").rename(runs / "mine")  # its manifest: created 2026-01-01

    assert [run.name[-4:] for run in run_directories(runs)] == ["aa11", "mine", "aa22", "cc44"]


def test_run_without_a_readable_manifest_is_still_found_by_its_id(runs: Path) -> None:
    (runs / "20260102T000000Z_aa22" / "run.json").write_text("{")

    assert find_run(Path("aa22")).name == "20260102T000000Z_aa22"


def test_directory_of_runs_stands_for_all_their_logs(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_run(tmp_path / f"20260101T000000Z_{name}", [])
    (tmp_path / "c").mkdir()

    assert [log.parent.name[-1] for log in find_logs([tmp_path])] == ["a", "b"]


def test_directory_without_a_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreadableFileError, match=r"no events\.jsonl here"):
        find_logs([tmp_path])
    with pytest.raises(UnreadableFileError, match="no such file or directory, and there are no"):
        find_logs([tmp_path / "nothing"])
    with pytest.raises(UnreadableFileError, match="latest: no such file or directory, and there"):
        find_run(Path("latest"))
    (tmp_path / "alone.jsonl").touch()
    with pytest.raises(UnreadableFileError, match="a log on its own; expected a run directory"):
        find_run(tmp_path / "alone.jsonl")
