"""The engine: a round's envs, spread over lanes, taken through passes.

`Engine` is all that a trainer knows of it. `LaneEngine` is the one that runs on threads of this
process; what is done to an env is handed in as `EnvWork`.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeVar

from esper.leyline.messages import (
    ActionExecutionResult,
    EnvEvidence,
    EnvFailure,
    EnvTestResult,
    Phase,
    StepDecision,
    StepEvidence,
    StepOutcome,
)
from esper.tolaria.containment import Place, contained
from esper.tolaria.lanes import BatchStream, Lane, feed, wait_for_all
from esper.tolaria.stopping import StopFlag

__all__ = ["Engine", "EnvWork", "LaneEngine"]

E = TypeVar("E")
B = TypeVar("B")
B_contra = TypeVar("B_contra", contravariant=True)
P = ParamSpec("P")
T = TypeVar("T")

STREAM_DEPTH: Final = 3
"""Batches that may wait for a lane."""

CLOSE_TIMEOUT_S: Final = 5.0


class Engine(Protocol):
    """Takes all envs of a round through its passes."""

    async def build_round(self, round_index: int) -> tuple[EnvFailure, ...]:
        """Build the round's envs anew; those of the round before are released."""
        ...

    async def train_pass(self, step: int) -> None:
        """Train every env for one host epoch."""
        ...

    async def validate_pass(self, step: int) -> StepEvidence:
        """Validate every env, ablations included, and tell what was seen since the last step."""
        ...

    async def apply(self, decision: StepDecision) -> StepOutcome:
        """Carry out one decision per env and let the step pass."""
        ...

    async def test_pass(self, step: int) -> tuple[EnvTestResult | None, ...]:
        """Measure every env on data that no decision has seen."""
        ...

    async def snapshot(self, env_id: int) -> dict[str, Any] | None:
        """Copy what an env's network can be made from again; None for one that broke."""
        ...

    async def close(self) -> None:
        """Release the envs and end the threads."""
        ...


class EnvWork(Protocol[E, B_contra]):
    """What a lane does to the envs it owns; everything runs synchronously on that lane."""

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
        """Wait for the device once and read what the pass has accumulated."""
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
        """Carry out the decisions of a lane's envs, in env order, and let the step pass.

        An env whose decision raises is appended to `failures` and left out of the result; `beat`
        is called between envs.
        """
        ...

    def test(self, env: E, beat: Callable[[], None]) -> EnvTestResult:
        """Measure the env on the test data; `beat` is called between batches."""
        ...

    def snapshot(self, env: E) -> dict[str, Any]:
        """Copy tensors and primitives that the env's network can be made from again."""
        ...

    def release(self, env: E) -> None:
        """Let go of an env."""
        ...


