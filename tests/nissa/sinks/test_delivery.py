"""What sinks get: every event at least once, in order, from the stored position on."""

import json
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.nissa.fake_run import FakeRun

from esper.leyline.errors import ForeignFileError, MissingExtraError, UnknownNameError, UsageError
from esper.leyline.payloads import BatchEpochCompleted
from esper.nissa.sinks.delivery import open_delivery, rewind_positions
from esper.nissa.sinks.registry import check_sink, parse_sink

SHAPE = FakeRun(num_rounds=3)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return SHAPE.write(tmp_path / "runs")


def deliver(run_dir: Path, sink: str, *, is_continued: bool = False) -> int:
    delivery = open_delivery(run_dir / "events.jsonl", parse_sink(sink), is_continued=is_continued)
    delivery.run()
    return delivery.num_delivered


def accuracies() -> list[tuple[int, float]]:
    return [
        ((event.round or 0) + 1, event.data.mean_accuracy_pct or 0.0)
        for event in SHAPE.events()
        if isinstance(event.data, BatchEpochCompleted)
    ]


def test_jsonl_gets_the_lines_of_the_log(run: Path, tmp_path: Path) -> None:
    deliver(run, f"jsonl:{tmp_path / 'out.jsonl'}")
    assert (tmp_path / "out.jsonl").read_bytes() == (run / "events.jsonl").read_bytes()


def test_a_sink_is_continued_where_it_stopped_and_drops_a_torn_line(
    run: Path, tmp_path: Path
) -> None:
    log, out = run / "events.jsonl", tmp_path / "out.jsonl"
    whole = log.read_bytes()
    lines = whole.splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:40]))
    assert deliver(run, f"jsonl:{out}") == 40
    log.write_bytes(whole)
    with out.open("ab") as file:
        file.write(lines[40][:17])
    assert deliver(run, f"jsonl:{out}", is_continued=True) == len(lines) - 40
    assert out.read_bytes() == whole


def test_events_that_a_resumed_run_wrote_again_are_delivered_again(
    run: Path, tmp_path: Path
) -> None:
    sink, out = f"jsonl:{tmp_path / 'out.jsonl'}", tmp_path / "out.jsonl"
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    deliver(run, sink)
    rewind_positions(run, len(lines) - 3)
    assert deliver(run, sink, is_continued=True) == 3
    assert out.read_bytes().splitlines(keepends=True) == [*lines, *lines[-3:]]


def test_a_sink_that_was_killed_before_its_first_event_is_continued(
    run: Path, tmp_path: Path
) -> None:
    sink, log = f"tensorboard:{tmp_path / 'board'}", run / "events.jsonl"
    open_delivery(log, parse_sink(sink), is_continued=True).sink.close()
    assert deliver(run, sink, is_continued=True) == len(log.read_bytes().splitlines())


def test_positions_are_not_written_through_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (run / "sinks").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ForeignFileError, match="sinks: is a symbolic link"):
        deliver(run, f"jsonl:{tmp_path / 'out.jsonl'}")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_that_exists_is_not_overwritten(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("mine\n")
    with pytest.raises(UsageError, match="exists already"):
        deliver(run, f"jsonl:{tmp_path / 'out.jsonl'}")


def test_tensorboard_reads_the_numbers_of_the_log(run: Path, tmp_path: Path) -> None:
    deliver(run, f"tensorboard:{tmp_path / 'board'}")

    board = EventAccumulator(str(tmp_path / "board" / run.name))
    board.Reload()

    read = [(item.step, item.value) for item in board.Scalars("round/mean_accuracy_pct")]
    assert read == [(step, pytest.approx(value)) for step, value in accuracies()]
    (first, *_) = board.Histograms("round/env_accuracies_pct")
    assert first.histogram_value.num == SHAPE.num_envs
    assert sum(first.histogram_value.bucket) == SHAPE.num_envs
    assert "configuration/text_summary" in board.Tags()["tensors"]
    assert "topology/text_summary" in board.Tags()["tensors"]


def test_tensorboard_files_are_not_written_twice(run: Path, tmp_path: Path) -> None:
    sink = f"tensorboard:{tmp_path / 'board'}"
    deliver(run, sink)
    with pytest.raises(UsageError, match="has event files of this run already"):
        deliver(run, sink)
    assert deliver(run, sink, is_continued=True) == 0


def test_wandb_writes_an_offline_run_with_config_and_numbers(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    deliver(run, "wandb:growth")
    (stored,) = run.glob("wandb/offline-run-*/*.wandb")
    data = stored.read_bytes()
    assert stored.name == f"run-{SHAPE.run_id}.wandb"
    assert b"growth" in data
    for _, value in accuracies():
        assert json.dumps(value).encode() in data
    for name in (b"round/mean_accuracy_pct", b"host/val_loss/env_1", b"topology", b"lstm_hidden"):
        assert name in data


@pytest.mark.parametrize(
    ("sink", "kind", "message"),
    [
        ("tensorbord", UnknownNameError, "did you mean 'tensorboard'"),
        ("jsonl", UsageError, "expected a path, such as jsonl:events.jsonl"),
    ],
)
def test_a_sink_that_cannot_be_opened_is_one_sentence(
    sink: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        check_sink(sink, "--sink")


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError) as caught:
        check_sink("wandb", "--sink")
    assert str(caught.value) == (
        "--sink wandb needs wandb, which is not installed; pip install 'esper-grow[wandb]'"
    )
