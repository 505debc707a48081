"""The supervisor: one task group for a run, its helpers, its signals and its watchdog."""

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread

from esper.leyline.errors import ExitCode, RunFailedError
from esper.leyline.payloads import LaneStalled
from esper.tolaria.lanes import Lane, lane_stacks
from esper.tolaria.stopping import StopFlag

__all__ = ["Watchdog", "stop_signals", "supervise"]

E = TypeVar("E", bound=BaseException)
T = TypeVar("T")

WATCH_INTERVAL_S: Final = 0.25
LINGER_S: Final = 15.0
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Watchdog:
    """Notices lanes that have stopped moving, and a loop that stood still itself."""

    def __init__(
        self,
        *,
        lanes: Callable[[], Iterable[Lane]],
        env_ids_of: Callable[[Lane], tuple[int, ...]],
        deadline_s: float,
        stop: StopFlag,
        report: Callable[[LaneStalled], object],
        reported_in: str = "operational.jsonl",
    ) -> None:
        """Watch what `lanes` returns, whichever lanes there are by then.

        Args:
            lanes: returns the lanes.
            env_ids_of: returns the envs that a lane owns.
            deadline_s: how long a lane may be silent.
            stop: set for the other lanes when one is given up.
            report: takes what is known of the lane that stalled.
            reported_in: where its stack is found then, for the message.
        """
        self._lanes = lanes
        self._env_ids_of = env_ids_of
        self._deadline_s = deadline_s
        self._stop = stop
        self._report = report
        self._reported_in = reported_in
        self.failure: RunFailedError | None = None

    async def run(self) -> None:
        """Look at the lanes until one has been silent for too long, then give the run up.

        Consumes the lanes' heartbeats; produces LANE_STALLED and failed calls; waits for time to
        pass; unblocked by cancellation or by the first lane that stalls.
        """
        interval_s = min(WATCH_INTERVAL_S, self._deadline_s / 4)
        awake_since_s = time.monotonic()
        while self.failure is None:
            began_s = time.monotonic()
            await anyio.sleep(interval_s)
            now_s = time.monotonic()
            lag_s = now_s - began_s - interval_s
            # Less than this only costs the lanes a part of their time: if every short lag excused
            # them, one that hangs on a busy machine would never be found.
            if lag_s > self._deadline_s / 2:
                logging.getLogger(__name__).warning(
                    "the event loop stood still for %.1f s: the process was suspended or starved",
                    lag_s,
                )
                awake_since_s = now_s
            # In a process that was suspended no lane could give a sign of life: they start anew.
            if now_s - awake_since_s > self._deadline_s:
                self._give_up_silent()

    def _give_up_silent(self) -> None:
        silent = [lane for lane in self._lanes() if lane.silent_s() > self._deadline_s]
        if silent:
            self._give_up(silent)

    def _give_up(self, silent: Sequence[Lane]) -> None:
        lane = silent[0]
        silent_s, env_ids = lane.silent_s(), self._env_ids_of(lane)
        stacks = lane_stacks(self._lanes())
        envs = ", ".join(map(str, env_ids))
        self.failure = RunFailedError(
            f"{lane.name} (envs {envs or 'none'}) has been silent for {silent_s:.0f} s; its stack "
            f"is in {self._reported_in}, --lane-deadline sets how long is allowed"
        )
        self._report(
            LaneStalled(
                lane=lane.name,
                silent_s=silent_s,
                env_ids=env_ids,
                stack="\n".join(f"{name}:\n{stack}" for name, stack in stacks.items()),
            )
        )
        # The others may be waiting for those that hang, so they are told to stop; the calls of
        # these are failed for whoever awaits them, as their threads may never return.
        self._stop.set(str(self.failure))
        for hung in silent:
            hung.abandon(self.failure)


async def supervise(
    main: Callable[[], Awaitable[T]],
    *,
    background: Sequence[Callable[[], Coroutine[Any, Any, None]]],
    watchdog: Watchdog,
    close_log: Callable[[], object] | None = None,
    linger_s: float = LINGER_S,
) -> T:
    """Run `main` to its end beside the tasks that show it, and let these see that end.

    However `main` ends, the log is closed next. The background tasks follow the log, so they end
    by themselves when they have shown its last event; those that do not are cancelled after
    `linger_s`. What a background task raises ends the run; what a stalled lane leads to is raised
    in place of the interruptions it causes.

    Args:
        main: the run itself.
        background: tasks that follow the run's log.
        watchdog: watches the lanes while `main` runs.
        close_log: brings everything that was emitted to the log and to its followers; called on a
            thread, as it waits for the disk.
        linger_s: for how long background tasks may go on after the run.
    """
    try:
        async with anyio.create_task_group() as group:
            for task in background:
                group.start_soon(task)
            outcome = await _run_watched(main, watchdog)
            if close_log is not None:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(close_log)
            group.cancel_scope.deadline = anyio.current_time() + linger_s
    except BaseExceptionGroup as errors:
        raise watchdog.failure or _first_of(errors) from None
    if isinstance(outcome, _Failed):
        raise watchdog.failure or outcome.error
    return outcome


@dataclass(frozen=True, slots=True)
class _Failed:
    """What a run ended with instead of a result."""

    error: Exception


async def _run_watched(main: Callable[[], Awaitable[T]], watchdog: Watchdog) -> T | _Failed:
    """Run `main` beside its watchdog; what it raises is kept until its followers have ended."""
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(watchdog.run)
            result = await main()
            group.cancel_scope.cancel()
    except ExceptionGroup as errors:
        return _Failed(_first_of(errors))
    return result


def _first_of(errors: BaseExceptionGroup[E]) -> E:
    first = errors.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


@contextlib.contextmanager
def stop_signals(stop: StopFlag) -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into a cooperative stop, and obey a second at once.

    Handlers of the process and no task of the loop: a run can be stopped before its loop begins,
    and is not torn while it puts its things away after it.
    """
    # Signals reach the main thread only; elsewhere the caller holds the stop flag.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = partial(_on_signal, stop)
    previous = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, former in previous.items():
            signal.signal(number, former)


def _on_signal(stop: StopFlag, number: int, _: object) -> None:
    if stop.is_set():
        os._exit(ExitCode.INTERRUPTED)
    stop.set(f"received {signal.Signals(number).name}")