@dataclass(eq=False, slots=True)
class EnvGroup(Generic[E, B]):
    """A lane, the envs that it alone touches, and the batches that wait for it.

    All methods but `take_failures` run on the lane. What an env's work raises quarantines that env
    and no other; what it means for the run is decided by whoever reads the failures.
    """

    lane: Lane
    env_ids: tuple[int, ...]
    work: EnvWork[E, B]
    stream: BatchStream[Sequence[B]]
    live: dict[int, E] = field(default_factory=dict)
    """Envs of this round that have not broken."""
    failures: list[EnvFailure] = field(default_factory=list)
    """Envs that broke and have not been reported yet."""

    def build(self, round_index: int) -> None:
        """Release the envs of the round before and build this round's."""
        self.release()
        for env_id in self.env_ids:
            env = self._try(Place(Phase.BUILD), env_id, self.work.build, round_index, env_id)
            if env is not None:
                self.live[env_id] = env
            self.lane.beat()

    def train(self, step: int) -> None:
        """Train the envs on every batch of the stream, batch by batch."""
        for env_id, env in list(self.live.items()):
            self._try(Place(Phase.TRAIN, step), env_id, self.work.begin_train, env, step)
        for batch_index, shares in enumerate(iter(self.stream.get, None)):
            place = Place(Phase.TRAIN, step, batch_index)
            for env_id, env in list(self.live.items()):
                share = shares[env_id]
                self._try(place, env_id, self.work.train_batch, env, batch_index, share)
            self.lane.beat()
        for env_id, env in list(self.live.items()):
            self._try(Place(Phase.TRAIN, step), env_id, self.work.finish_train, env)

    def validate(self, step: int) -> dict[int, EnvEvidence]:
        """Validate the envs one after another."""
        place, beat = Place(Phase.VALIDATE, step), self.lane.beat
        found = {
            env_id: self._try(place, env_id, self.work.validate, env, step, beat)
            for env_id, env in list(self.live.items())
        }
        return {env_id: evidence for env_id, evidence in found.items() if evidence is not None}

    def apply(self, decision: StepDecision) -> ActionExecutionResult:
        """Carry out the decisions of all live envs in one call."""
        broken: list[EnvFailure] = []
        result = self.work.apply([*self.live.values()], decision, broken, self.lane.beat)
        for failure in broken:
            del self.live[failure.env_id]
        self.failures += broken
        return result

    def test(self, step: int) -> dict[int, EnvTestResult]:
        """Measure the envs one after another."""
        place, beat = Place(Phase.VALIDATE, step), self.lane.beat
        found = {
            env_id: self._try(place, env_id, self.work.test, env, beat)
            for env_id, env in list(self.live.items())
        }
        return {env_id: result for env_id, result in found.items() if result is not None}

    def snapshot(self, env_id: int) -> dict[str, Any] | None:
        """Copy what an env's network can be made from again."""
        env = self.live.get(env_id)
        if env is None:
            return None
        return self._try(Place(Phase.VALIDATE), env_id, self.work.snapshot, env)

    def release(self) -> None:
        """Let go of the envs."""
        for env in self.live.values():
            self.work.release(env)
        self.live.clear()

    def take_failures(self) -> list[EnvFailure]:
        """Hand over the failures that have not been reported yet."""
        taken, self.failures = self.failures, []
        return taken

    def _try(
        self,
        place: Place,
        env_id: int,
        call: Callable[P, T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T | None:
        with contained(self.failures, env_id, place):
            return call(*args, **kwargs)
        self.live.pop(env_id, None)
        return None


class LaneEngine(Generic[E, B]):
    """The engine on threads: each env belongs to one lane, and one feeder serves them all."""

    def __init__(
        self,
        *,
        num_envs: int,
        num_lanes: int,
        work: EnvWork[E, B],
        batches: Callable[[int, int], Iterable[Sequence[B]]],
        stop: StopFlag,
    ) -> None:
        """Start the threads.

        Args:
            num_envs: envs per round.
            num_lanes: threads that they are spread over; no more than envs are started.
            work: what is done to an env.
            batches: makes the training stream of a (round, step); each item has one share per env.
            stop: looked at between batches.
        """
        self._num_envs = num_envs
        self._batches = batches
        self._round_index = 0
        self._feeder = Lane("feeder")
        self._crews = [
            EnvGroup(
                lane=Lane(f"lane-{index}"),
                env_ids=tuple(range(index, num_envs, num_lanes)),
                work=work,
                stream=BatchStream[Sequence[B]](STREAM_DEPTH, stop),
            )
            for index in range(min(num_lanes, num_envs))
        ]

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return all threads, for the watchdog."""
        return (*(group.lane for group in self._crews), self._feeder)

    def env_ids_of(self, lane: Lane) -> tuple[int, ...]:
        """Return the envs that a lane owns."""
        owned = (group.env_ids for group in self._crews if group.lane is lane)
        return next(owned, ())

    async def build_round(self, round_index: int) -> tuple[EnvFailure, ...]:
        """Build the round's envs anew; those of the round before are released."""
        self._round_index = round_index
        await wait_for_all([group.lane.submit(group.build, round_index) for group in self._crews])
        return self._take_failures()

    async def train_pass(self, step: int) -> None:
        """Train every env for one host epoch, the data stream driving."""
        streams = [group.stream for group in self._crews]
        feeding = self._feeder.submit(feed, self._batches(self._round_index, step), streams)
        feeding.add_done_callback(self._end_starved_streams)
        calls: list[Future[Any]] = [group.lane.submit(group.train, step) for group in self._crews]
        await wait_for_all([*calls, feeding])

    async def validate_pass(self, step: int) -> StepEvidence:
        """Validate every env, ablations included, and tell what was seen since the last step."""
        calls = [group.lane.submit(group.validate, step) for group in self._crews]
        found = _joined(await wait_for_all(calls))
        return StepEvidence(
            round=self._round_index,
            step=step,
            envs=tuple(found.get(env_id) for env_id in range(self._num_envs)),
            failures=self._take_failures(),
            feeder_wait_s=sum(group.stream.take_waited_s() for group in self._crews),
        )

    async def apply(self, decision: StepDecision) -> StepOutcome:
        """Carry out one decision per env and let the step pass."""
        calls = [group.lane.submit(group.apply, decision) for group in self._crews]
        results = await wait_for_all(calls)
        return _joined_outcome(decision, results, self._num_envs, self._take_failures())

    async def test_pass(self, step: int) -> tuple[EnvTestResult | None, ...]:
        """Measure every env on data that no decision has seen."""
        calls = [group.lane.submit(group.test, step) for group in self._crews]
        found = _joined(await wait_for_all(calls))
        return tuple(found.get(env_id) for env_id in range(self._num_envs))

    async def snapshot(self, env_id: int) -> dict[str, Any] | None:
        """Copy what an env's network can be made from again; None for one that broke."""
        group = next(group for group in self._crews if env_id in group.env_ids)
        return await group.lane.run(group.snapshot, env_id)

    async def close(self) -> None:
        """Release the envs and end the threads; those of a lane that hangs are left to it."""
        groups = [group for group in self._crews if not group.lane.is_abandoned]
        try:
            await wait_for_all([group.lane.submit(group.release) for group in groups])
        finally:
            for lane in self.lanes:
                lane.close(CLOSE_TIMEOUT_S)

    def _take_failures(self) -> tuple[EnvFailure, ...]:
        found = [failure for group in self._crews for failure in group.take_failures()]
        return tuple(sorted(found, key=lambda failure: failure.env_id))

    def _end_starved_streams(self, feeding: Future[int]) -> None:
        """End the lanes' waiting when the feeder broke off; its own failure is raised later."""
        if feeding.exception() is not None:
            for group in self._crews:
                group.stream.end()


def _joined(found: Iterable[dict[int, T]]) -> dict[int, T]:
    return {env_id: item for part in found for env_id, item in part.items()}


def _joined_outcome(
    decision: StepDecision,
    results: Sequence[ActionExecutionResult],
    num_envs: int,
    failures: tuple[EnvFailure, ...],
) -> StepOutcome:
    """Join what the lanes returned, in env order."""
    found = {outcome.env_id: outcome for result in results for outcome in result.outcomes}
    truncated = sorted(
        (
            row
            for result in results
            for row in zip(
                result.truncated_bootstrap_targets,
                result.post_action_signals,
                result.post_action_slot_reports,
                result.post_action_masks,
                strict=True,
            )
        ),
        key=itemgetter(0),
    )
    return StepOutcome(
        round=decision.round,
        step=decision.step,
        envs=tuple(found.get(env_id) for env_id in range(num_envs)),
        failures=failures,
        truncated_bootstrap_targets=tuple(target for target, _, _, _ in truncated),
        post_action_signals=tuple(signals for _, signals, _, _ in truncated),
        post_action_slot_reports=tuple(reports for _, _, reports, _ in truncated),
        post_action_masks=tuple(masks for _, _, _, masks in truncated),
    )
