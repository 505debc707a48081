"""The engine: runs the training, validation and test passes of a round's envs on lanes.

`Engine` is the interface the trainer uses. `LaneEngine` implements it with threads of this
process; the operations on an env are passed in as `EnvWork`.
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
"""Maximum number of batches queued for a lane."""


class Engine(Protocol):
    """Runs the passes of all envs of a round."""

    async def build_round(self, round_index: int) -> tuple[EnvFailure, ...]:
        """Build the round's envs and release those of the previous round."""
        ...

    async def train_pass(self, step: int) -> None:
        """Train every env for one host epoch."""
        ...

    async def validate_pass(self, step: int) -> StepEvidence:
        """Validate every env, including ablations, and return the evidence since the last step."""
        ...

    async def apply(self, decision: StepDecision) -> StepOutcome:
        """Apply one decision per env and advance the slots by one step."""
        ...

    async def test_pass(self, step: int) -> tuple[EnvTestResult | None, ...]:
        """Evaluate every env on the test split, which no decision depends on."""
        ...

    async def snapshot(self, env_id: int) -> dict[str, Any] | None:
        """Return a copy of what is needed to rebuild an env's network; None for a failed env."""
        ...

    async def close(self) -> None:
        """Release the envs and stop the threads."""
        ...


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

    def release(self, env: E) -> None:
        """Release an env's resources."""
        ...


@dataclass(eq=False, slots=True)
class EnvGroup(Generic[E, B]):
    """A lane, the envs that only it accesses, and its queue of batches.

    All methods but `take_failures` run on the lane. An exception in an env's work quarantines that
    env only; the caller that reads the failures decides what they mean for the run.
    """

    lane: Lane
    env_ids: tuple[int, ...]
    work: EnvWork[E, B]
    stream: BatchStream[Sequence[B]]
    live: dict[int, E] = field(default_factory=dict)
    """Envs of this round that have not failed."""
    failures: list[EnvFailure] = field(default_factory=list)
    """Failures that have not been reported yet."""

    def build(self, round_index: int) -> None:
        """Release the envs of the previous round and build those of this round."""
        self.release()
        for env_id in self.env_ids:
            env = self._try(Place(Phase.BUILD), env_id, self.work.build, round_index, env_id)
            if env is not None:
                self.live[env_id] = env
            self.lane.beat()

    def train(self, step: int) -> None:
        """Train all envs on each batch of the stream before the next one is taken."""
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
        """Apply the decisions of all live envs in one call."""
        broken: list[EnvFailure] = []
        result = self.work.apply([*self.live.values()], decision, broken, self.lane.beat)
        for failure in broken:
            del self.live[failure.env_id]
        self.failures += broken
        return result

    def test(self, step: int) -> dict[int, EnvTestResult]:
        """Evaluate the envs on the test split one after another."""
        place, beat = Place(Phase.VALIDATE, step), self.lane.beat
        found = {
            env_id: self._try(place, env_id, self.work.test, env, beat)
            for env_id, env in list(self.live.items())
        }
        return {env_id: result for env_id, result in found.items() if result is not None}

    def snapshot(self, env_id: int) -> dict[str, Any] | None:
        """Return a copy of what is needed to rebuild an env's network; None for a failed env."""
        env = self.live.get(env_id)
        if env is None:
            return None
        return self._try(Place(Phase.VALIDATE), env_id, self.work.snapshot, env)

    def release(self) -> None:
        """Release all live envs."""
        for env in self.live.values():
            self.work.release(env)
        self.live.clear()

    def take_failures(self) -> list[EnvFailure]:
        """Return the failures that have not been reported yet, and clear them."""
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
    """The threaded engine: each env belongs to one lane, and one feeder thread serves all lanes."""

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
            num_lanes: threads to spread the envs over, capped at the number of envs.
            work: the operations on an env.
            batches: returns the training stream of a (round, step); an item has one share per env.
            stop: checked between batches.
        """
        self._num_envs = num_envs
        self._batches = batches
        self._round_index = 0
        self._feeder = Lane("feeder")
        self._groups = [
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
        return (*(group.lane for group in self._groups), self._feeder)

    def env_ids_of(self, lane: Lane) -> tuple[int, ...]:
        """Return the envs that a lane owns."""
        owned = (group.env_ids for group in self._groups if group.lane is lane)
        return next(owned, ())

    async def build_round(self, round_index: int) -> tuple[EnvFailure, ...]:
        """Build the round's envs and release those of the previous round."""
        self._round_index = round_index
        await wait_for_all([group.lane.submit(group.build, round_index) for group in self._groups])
        return self._take_failures()

    async def train_pass(self, step: int) -> None:
        """Train every env for one host epoch on the batches of the feeder thread."""
        streams = [group.stream for group in self._groups]
        feeding = self._feeder.submit(feed, self._batches(self._round_index, step), streams)
        feeding.add_done_callback(self._end_starved_streams)
        calls: list[Future[Any]] = [group.lane.submit(group.train, step) for group in self._groups]
        await wait_for_all([*calls, feeding])

    async def validate_pass(self, step: int) -> StepEvidence:
        """Validate every env, including ablations, and return the evidence since the last step."""
        calls = [group.lane.submit(group.validate, step) for group in self._groups]
        found = _joined(await wait_for_all(calls))
        return StepEvidence(
            round=self._round_index,
            step=step,
            envs=tuple(found.get(env_id) for env_id in range(self._num_envs)),
            failures=self._take_failures(),
            feeder_wait_s=sum(group.stream.take_waited_s() for group in self._groups),
        )

    async def apply(self, decision: StepDecision) -> StepOutcome:
        """Apply one decision per env and advance the slots by one step."""
        calls = [group.lane.submit(group.apply, decision) for group in self._groups]
        results = await wait_for_all(calls)
        return _joined_outcome(decision, results, self._num_envs, self._take_failures())

    async def test_pass(self, step: int) -> tuple[EnvTestResult | None, ...]:
        """Evaluate every env on the test split, which no decision depends on."""
        calls = [group.lane.submit(group.test, step) for group in self._groups]
        found = _joined(await wait_for_all(calls))
        return tuple(found.get(env_id) for env_id in range(self._num_envs))

    async def snapshot(self, env_id: int) -> dict[str, Any] | None:
        """Return a copy of what is needed to rebuild an env's network; None for a failed env."""
        group = next(group for group in self._groups if env_id in group.env_ids)
        return await group.lane.run(group.snapshot, env_id)

    async def close(self) -> None:
        """Release the envs and stop the threads; the envs of an abandoned lane are not released."""
        groups = [group for group in self._groups if not group.lane.is_abandoned]
        try:
            await wait_for_all([group.lane.submit(group.release) for group in groups])
        finally:
            for lane in self.lanes:
                lane.close()

    def _take_failures(self) -> tuple[EnvFailure, ...]:
        found = [failure for group in self._groups for failure in group.take_failures()]
        return tuple(sorted(found, key=lambda failure: failure.env_id))

    def _end_starved_streams(self, feeding: Future[int]) -> None:
        """Unblock lanes waiting for batches if the feeder failed; its error is raised later."""
        if feeding.exception() is not None:
            for group in self._groups:
                group.stream.end()


def _joined(found: Iterable[dict[int, T]]) -> dict[int, T]:
    return {env_id: item for part in found for env_id, item in part.items()}


def _joined_outcome(
    decision: StepDecision,
    results: Sequence[ActionExecutionResult],
    num_envs: int,
    failures: tuple[EnvFailure, ...],
) -> StepOutcome:
    """Merge the lanes' results in env order."""
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
