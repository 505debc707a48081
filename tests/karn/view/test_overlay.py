"""Several runs beside each other."""

from pathlib import Path

import msgspec
import pytest
from tests.karn.runs import MANIFEST, write_run
from tests.karn.story import Story

from esper.karn.view.overlay import MAX_CHOSEN, MAX_KEPT, ChosenRuns
from esper.leyline.config import Job, TrainingConfig
from esper.leyline.errors import UsageError

LINES = list(Story(num_rounds=2, num_envs=2, num_steps=4, has_trouble=False).lines())


def write_configured(parent: Path, name: str, training: TrainingConfig) -> None:
    run_dir = write_run(parent / name, LINES)
    manifest = msgspec.structs.replace(MANIFEST, job=Job(training=training))
    (run_dir / "run.json").write_bytes(msgspec.json.encode(manifest))


def read_all(chosen: ChosenRuns, names: list[str]) -> None:
    chosen.choose(names)
    while chosen.read_more(names):
        pass


def test_exactly_the_differing_keys_are_listed_in_the_order_of_the_runs(tmp_path: Path) -> None:
    write_configured(tmp_path, "one", TrainingConfig(lr=0.1))
    write_configured(tmp_path, "two", TrainingConfig(lr=0.2, seed=9))
    write_run(tmp_path / "bare", LINES)
    (tmp_path / "bare" / "run.json").unlink()
    chosen, names = ChosenRuns(tmp_path), ["two", "bare", "one"]
    read_all(chosen, names)

    rows = {row.key: row.values for row in chosen.differences(names)}
    runs = [chosen.curve(name) for name in names]

    assert rows == {"lr": ("0.2", None, "0.1"), "seed": ("9", None, str(TrainingConfig().seed))}
    assert [run.directory for run in runs] == names
    assert all(run.is_read and run.problem is None for run in runs)


@pytest.mark.parametrize("name", ["", ".", "..", "../tmp", "nothing", "one/../one", "/etc", "a\0b"])
def test_nothing_but_runs_of_the_directory_can_be_chosen(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "runs" / "one", LINES)
    with pytest.raises(UsageError):
        ChosenRuns(tmp_path / "runs").choose([name])


def test_too_many_runs_are_refused_and_only_the_latest_are_kept(tmp_path: Path) -> None:
    names = [f"run{number}" for number in range(MAX_KEPT + 5)]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    chosen = ChosenRuns(tmp_path)
    with pytest.raises(UsageError, match="at most"):
        chosen.choose(names[: MAX_CHOSEN + 1])
    for name in names:
        chosen.choose([name])
    chosen.differences(names[-MAX_KEPT:])
    with pytest.raises(KeyError):
        chosen.differences(names[:1])


def test_run_that_was_resumed_is_read_from_its_beginning(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "one", LINES)
    chosen = ChosenRuns(tmp_path)
    read_all(chosen, ["one"])
    before = chosen.curve("one").counts
    (run_dir / "events.jsonl").write_bytes(b"".join(line + b"\n" for line in LINES[:-3]))

    assert not chosen.read_more(["one"])
    read_all(chosen, ["one"])

    run = chosen.curve("one")
    assert run.problem is None
    assert sum(before.values()) - sum(run.counts.values()) == 3


def test_run_without_a_log_says_so(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "run.json").write_text("{}")
    (tmp_path / "one" / "events.jsonl").mkdir()
    chosen = ChosenRuns(tmp_path)
    read_all(chosen, ["one"])
    run = chosen.curve("one")
    assert run.problem is not None
    assert str(tmp_path) not in run.problem
