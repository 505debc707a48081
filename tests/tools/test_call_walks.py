"""The way of a call is what is on the stack, in every thread that is started meanwhile."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tools.call_walks import Call, Leg, longest, modules_of, record_stacks

ENTRY = """
import threading
from made_up_walk import effect, helper

def run():
    helper.help()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

def work():
    helper.help()
    direct()
    around()

def direct():
    effect.act()

def around():
    direct()
"""
START, END = "made_up_walk.entry:work", "made_up_walk.effect:act"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    package = tmp_path / "made_up_walk"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "entry.py").write_text(ENTRY)
    (package / "effect.py").write_text("def act():\n    pass\n")
    (package / "helper.py").write_text("def help():\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("made_up_walk.entry").run
    for name in [name for name in sys.modules if name.startswith("made_up_walk")]:
        del sys.modules[name]


def test_longest_way_has_the_calls_on_the_stack_and_no_others(run: Callable[[], None]) -> None:
    stacks = record_stacks(run, package="made_up_walk", ends=[END])

    way = longest(stacks, Leg(START, END))

    assert [call.function for call in way] == ["work", "around", "direct", "act"]
    assert modules_of([way, way]) == ["made_up_walk.entry", "made_up_walk.effect"]


def test_way_begins_at_the_start_that_is_nearest_to_the_end() -> None:
    start, between, end = Call("m", "start"), Call("m", "between"), Call("m", "end")

    assert longest([(start, between, start, end)], Leg("m:start", "m:end")) == (start, end)


@pytest.mark.parametrize(
    "leg", [Leg("made_up_walk.entry:gone", END), Leg(START, "made_up_walk.effect:gone")]
)
def test_name_that_is_out_of_date_is_an_error(run: Callable[[], None], leg: Leg) -> None:
    stacks = record_stacks(run, package="made_up_walk", ends=[END])

    with pytest.raises(LookupError, match="out of date"):
        longest(stacks, leg)


def test_hook_is_taken_away_again_after_an_error() -> None:
    before = sys.getprofile()

    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011  # the error is this test's own
        record_stacks(fail, package="made_up_walk", ends=[END])

    assert sys.getprofile() is before
