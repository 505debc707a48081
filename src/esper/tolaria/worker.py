"""A worker: some envs, the lanes they live on, and the commands that are carried out on them.

The same worker serves in this process, in a process of its own and as a Ray actor; what differs is
how its commands and replies travel.
"""

import io
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar

import msgspec
import torch

from esper.leyline.engine_payloads import WorkerRestarted
from esper.leyline.messages import (
    ActionExecutionResult,
    EnvEvidence,
    EnvFailure,
    EnvTestResult,
    MemoryStats,
    Phase,
    StepDecision,
)
from esper.leyline.workers import (
    Apply,
    Build,
    Command,
    Quarantine,
    Release,
    Reply,
    Snapshot,
    Test,
    Train,
    Validate,
    WorkerCosts,
    merge_replies,
)
from esper.tolaria.containment import Place, contained
from esper.tolaria.fences import Fence, build_fence
from esper.tolaria.lanes import BatchStream, Lane, feed, joined
from esper.tolaria.pulse import Pulse
from esper.tolaria.stopping import StopFlag

__all__ = ["EnvWork", "Worker", "lane_fences"]

E = TypeVar("E")
B = TypeVar("B")
B_contra = TypeVar("B_contra", contravariant=True)
P = ParamSpec("P")
T = TypeVar("T")

STREAM_DEPTH: Final = 3
"""Maximum number of batches queued for a lane."""


def lane_fences(
    devices: Sequence[torch.device], env_ids: Sequence[int], num_lanes: int
) -> dict[int, Fence]:
    """Return the fence of each env of a worker: the envs of a lane share one per device.

    A lane works on one env at a time, and the caching allocator keeps a memory pool per stream:
    with a stream per env, memory that one env has freed could not serve the next.

    Args:
        devices: one per env of the run.
        env_ids: the worker's envs.
        num_lanes: threads of the worker.
    """
    fences: dict[int, Fence] = {}
    for owned in _envs_by_lane(env_ids, num_lanes):
        distinct = dict.fromkeys(devices[env_id] for env_id in owned)
        of_lane = {device: build_fence(device) for device in distinct}
        fences |= {env_id: of_lane[devices[env_id]] for env_id in owned}
    return fences


def _envs_by_lane(env_ids: Sequence[int], num_lanes: int) -> list[tuple[int, ...]]:
    """Return the envs of each lane; no lane is without one."""
    # Interleaved, so that lanes get the same number of envs give or take one. Which lane an env
    # lives on does not change its results.
    return [tuple(env_ids[index::num_lanes]) for index in range(min(num_lanes, len(env_ids)))]


class EnvWork(Protocol[E, B_contra]):
    """The operations a lane runs on its envs, all synchronously on the lane's thread."""

    def build(self, round_index: int, env_id: int) -> E:
        """Build an env."""
        ...

    def begin_train(self, env: E, step: int) -> None:
        """Prepare an env for its train pass."""
        ...

    def train_batch(self, env: E, batch_index: int, batch: B_contra) -> None:
        """Train on the env's share of one batch."""
        ...

    def finish_train(self, env: E) -> None:
        """Synchronize with the device once and read the metrics the pass has accumulated."""
        ...

    def validate(self, env: E, step: int, beat: Callable[[], None]) -> EnvEvidence:
        """Validate the env; `beat` is called between batches."""
        ...

    def apply(
        self,
        envs: Sequence[E],
        decision: StepDecision,
        failures: list[EnvFailure],
        beat: Callable[[], None],
    ) -> ActionExecutionResult:
        """Apply the decisions of a lane's envs, in env order, and advance their slots by one step.

        An env whose decision raises is appended to `failures` and left out of the result; `beat`
        is called between envs.
        """
        ...

    def test(self, env: E, beat: Callable[[], None]) -> EnvTestResult:
        """Evaluate the env on the test split; `beat` is called between batches."""
        ...

    def snapshot(self, env: E) -> dict[str, Any] | None:
        """Return copies of what is needed to rebuild the env's network; None without a network."""
        ...

    def memory(self, envs: Sequence[E]) -> dict[str, MemoryStats]:
        """Return the memory statistics of the envs' devices, by device."""
        ...

    def release(self, env: E) -> None:
        """Release an env's resources."""
        ...


