"""The supervisor: a run's task group, background tasks, signal handlers and watchdog."""

import contextlib
import logging
import math
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import anyio

from esper.leyline.engine_payloads import LaneStalled
from esper.leyline.errors import RunFailedError
from esper.leyline.stop_signals import on_stop_signal
from esper.tolaria.event_loop import run_blocking
from esper.tolaria.lanes import Lane, lane_stacks
from esper.tolaria.stopping import StopFlag

__all__ = ["Watchdog", "stop_signals", "supervise"]

E = TypeVar("E", bound=BaseException)
T = TypeVar("T")

WATCH_INTERVAL_S: Final = 0.25
LINGER_S: Final = 15.0


class Watchdog:
    """Detects hung lanes, and an event loop that was itself blocked."""

    def __init__(
        self,
        *,
        lanes: Callable[[], Iterable[Lane]],
        env_ids_of: Callable[[Lane], tuple[int, ...]],
        deadline_s: float,
        stop: StopFlag,
        report: Callable[[LaneStalled], object],
        end_silent_workers: Callable[[float], None],
        reported_in: str = "operational.jsonl",
    ) -> None:
        """Monitor the lanes that `lanes` returns at each check.

        Args:
            lanes: returns the lanes.
            env_ids_of: returns the envs that a lane owns.
            deadline_s: seconds without a heartbeat before a lane counts as hung.
            stop: set to stop the other lanes when one is abandoned.
            report: called with the event about the stalled lane.
            end_silent_workers: called at each check with the deadline; ends workers of other
                processes that hang, which does not end the run, and passes a stop on to them.
            reported_in: the file that contains its stack, for the message.
        """
        self._lanes = lanes
        self._env_ids_of = env_ids_of
        self._deadline_s = deadline_s
        self._stop = stop
        self._report = report
        self._end_silent_workers = end_silent_workers
        self._reported_in = reported_in
        self.failure: RunFailedError | None = None

    async def run(self) -> None:
        """Check the lanes until one exceeds the heartbeat deadline, then fail the run.

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
            # A shorter lag does not restart the deadline: if every short lag did, a hung lane on a
            # busy machine would never be detected.
            if lag_s > self._deadline_s / 2:
                logging.getLogger(__name__).warning(
                    "the event loop was blocked for %.1f s: the process was suspended or starved",
                    lag_s,
                )
                awake_since_s = now_s
            # No lane can record a heartbeat in a suspended process, so the deadline starts again.
            is_awake = now_s - awake_since_s > self._deadline_s
            self._end_silent_workers(self._deadline_s if is_awake else math.inf)
            if is_awake:
                self._give_up_silent()

    def _give_up_silent(self) -> None:
        silent = [lane for lane in self._lanes() if lane.silent_s() > self._deadline_s]
        if silent:
            self._give_up(silent)

    def _give_up(self, silent: Sequence[Lane]) -> None:
        lane = silent[0]
        silent_s, env_ids = lane.silent_s(), self._env_ids_of(lane)
        # Taken before anything is stopped, while the lanes are still where they hang.
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
        # Other lanes may be waiting for the hung ones, so the stop flag is set for them. The calls
        # on hung lanes are failed for their awaiters, as those threads may never return.
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
    """Run `main` concurrently with its background tasks, and let these process its last events.

    The log is closed after `main` ends, whether or not it failed. The background tasks follow the
    log, so they end by themselves after its last event; those that do not are cancelled after
    `linger_s`. An exception in a background task ends the run. If a lane stalled, the watchdog's
    error is raised in place of the interruptions it causes.

    Args:
        main: the run itself.
        background: tasks that follow the run's log.
        watchdog: monitors the lanes while `main` runs.
        close_log: flushes all emitted events to the log and its followers; called on a thread, as
            it blocks on disk writes.
        linger_s: seconds that background tasks may continue after the run.
    """
    try:
        async with anyio.create_task_group() as group:
            for task in background:
                group.start_soon(task)
            outcome = await _run_watched(main, watchdog)
            # Also after a failure, as the followers end only with the log's last event.
            if close_log is not None:
                await run_blocking(close_log)
            group.cancel_scope.deadline = anyio.current_time() + linger_s
    except BaseExceptionGroup as errors:
        # Task groups raise groups of errors; callers of a run expect the one that caused its end.
        raise watchdog.failure or _first_of(errors) from None
    if isinstance(outcome, _Failed):
        raise watchdog.failure or outcome.error
    return outcome


@dataclass(frozen=True, slots=True)
class _Failed:
    """The error that a run ended with."""

    error: Exception


async def _run_watched(main: Callable[[], Awaitable[T]], watchdog: Watchdog) -> T | _Failed:
    """Run `main` with its watchdog; return its error, raised once the followers have ended."""
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
    """Turn the first SIGINT, SIGTERM or SIGHUP into a cooperative stop; a second one exits at once.

    These are process-level handlers rather than a task of the event loop, so that they also apply
    before the loop starts and during cleanup after it has ended.
    """
    with on_stop_signal(partial(_request_stop, stop)):
        yield


def _request_stop(stop: StopFlag, number: signal.Signals) -> None:
    stop.set(f"received {number.name}")
