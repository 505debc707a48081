"""Worker threads: who carries out synchronous work, in what order, and how its end is awaited.

anyio's pooled threads have no affinity, but a stream, a grad mode and an env's model all belong to
one thread. Hence lanes: threads of our own, each carrying out its calls one after another. This
module is the one place where threads and the event loop meet.
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

__all__ = ["BatchStream", "Lane", "feed", "lane_stacks", "wait_for_all"]

P = ParamSpec("P")
T = TypeVar("T")
B = TypeVar("B")

POLL_S: Final = 0.05
"""How often a thread that waits for another one looks whether it should stop."""


class Lane:
    """One worker thread; it is a daemon, so that a hung call cannot keep the process alive."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        self._current: _Call[Any] | None = None
        # When the call under way gave its last sign of life; None while the lane is idle.
        self._last_beat_s: float | None = None
        self._given_up: BaseException | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=context.run, args=(self._work,), name=name, daemon=True
        )
        self._thread.start()

    @property
    def thread_id(self) -> int | None:
        """Return the identity that stack dumps know the thread by."""
        return self._thread.ident

    @property
    def is_abandoned(self) -> bool:
        """Tell whether the lane was given up."""
        return self._given_up is not None

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Hand a call over; it runs after all that were handed over before it.

        On a lane that was abandoned nothing runs any more: the call fails at once.
        """
        item = _Call(call, args, kwargs)
        if self._given_up is None:
            self._calls.put(item)
        else:
            item.fail(self._given_up)
        return item.future

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Hand a call over and await its result; see `wait_for_all` for cancellation."""
        return (await wait_for_all([self.submit(call, *args, **kwargs)]))[0]

    def beat(self) -> None:
        """Give a sign of life, between batches and at each cancellation point of the lane."""
        self._last_beat_s = time.monotonic()

    def silent_s(self) -> float:
        """Return for how long the call under way has given no sign of life."""
        last = self._last_beat_s
        return 0.0 if last is None else time.monotonic() - last

    def abandon(self, error: BaseException) -> None:
        """Give the lane up and fail its call for whoever awaits it: its thread may never return."""
        self._given_up = error
        call = self._current
        if call is not None:
            call.fail(error)

    def close(self, timeout_s: float) -> bool:
        """End the thread after what it was handed; tell whether it has ended in time.

        A lane that was abandoned is not waited for.
        """
        self._calls.put(None)
        self._thread.join(timeout_s if self._given_up is None else 0.0)
        return not self._thread.is_alive()

    def _work(self) -> None:
        beat_at_checkpoints(self.beat)
        while (call := self._calls.get()) is not None:
            self.beat()
            self._current = call
            # A span of its own in a torch trace, which knows threads by their numbers alone.
            with record_function(f"{self.name}: {call.name}"):
                call.run()
            self._current = None
            self._last_beat_s = None


class _Call(Generic[T]):
    """A call with a place for its result."""

    __slots__ = ("_args", "_call", "_kwargs", "future")

    def __init__(
        self, call: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        self.future: Future[T] = Future()
        self._call, self._args, self._kwargs = call, args, kwargs

    @property
    def name(self) -> str:
        """Return what the call does, as far as its function tells."""
        return getattr(self._call, "__name__", type(self._call).__name__)

    def run(self) -> None:
        """Carry the call out; whatever it raises belongs to whoever awaits the future."""
        try:
            result = self._call(*self._args, **self._kwargs)
        except BaseException as error:
            self.fail(error)
        else:
            # An abandoned call may end after all; nobody wants its result any more.
            with contextlib.suppress(InvalidStateError):
                self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Let the awaiting side see an error, unless the call has ended already."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)


class _Arrival:
    """Wakes a task of the loop, from any thread, once a number of futures are done."""

    __slots__ = ("_event", "_lock", "_loop", "_num_left")

    def __init__(self, num_futures: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._lock = threading.Lock()
        self._num_left = num_futures

    def count(self, _: object) -> None:
        """Note that one more future is done."""
        with self._lock:
            self._num_left -= 1
            is_last = self._num_left == 0
        if is_last:
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        """Wait for all of them."""
        await self._event.wait()


async def wait_for_all(futures: Sequence[Future[T]]) -> list[T]:
    """Await calls on several lanes with one wake-up of the loop.

    All of them are waited for, even if one has failed or the awaiting task is cancelled: nothing
    may still be touching a model when that is dealt with. A cancellation is delivered then; else
    the first failure, in the order given, is raised.
    """
    if not futures:
        return []
    arrival = _Arrival(len(futures))
    for future in futures:
        future.add_done_callback(arrival.count)
    with anyio.CancelScope(shield=True):
        await arrival.wait()
    await anyio.lowlevel.checkpoint_if_cancelled()
    return [future.result() for future in futures]


class BatchStream(Generic[B]):
    """A bounded queue of batches from the feeder to one lane.

    Two queues in opposite directions, batches and room for them: a queue that knows its own bound
    is written in Python, and takes several times as long.
    """

    def __init__(self, depth: int, stop: StopFlag) -> None:
        self._items: queue.SimpleQueue[B | None] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(depth):
            self._room.put(None)
        self._stop = stop
        self._waited_s = 0.0

    def put(self, batch: B | None) -> None:
        """Hand a batch over, waiting for room; None ends the pass."""
        self._next_of(self._room)
        self._items.put(batch)

    def get(self) -> B | None:
        """Take the next batch, waiting for one; None at the end of the pass."""
        began_s = time.perf_counter()
        batch = self._next_of(self._items)
        self._room.put(None)
        self._waited_s += time.perf_counter() - began_s
        return batch

    def _next_of(self, waiting: "queue.SimpleQueue[T]") -> T:
        """Take what comes next, unless the run is to stop."""
        while True:
            self._stop.checkpoint()
            try:
                return waiting.get(timeout=POLL_S)
            except queue.Empty:
                continue

    def take_waited_s(self) -> float:
        """Return for how long batches were waited for since the last call."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s

    def end(self) -> None:
        """End the pass at once: what still waits is dropped. For a feeder that broke off."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._items.get_nowait()
                self._room.put(None)
        self._room.get()  # for the end itself; there is some, as nothing waits any more
        self._items.put(None)


def feed(batches: Iterable[B], streams: Sequence[BatchStream[B]]) -> int:
    """Stream every batch to every lane, batch by batch; return how many there were."""
    num_batches = 0
    for batch in batches:
        for stream in streams:
            stream.put(batch)
        num_batches += 1
    for stream in streams:
        stream.put(None)
    return num_batches


def lane_stacks(lanes: Iterable[Lane]) -> dict[str, str]:
    """Return where each lane is right now, for a report about one that hangs."""
    frames = sys._current_frames()
    stacks: dict[str, str] = {}
    for lane in lanes:
        frame = frames.get(lane.thread_id or -1)
        if frame is not None:
            stacks[lane.name] = "".join(traceback.format_stack(frame))
    return stacks