@dataclass(eq=False, slots=True)
class EnvGroup(Generic[E, B]):
    """A lane, the envs that only it accesses, and its batches.

    All methods run on the lane and return its part of the worker's reply. An exception in an env's
    work quarantines that env only; the reader of the reply decides what that means for the run.
    """

    lane: Lane
    env_ids: tuple[int, ...]
    work: EnvWork[E, B]
    stream: BatchStream[Sequence[B]] | None
    """Filled by the worker's feeder; None if the lane makes its batches itself."""
    stop: StopFlag
    """Checked between batches."""
    enter_env: Callable[[int | None], None]
    """Called with the env that the lane works on from now on."""
    live: dict[int, E] = field(default_factory=dict)
    """Envs of this round that have not failed."""
    failures: list[EnvFailure] = field(default_factory=list)
    """Failures that have not been reported yet."""
    _cpu_s: float = 0.0
    """CPU time of the lane's thread at its last reply."""
    _waited_s: float = 0.0
    """How long there was no batch to train on since the last reply."""

    def build(self, round_index: int) -> Reply:
        """Release the envs of the previous round and build those of this round."""
        self._release_all()
        for env_id in self.env_ids:
            env = self._try(Place(Phase.BUILD), env_id, self.work.build, round_index, env_id)
            if env is not None:
                self.live[env_id] = env
            self.lane.beat()
        return self._reply(Reply())

    def train(self, step: int, batches: Iterable[Sequence[B]]) -> Reply:
        """Train all envs on each batch before the next one is taken."""
        for env_id, env in list(self.live.items()):
            self._try(Place(Phase.TRAIN, step), env_id, self.work.begin_train, env, step)
        # Batch first, env second, so that a stream has to hold a few batches instead of a whole
        # pass.
        for batch_index, shares in enumerate(self._timed(batches)):
            self.stop.checkpoint()
            place = Place(Phase.TRAIN, step, batch_index)
            for env_id, env in list(self.live.items()):
                share = shares[env_id]
                self._try(place, env_id, self.work.train_batch, env, batch_index, share)
            self.lane.beat()
        for env_id, env in list(self.live.items()):
            self._try(Place(Phase.TRAIN, step), env_id, self.work.finish_train, env)
        return self._reply(Reply())

    def _timed(self, batches: Iterable[Sequence[B]]) -> Iterator[Sequence[B]]:
        """Yield the batches; add up the time in which there was none."""
        source = iter(batches)
        while True:
            # A batch that is never made, or whose making ends the process, is no env's fault.
            self.enter_env(None)
            began_s = time.perf_counter()
            batch = next(source, None)
            self._waited_s += time.perf_counter() - began_s
            if batch is None:
                return
            yield batch

    def validate(self, step: int) -> Reply:
        """Validate the envs one after another."""
        place, beat = Place(Phase.VALIDATE, step), self.lane.beat
        found = [
            self._try(place, env_id, self.work.validate, env, step, beat)
            for env_id, env in list(self.live.items())
        ]
        return self._reply(Reply(evidence=tuple(item for item in found if item is not None)))

    def apply(self, decision: StepDecision) -> Reply:
        """Apply the decisions of all live envs in one call."""
        # One call per lane: its result lists the bootstrap targets of all envs in order.
        broken: list[EnvFailure] = []
        result = self.work.apply([*self.live.values()], decision, broken, self.lane.beat)
        for failure in broken:
            del self.live[failure.env_id]
        self.failures += broken
        # Once per round, for the round's events.
        memory = self.work.memory([*self.live.values()]) if decision.is_last_step else {}
        return self._reply(Reply(executed=result), memory)

    def test(self, step: int) -> Reply:
        """Evaluate the envs on the test split one after another."""
        place, beat = Place(Phase.VALIDATE, step), self.lane.beat
        found = [
            self._try(place, env_id, self.work.test, env, beat)
            for env_id, env in list(self.live.items())
        ]
        return self._reply(Reply(tests=tuple(item for item in found if item is not None)))

    def snapshot(self, env_id: int) -> Reply:
        """Copy what is needed to rebuild an env's network; nothing for a failed env."""
        env = self.live.get(env_id)
        if env is None:
            return self._reply(Reply())
        state = self._try(Place(Phase.VALIDATE), env_id, self.work.snapshot, env)
        return self._reply(Reply(snapshot=None if state is None else _encoded(state)))

    def quarantine(self, failures: Sequence[EnvFailure]) -> Reply:
        """Drop envs; their failures are part of the next reply."""
        for failure in failures:
            if failure.env_id in self.env_ids:
                self.live.pop(failure.env_id, None)
                self.failures.append(failure)
        return Reply()

    def release(self) -> Reply:
        """Release all live envs."""
        self._release_all()
        return self._reply(Reply())

    def _release_all(self) -> None:
        for env in self.live.values():
            self.work.release(env)
        self.live.clear()

    def _reply(self, reply: Reply, memory: dict[str, MemoryStats] | None = None) -> Reply:
        """Add to a reply what every reply carries."""
        # Failures wait for the next reply, whichever it is: an env may fail in a command whose own
        # reply has no place for it.
        failures, self.failures = tuple(self.failures), []
        before_s, self._cpu_s = self._cpu_s, time.thread_time()
        waited_s, self._waited_s = self._waited_s, 0.0
        self.enter_env(None)
        return msgspec.structs.replace(
            reply,
            failures=failures,
            costs=WorkerCosts(
                cpu_s=self._cpu_s - before_s,
                data_wait_s=waited_s,
                memory=memory or {},
            ),
        )

    def _try(
        self,
        place: Place,
        env_id: int,
        call: Callable[P, T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T | None:
        self.enter_env(env_id)
        with contained(self.failures, env_id, place):
            return call(*args, **kwargs)
        # Reached only after an exception, which `contained` has swallowed and recorded.
        self.live.pop(env_id, None)
        return None


class Worker(Generic[E, B]):
    """Carries out commands on the envs it owns: each env belongs to one lane.

    One feeder thread streams the batches of a pass to all lanes; a single lane can make them
    itself. Lanes carry out their calls in order and do not wait for each other, so commands may be
    submitted ahead.
    """

    def __init__(
        self,
        *,
        env_ids: Sequence[int],
        num_lanes: int,
        work: EnvWork[E, B],
        batches: Callable[[int, int], Iterable[Sequence[B]]],
        stop: StopFlag,
        has_feeder: bool = True,
        pulse: Pulse | None = None,
    ) -> None:
        """Start the threads.

        Args:
            env_ids: the envs of the worker.
            num_lanes: threads to spread the envs over, capped at the number of envs.
            work: the operations on an env.
            batches: returns the training stream of a (round, step); an item has one share per env.
            stop: checked between batches.
            has_feeder: make batches on a thread of their own. Without one, a worker with a single
                lane leaves a core to its neighbours and takes less CPU time.
            pulse: where heartbeats are recorded for another process.
        """
        self.env_ids = tuple(env_ids)
        self._batches = batches
        self._round_index = 0
        # Ends what was submitted ahead when the worker is closed before the run is stopped.
        self._stop = StopFlag(parent=stop)
        owned_by_lane = _envs_by_lane(self.env_ids, num_lanes)
        assert has_feeder or len(owned_by_lane) == 1, "several lanes share the batches of a feeder"
        on_beat = None if pulse is None else pulse.feeder.beat
        self._feeder = Lane("feeder", on_beat=on_beat) if has_feeder else None
        self._groups = [
            _env_group(index, owned, work, self._stop, pulse, has_feeder=has_feeder)
            for index, owned in enumerate(owned_by_lane)
        ]

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return all threads, for the watchdog."""
        lanes = tuple(group.lane for group in self._groups)
        return lanes if self._feeder is None else (*lanes, self._feeder)

    def env_ids_of(self, lane: Lane) -> tuple[int, ...]:
        """Return the envs that a lane owns."""
        owned = (group.env_ids for group in self._groups if group.lane is lane)
        return next(owned, ())

    def submit(self, command: Command) -> "Future[Reply]":
        """Queue a command; replies become available in the order of submission."""
        groups = self._groups
        match command:
            case Build(round=round_index):
                self._round_index = round_index
                calls = [group.lane.submit(group.build, round_index) for group in groups]
            case Train(step=step):
                return self._train(step)
            case Validate(step=step):
                calls = [group.lane.submit(group.validate, step) for group in groups]
            case Apply(decision=decision):
                calls = [group.lane.submit(group.apply, decision) for group in groups]
            case Test(step=step):
                calls = [group.lane.submit(group.test, step) for group in groups]
            case Snapshot(env_id=env_id):
                calls = [
                    group.lane.submit(group.snapshot, env_id)
                    for group in groups
                    if env_id in group.env_ids
                ]
            case Quarantine(failures=failures):
                calls = [group.lane.submit(group.quarantine, failures) for group in groups]
            case Release():
                calls = [group.lane.submit(group.release) for group in groups]
        return joined(calls, merge_replies)

    def report_restarts_to(self, report: Callable[[WorkerRestarted], object]) -> None:
        """Do nothing: a worker of this process ends with the run."""

    def end_if_silent(self, deadline_s: float) -> None:
        """Do nothing: a thread cannot be ended, the watchdog ends the run."""

    def close(self) -> None:
        """End what is running, release the envs and stop the threads.

        The envs of an abandoned lane are not released.
        """
        self._stop.set("the worker is closed")
        for group in self._groups:
            if not group.lane.is_abandoned:
                group.lane.submit(group.release)
        for lane in self.lanes:
            lane.close()

    def _train(self, step: int) -> "Future[Reply]":
        batches = self._batches(self._round_index, step)
        if self._feeder is None:
            (group,) = self._groups
            return group.lane.submit(group.train, step, batches)
        streams = [group.stream for group in self._groups if group.stream is not None]
        # The feeder is submitted before the lanes, so that the first batch is on its way when they
        # begin.
        feeding = self._feeder.submit(feed, batches, streams)
        # Without this, lanes would wait for batches of a feeder that has failed, until the watchdog
        # takes them for hung.
        feeding.add_done_callback(partial(_end_starved, streams))
        calls: list[Future[Any]] = [
            group.lane.submit(group.train, step, iter(stream.get, None))
            for group, stream in zip(self._groups, streams, strict=True)
        ]
        # The feeder comes last: if a lane and the feeder fail, the lane's error is the one that is
        # raised.
        return joined([*calls, feeding], _merge_passes)


def _end_starved(streams: Iterable[BatchStream[Any]], feeding: "Future[int]") -> None:
    """Unblock lanes waiting for batches if the feeder failed; its error is raised later."""
    if feeding.exception() is not None:
        for stream in streams:
            stream.end()


def _merge_passes(results: Sequence[Any]) -> Reply:
    """Merge the lanes' replies; the last result is the feeder's number of batches."""
    return merge_replies(results[:-1])


def _env_group(
    index: int,
    env_ids: tuple[int, ...],
    work: EnvWork[E, B],
    stop: StopFlag,
    pulse: Pulse | None,
    *,
    has_feeder: bool,
) -> EnvGroup[E, B]:
    channel = None if pulse is None else pulse.channel(index)
    return EnvGroup(
        lane=Lane(f"lane-{index}", on_beat=None if channel is None else channel.beat),
        env_ids=env_ids,
        work=work,
        stream=BatchStream[Sequence[B]](STREAM_DEPTH, stop) if has_feeder else None,
        stop=stop,
        enter_env=_ignore if channel is None else channel.enter_env,
    )


def _ignore(_: int | None) -> None:
    """Record nothing: the threads of this process are watched directly."""


def _encoded(state: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    # torch's own format, which the driver loads with weights_only: nothing is unpickled.
    torch.save(state, buffer)
    return buffer.getvalue()
