"""Worker threads (lanes) that run synchronous work in order, and how the event loop awaits it.

anyio's pooled threads have no affinity, but a CUDA stream, a grad mode and an env's model all
belong to one thread. Lanes are therefore dedicated threads, each running its calls one after
another. A call crosses between the event loop and a lane in this module only; `event_loop` has the
blocking calls that need no lane of their own.
"""

import asyncio
import contextlib
import contextvars
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final, Generic, ParamSpec, TypeVar

import anyio
import anyio.lowlevel
from torch.profiler import record_function

from esper.tolaria.stopping import StopFlag, beat_at_checkpoints

__all__ = ["BatchStream", "Lane", "feed", "joined", "lane_stacks", "wait_for_all", "wait_for_some"]

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
B = TypeVar("B")

CLOSE_TIMEOUT_S: Final = 5.0
"""Longest wait for a lane's thread to end; past it, the daemon thread is left behind."""
POLL_S: Final = 0.05
"""Interval at which a thread blocked on a queue checks the stop flag."""


class Lane:
    """One worker thread; a daemon, so that a hung call cannot keep the process alive."""

    def __init__(self, name: str, on_beat: Callable[[float | None], None] | None = None) -> None:
        """Start the thread.

        Args:
            name: of the thread, in stacks and traces.
            on_beat: called with the time of every heartbeat, and with None when the lane is idle.
        """
        self.name = name
        self._on_beat = on_beat
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        self._current: _Call[Any] | None = None
        # Time of the current call's last heartbeat; None while the lane is idle.
        self._last_beat_s: float | None = None
        self._given_up: BaseException | None = None
        # A new thread starts with an empty context; calls see the creator's context variables.
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._work,), name=name, daemon=True
        )
        self._thread.start()

    @property
    def thread_id(self) -> int | None:
        """Return the thread's identifier, as used in stack dumps."""
        return self._thread.ident

    @property
    def is_abandoned(self) -> bool:
        """Return whether the lane was abandoned."""
        return self._given_up is not None

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call; calls run in the order of submission.

        On an abandoned lane the call fails immediately.
        """
        item = _Call(call, args, kwargs)
        if self._given_up is None:
            self._calls.put(item)
        else:
            item.fail(self._given_up)
        return item.future

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Submit a call and await its result; see `wait_for_all` for cancellation."""
        return (await wait_for_all([self.submit(call, *args, **kwargs)]))[0]

    def beat(self) -> None:
        """Record a heartbeat, between batches and at each cancellation point of the lane."""
        self._record_beat(time.monotonic())

    def silent_s(self) -> float:
        """Return the seconds since the current call's last heartbeat; 0 while the lane is idle."""
        last = self._last_beat_s
        return 0.0 if last is None else time.monotonic() - last

    def abandon(self, error: BaseException) -> None:
        """Mark the lane as abandoned and fail its current call: its thread may never return."""
        self._given_up = error
        call = self._current
        if call is not None:
            call.fail(error)
        with contextlib.suppress(queue.Empty):
            while True:
                queued = self._calls.get_nowait()
                if queued is not None:
                    queued.fail(error)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Stop the thread after its queued calls; return whether it ended within the timeout.

        An abandoned lane is not waited for.
        """
        self._calls.put(None)
        self._thread.join(timeout_s if self._given_up is None else 0.0)
        return not self._thread.is_alive()

    def _work(self) -> None:
        beat_at_checkpoints(self.beat)
        # None is queued behind the calls that were submitted before, so they are still carried out.
        while (call := self._calls.get()) is not None:
            self.beat()
            self._current = call
            # A named span in the torch trace, which otherwise identifies threads by number only.
            with record_function(f"{self.name}: {call.name}"):
                call.run()
            self._current = None
            self._record_beat(None)

    def _record_beat(self, at_s: float | None) -> None:
        self._last_beat_s = at_s
        if self._on_beat is not None:
            self._on_beat(at_s)


class _Call(Generic[T]):
    """A call and the future of its result."""

    __slots__ = ("_args", "_call", "_kwargs", "future")

    def __init__(
        self, call: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        self.future: Future[T] = Future()
        self._call, self._args, self._kwargs = call, args, kwargs

    @property
    def name(self) -> str:
        """Return the name of the called function, or of its type."""
        return getattr(self._call, "__name__", type(self._call).__name__)

    def run(self) -> None:
        """Run the call and set its result, or what it raises, on the future."""
        try:
            result = self._call(*self._args, **self._kwargs)
        except BaseException as error:
            self.fail(error)
        else:
            # An abandoned call may still finish; its future already has an exception.
            with contextlib.suppress(InvalidStateError):
                self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Set an exception on the future, unless the call has already finished."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)


class _Arrival:
    """Wakes a task of the event loop, from any thread, once a number of futures are done."""

    __slots__ = ("_event", "_lock", "_loop", "_num_left")

    def __init__(self, num_futures: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._lock = threading.Lock()
        self._num_left = num_futures

    def count(self, _: object) -> None:
        """Count one more future as done."""
        with self._lock:
            self._num_left -= 1
            is_last = self._num_left == 0
        if is_last:
            # asyncio's events are not thread-safe; the loop is woken once, for the last future.
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        """Wait until all futures are done."""
        await self._event.wait()


class _Joining(Generic[T, R]):
    """Sets one future once all of several futures are done."""

    __slots__ = ("_combine", "_futures", "_lock", "_num_left", "future")

    def __init__(self, futures: Sequence[Future[T]], combine: Callable[[list[T]], R]) -> None:
        self.future: Future[R] = Future()
        self._futures = futures
        self._combine = combine
        self._lock = threading.Lock()
        self._num_left = len(futures)

    def count(self, _: object) -> None:
        """Count one more future as done."""
        with self._lock:
            self._num_left -= 1
            is_last = self._num_left == 0
        if is_last:
            self.finish()

    def finish(self) -> None:
        """Set the combined result, or the first failure in the order of the futures."""
        try:
            self.future.set_result(self._combine([future.result() for future in self._futures]))
        except BaseException as error:
            self.future.set_exception(error)


def joined(futures: Sequence[Future[T]], combine: Callable[[list[T]], R]) -> Future[R]:
    """Return a future of the combined results of several futures, once all of them are done."""
    joining = _Joining(futures, combine)
    if not futures:
        joining.finish()
    for future in futures:
        future.add_done_callback(joining.count)
    return joining.future


async def wait_for_some(futures: Sequence[Future[T]], num_needed: int) -> list[Future[T]]:
    """Await the first calls of several that succeed, and return all that have, in order.

    If one has failed, or the awaiting task is cancelled, all are waited for as in `wait_for_all`.
    """
    arrival = _Arrival(num_needed)
    for future in futures:
        future.add_done_callback(arrival.count)
    with anyio.CancelScope(shield=True):
        await arrival.wait()
    # Looked at once: another thread may set a further one at any time.
    done = [future for future in futures if future.done()]
    has_failed = any(future.exception() is not None for future in done)
    if has_failed or anyio.get_current_task().has_pending_cancellation():
        await wait_for_all(futures)
    return done


async def wait_for_all(futures: Sequence[Future[T]]) -> list[T]:
    """Await calls on several lanes with a single wake-up of the event loop.

    Waits for all futures, even if one has failed or the awaiting task is cancelled, so that no
    lane is still using a model when the error is handled. Afterwards a pending cancellation is
    delivered; otherwise the first failure, in the given order, is raised.
    """
    if not futures:
        return []
    arrival = _Arrival(len(futures))
    for future in futures:
        future.add_done_callback(arrival.count)
    with anyio.CancelScope(shield=True):
        await arrival.wait()
    # The shield has held a cancellation back; it is delivered before a result is used.
    await anyio.lowlevel.checkpoint_if_cancelled()
    return [future.result() for future in futures]


class BatchStream(Generic[B]):
    """A bounded queue of batches from the feeder to one lane.

    Uses two unbounded queues, one for batches and one for free places: `SimpleQueue` is written in
    C and several times as fast as the bounded `queue.Queue`, which is written in Python.
    """

    def __init__(self, depth: int, stop: StopFlag) -> None:
        self._items: queue.SimpleQueue[B | None] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(depth):
            self._room.put(None)
        self._stop = stop

    def put(self, batch: B | None) -> None:
        """Queue a batch, blocking while the queue is full; None ends the pass."""
        self._next_of(self._room)
        self._items.put(batch)

    def get(self) -> B | None:
        """Return the next batch, blocking until there is one; None at the end of the pass."""
        batch = self._next_of(self._items)
        self._room.put(None)
        return batch

    def _next_of(self, waiting: "queue.SimpleQueue[T]") -> T:
        """Return the next item of a queue; raise InterruptedRunError once a stop is requested."""
        while True:
            # Checked in each round of waiting, not only before it: the other side may have stopped,
            # and would never put anything into the queue.
            self._stop.checkpoint()
            try:
                return waiting.get(timeout=POLL_S)
            except queue.Empty:
                continue

    def end(self) -> None:
        """End the pass immediately and drop queued batches, after the feeder failed."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._items.get_nowait()
                self._room.put(None)
        self._room.get()  # for the end marker; never blocks, as the queue is empty now
        self._items.put(None)


def feed(batches: Iterable[B], streams: Sequence[BatchStream[B]]) -> int:
    """Send every batch to every lane, batch by batch; return the number of batches."""
    num_batches = 0
    for batch in batches:
        for stream in streams:
            stream.put(batch)
        num_batches += 1
    for stream in streams:
        stream.put(None)
    return num_batches


def lane_stacks(lanes: Iterable[Lane]) -> dict[str, str]:
    """Return each lane's current stack trace, for the report about a hung lane."""
    # The only way to see where another thread is, without its cooperation.
    frames = sys._current_frames()
    stacks: dict[str, str] = {}
    for lane in lanes:
        frame = frames.get(lane.thread_id or -1)
        if frame is not None:
            stacks[lane.name] = "".join(traceback.format_stack(frame))
    return stacks
