"""One task group: its end, its failures, its signals, its watchdog."""

import os
import signal
import subprocess
import sys
import threading

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from esper.leyline.engine_payloads import LaneStalled
from esper.leyline.errors import InterruptedRunError, RunFailedError
from esper.leyline.stop_signals import SAME_REQUEST_S, STOP_SIGNALS
from esper.tolaria.lanes import Lane
from esper.tolaria.stopping import StopFlag
from esper.tolaria.supervisor import Watchdog, stop_signals, supervise

WAIT_S = 20.0
pytestmark = pytest.mark.anyio


def watchdog_for(
    *lanes: Lane,
    stop: StopFlag,
    deadline_s: float = WAIT_S,
    reported: list[LaneStalled] | None = None,
) -> Watchdog:
    reports: list[LaneStalled] = [] if reported is None else reported
    return Watchdog(
        lanes=lambda: lanes,
        env_ids_of=lambda lane: (1, 3),
        deadline_s=deadline_s,
        stop=stop,
        report=reports.append,
        end_silent_workers=lambda deadline_s: None,
    )


@pytest.mark.parametrize("error", [None, RunFailedError("broken")])
async def test_background_tasks_outlive_the_run_until_they_have_seen_its_log_closed(
    error: RunFailedError | None,
) -> None:
    order, is_closed = list[str](), anyio.Event()

    async def serve() -> None:
        order.append("serving")
        await is_closed.wait()
        order.append("served")

    async def main() -> int:
        while not order:
            await anyio.lowlevel.checkpoint()
        order.append("main")
        if error is not None:
            raise error
        return 7

    def close_log() -> None:
        order.append("log")
        anyio.from_thread.run_sync(is_closed.set)

    with anyio.fail_after(WAIT_S):
        supervised = supervise(
            main,
            background=[serve],
            watchdog=watchdog_for(stop=StopFlag()),
            close_log=close_log,
        )
        if error is None:
            assert await supervised == 7
        else:
            with pytest.raises(RunFailedError, match="broken"):
                await supervised
    assert order == ["serving", "main", "log", "served"]


async def test_background_task_that_does_not_end_is_cancelled() -> None:
    order: list[str] = []

    async def serve() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            order.append("cancelled")

    with anyio.fail_after(WAIT_S):
        result = await supervise(
            anyio.lowlevel.checkpoint,
            background=[serve],
            watchdog=watchdog_for(stop=StopFlag()),
            linger_s=0.05,
        )
    assert result is None
    assert order == ["cancelled"]


async def test_a_background_task_that_fails_ends_the_run_with_its_own_error() -> None:
    stop = StopFlag()

    async def serve() -> None:
        raise OSError("port in use")

    with anyio.fail_after(WAIT_S), pytest.raises(OSError, match="port in use"):
        await supervise(anyio.sleep_forever, background=[serve], watchdog=watchdog_for(stop=stop))


async def test_the_error_of_the_run_itself_comes_through_bare() -> None:
    stop = StopFlag()

    async def main() -> None:
        raise InterruptedRunError("asked to stop")

    with anyio.fail_after(WAIT_S), pytest.raises(InterruptedRunError, match="asked to stop"):
        await supervise(main, background=[], watchdog=watchdog_for(stop=stop))


async def test_a_lane_that_hangs_is_reported_with_its_stack_and_ends_the_run() -> None:
    stop, reported = StopFlag(), list[LaneStalled]()
    may_end = threading.Event()
    hung, waiting = Lane("lane-1"), Lane("lane-0")

    def conspicuous_hang() -> None:
        may_end.wait(WAIT_S)

    def wait_for_the_other() -> None:
        while True:
            stop.checkpoint()
            may_end.wait(0.01)
            waiting.beat()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(waiting.run, wait_for_the_other)
            group.start_soon(hung.run, conspicuous_hang)

    watchdog = watchdog_for(waiting, hung, stop=stop, deadline_s=0.2, reported=reported)
    with anyio.fail_after(WAIT_S), pytest.raises(RunFailedError, match=r"lane-1 \(envs 1, 3\)"):
        await supervise(main, background=[], watchdog=watchdog)

    assert [report.lane for report in reported] == ["lane-1"]
    assert reported[0].silent_s > 0.2
    assert "conspicuous_hang" in reported[0].stack
    may_end.set()
    hung.close(WAIT_S)
    assert waiting.close(WAIT_S)


async def test_lanes_are_not_blamed_for_a_process_that_stood_still(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stop, may_end = StopFlag(), threading.Event()
    lane = Lane("lane-0")

    async def main() -> bool:
        await anyio.sleep(0.5)  # the watchdog is at work by then
        standstill = threading.Event()
        standstill.wait(2.0)  # on the loop's own thread: as if the whole process were suspended
        await anyio.sleep(0.5)  # and looks again
        may_end.set()
        return True

    watchdog = watchdog_for(lane, stop=stop, deadline_s=1.5)
    quiet = lane.submit(may_end.wait, WAIT_S)
    with anyio.fail_after(WAIT_S):
        assert await supervise(main, background=[], watchdog=watchdog)

    assert quiet.result(WAIT_S)
    assert watchdog.failure is None
    assert "the event loop was blocked for" in caplog.text
    assert lane.close(WAIT_S)


async def test_a_lane_that_beats_is_left_alone_however_long_it_works() -> None:
    stop = StopFlag()
    lane = Lane("lane-0")
    num_beats = 60

    def work() -> int:
        for _ in range(num_beats):
            threading.Event().wait(0.01)
            lane.beat()
        return num_beats

    watchdog = watchdog_for(lane, stop=stop, deadline_s=0.5)
    with anyio.fail_after(WAIT_S):
        result = await supervise(lambda: lane.run(work), background=[], watchdog=watchdog)
    assert result == num_beats
    assert watchdog.failure is None
    assert lane.close(WAIT_S)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_first_signal_asks_for_a_stop(number: signal.Signals) -> None:
    stop = StopFlag()

    with stop_signals(stop):
        os.kill(os.getpid(), number)

    assert stop.is_set()
    assert stop.reason == f"received {number.name}"


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_handlers_are_put_back_in_the_end(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    with pytest.raises(RunFailedError), stop_signals(StopFlag()):
        raise RunFailedError("broken")

    assert signal.getsignal(number) is before


def test_a_thread_of_the_caller_leaves_signals_alone() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    found: list[object] = []

    def elsewhere() -> None:
        with stop_signals(StopFlag()):
            found.extend(signal.getsignal(number) for number in STOP_SIGNALS)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(WAIT_S)
    assert found == before


REPEATED = """
import os, signal, sys, time
from esper.tolaria.stopping import StopFlag
from esper.tolaria.supervisor import stop_signals
with stop_signals(StopFlag()):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(float(sys.argv[1]))
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(("pause_s", "code"), [(0.0, 0), (2 * SAME_REQUEST_S, 130)])
def test_the_second_signal_ends_the_process_unless_it_repeats_the_first(
    pause_s: float, code: int
) -> None:
    # Importing torch takes most of this time. A process that outlives the signal ends with 0.
    result = subprocess.run(
        [sys.executable, "-c", REPEATED, str(pause_s)],
        timeout=100,
        check=False,
        capture_output=True,
    )
    assert result.returncode == code
