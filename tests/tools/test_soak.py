"""The soak runs from the command line, keeps its figures and writes them down."""

from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest
from tools.bench.rows import Row
from tools.soak import __main__ as soak
from tools.soak import results, running
from tools.soak.results import (
    DOCUMENT,
    PROMISES,
    Result,
    document_of,
    figure_of,
    keep,
    read_results,
)


def result(*, is_quick: bool, measured: float = 1.0) -> Result:
    row = Row(name="r", measured=measured, target=1.0, unit="runs", is_at_least=True)
    return Result(
        date="2026-01-01 00:00 UTC",
        command="python -m tools.soak L1",
        is_quick=is_quick,
        took_s=1.0,
        machine="a machine",
        figures=[figure_of(row)],
    )


class RecordingPool:
    """Notes which rows are started; each is done at once."""

    def __init__(self, events: list[str], *_: object, **__: object) -> None:
        self.events = events

    def __enter__(self) -> "RecordingPool":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, work: object, name: str, *, is_quick: bool) -> Future[Result]:
        self.events.append(f"{name} started")
        future: Future[Result] = Future()
        future.set_result(result(is_quick=is_quick))
        return future


def test_document_shows_the_figures_that_are_kept() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document_of(read_results())


def test_every_row_has_a_promise() -> None:
    assert running.MODULES.keys() == PROMISES.keys()


@pytest.mark.parametrize(
    ("before", "after", "kept"), [(True, True, 2.0), (True, False, 2.0), (False, True, 1.0)]
)
def test_quick_figure_never_takes_the_place_of_a_full_one(
    before: bool, after: bool, kept: float
) -> None:
    old = {"L1": result(is_quick=before, measured=1.0)}
    new = {"L1": result(is_quick=after, measured=2.0)}
    assert keep(old, new)["L1"].figures[0].measured == kept


def test_missed_target_stands_out() -> None:
    text = document_of({"L1": result(is_quick=True, measured=0.0)})
    assert "| r | 0 runs | ≥ 1 | **no** |" in text
    assert "quick form" in text


def test_row_that_compares_times_runs_alone_and_last(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(running, "ProcessPoolExecutor", partial(RecordingPool, events))

    for name, _ in running.finished(["L9", "L1", "L10"], is_quick=True):
        events.append(f"{name} done")

    assert events[:2] == ["L10 started", "L1 started"]
    assert set(events[2:4]) == {"L10 done", "L1 done"}
    assert events[4:] == ["L9 started", "L9 done"]


def test_unknown_row_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        soak.main(["L99"])
    assert "no row L99; there are" in capsys.readouterr().err


def test_soak_prints_its_figures_and_writes_them_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results.json")
    monkeypatch.setattr(results, "DOCUMENT", tmp_path / "reliability.md")
    monkeypatch.setattr(soak, "read_results", dict)
    assert soak.main(["--quick", "L7"]) == 0

    assert "L7 legal transitions" in capsys.readouterr().out
    assert read_results(tmp_path / "results.json")["L7"].is_quick
    assert "L7 legal transitions" in (tmp_path / "reliability.md").read_text(encoding="utf-8")


def test_broken_promise_is_reported_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome: Future[Result] = Future()
    outcome.set_exception(AssertionError("the resumed run is another run"))
    monkeypatch.setattr(soak, "finished", lambda names, *, is_quick: [(names[0], outcome)])
    assert soak.main(["L1"]) == 1
    assert "L1 BROKEN: the resumed run is another run" in capsys.readouterr().out
