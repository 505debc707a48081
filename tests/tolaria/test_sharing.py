"""What threads share: a value is built once, a block is entered by one thread at a time."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from esper.tolaria.sharing import BuiltOnce, OneAtATime

NUM_THREADS = 4
WAIT_S = 20.0


def test_value_is_built_once_for_threads_that_ask_at_the_same_time() -> None:
    together = threading.Barrier(NUM_THREADS)
    built: list[object] = []

    def build() -> object:
        built.append(object())
        return built[-1]

    value = BuiltOnce(build)

    def ask() -> object:
        together.wait(WAIT_S)
        return value()

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        seen = [call.result(WAIT_S) for call in [pool.submit(ask) for _ in range(NUM_THREADS)]]
    assert len(built) == 1
    assert all(it is built[0] for it in seen)


def test_nothing_is_built_before_it_is_asked_for_and_none_is_a_value() -> None:
    built: list[str] = []

    def build() -> None:
        built.append("built")

    value = BuiltOnce(build)
    assert built == []
    assert value() is None
    assert value() is None
    assert built == ["built"]


def test_value_whose_build_failed_is_built_by_the_next_call() -> None:
    outcomes = iter([OSError("disk"), None])

    def build() -> str:
        error = next(outcomes)
        if error is not None:
            raise error
        return "value"

    value = BuiltOnce(build)
    with pytest.raises(OSError, match="disk"):
        value()
    assert value() == "value"


def test_block_is_entered_by_one_thread_at_a_time() -> None:
    block = OneAtATime()
    moves: list[str] = []

    def enter_often() -> None:
        for _ in range(50):
            with block:
                moves.append("in")
                time.sleep(0)  # lets another thread run, which would come in as well
                moves.append("out")

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for call in [pool.submit(enter_often) for _ in range(NUM_THREADS)]:
            call.result(WAIT_S)
    assert moves == ["in", "out"] * 50 * NUM_THREADS


def test_block_that_raises_can_be_entered_again() -> None:
    block = OneAtATime()
    with pytest.raises(ValueError, match="inside"), block:
        raise ValueError("inside")
    with block:
        pass
