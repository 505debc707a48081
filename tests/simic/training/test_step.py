"""One step of all envs: the order of its calls, and what is decided together."""

import random
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from tests.builders.messages import env_evidence
from tests.simic.training.builders import make_control

from esper.leyline.actions import ActionSpec
from esper.leyline.messages import StepDecision, StepEvidence, StepOutcome
from esper.leyline.workers import Apply, Command, Reply, Train, Validate
from esper.simic.telemetry.phases import PhaseProfiler
from esper.simic.training.step import ControlThread, StepResult, run_step
from esper.tamiyo.blind import SwappedExtractor
from esper.tamiyo.features import FeatureExtractor
from esper.tolaria.engine import WorkerEngine

pytestmark = pytest.mark.anyio
WAIT_S = 20.0
OWNED = ((0, 3), (1, 4), (2, 5))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass(eq=False)
class ScriptedWorker:
    """A worker that answers when a test tells it to."""

    env_ids: tuple[int, ...]
    calls: list[tuple[Command, "Future[Reply]"]] = field(default_factory=list)

    def submit(self, command: Command) -> "Future[Reply]":
        future: Future[Reply] = Future()
        self.calls.append((command, future))
        return future

    def finish(self, *, through: type) -> None:
        """Answer the commands up to the next one of a kind."""
        while True:
            command, future = self.calls.pop(0)
            future.set_result(self._reply(command))
            if isinstance(command, through):
                return

    def _reply(self, command: Command) -> Reply:
        if isinstance(command, Validate):
            return Reply(evidence=tuple(env_evidence(env, command.step) for env in self.env_ids))
        return Reply()

    @property
    def queued(self) -> list[str]:
        return [type(command).__name__ for command, _ in self.calls]


@dataclass(eq=False)
class ScriptedControl:
    """Waits in every env, and notes what it is given."""

    decides_jointly: bool = False
    decided: list[tuple[int, ...]] = field(default_factory=list)
    recorded: list[tuple[StepEvidence, StepDecision, StepOutcome]] = field(default_factory=list)

    async def decide(self, evidence: StepEvidence) -> StepDecision:
        self.decided.append(evidence.env_ids)
        waiting = ActionSpec(slot_id="r0c0")
        return StepDecision(
            round=evidence.round,
            step=evidence.step,
            is_last_step=False,
            actions=tuple(None if env is None else waiting for env in evidence.envs),
            details=(None,) * len(evidence.envs),
            previous_rewards=(0.5,) * len(evidence.envs),
        )

    async def record(self, *messages: Any) -> str:
        self.recorded.append(messages)  # type: ignore[arg-type]
        return "record"


@dataclass(eq=False)
class Scene:
    """Three workers with two envs each, and a step in progress."""

    control: ScriptedControl = field(default_factory=ScriptedControl)
    workers: Sequence[ScriptedWorker] = field(
        default_factory=lambda: [ScriptedWorker(owned) for owned in OWNED]
    )
    profiler: PhaseProfiler = field(default_factory=PhaseProfiler)
    inspected: list[tuple[int, ...]] = field(default_factory=list)
    done: StepResult | None = None

    async def run(self, *, is_inspected: bool = False) -> None:
        control: Any = self.control
        ports: Any = self.workers
        self.done = await run_step(
            WorkerEngine(ports, num_envs=6),
            control,
            3,
            profiler=self.profiler,
            before_decisions=self._inspect if is_inspected else None,
        )

    async def _inspect(self, evidence: StepEvidence) -> None:
        self.inspected.append(evidence.env_ids)


async def until_idle() -> None:
    """Let every other task go as far as it can."""
    await anyio.wait_all_tasks_blocked()


async def test_worker_that_is_ready_goes_on_while_the_others_still_train() -> None:
    scene = Scene()
    first, second, third = scene.workers
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.run)
            await until_idle()
            second.finish(through=Validate)
            await until_idle()

            assert scene.control.decided == [(1, 4)]
            assert second.queued == ["Apply", "Train", "Validate"]
            assert first.queued == third.queued == ["Train", "Validate"]

            first.finish(through=Validate)
            third.finish(through=Validate)
            for worker in scene.workers:
                await until_idle()
                worker.finish(through=Apply)

    assert sorted(env for part in scene.control.decided for env in part) == list(range(6))
    assert all(worker.queued == ["Train", "Validate"] for worker in scene.workers)


async def test_workers_that_are_ready_at_once_are_decided_at_once() -> None:
    scene = Scene()
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.run)
            await until_idle()
            for worker in scene.workers:
                worker.finish(through=Validate)
            await until_idle()
            for worker in scene.workers:
                worker.finish(through=Apply)

    assert scene.control.decided == [tuple(range(6))]


@pytest.mark.parametrize("seed", range(6))
async def test_what_a_step_ends_with_does_not_depend_on_who_is_ready_first(seed: int) -> None:
    scene = Scene()
    order = random.Random(seed).sample(list(scene.workers), len(OWNED))
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scene.run)
            for worker in order:
                await until_idle()
                worker.finish(through=Validate)
            for worker in reversed(order):
                await until_idle()
                worker.finish(through=Apply)

    done = scene.done
    assert done is not None
    assert [env and env.env_id for env in done.evidence.envs] == list(range(6))
    assert done.evidence.env_ids == tuple(range(6))
    assert None not in done.decision.actions
    assert scene.control.recorded == [(done.evidence, done.decision, done.outcome)]
    assert done.record == "record"
    profile = scene.profiler.drain()
    assert profile is not None
    assert [item.phase for item in profile.phases] == ["passes", "decide", "apply", "record"]


@pytest.mark.parametrize("is_inspected", [True, False])
async def test_decisions_that_need_all_envs_wait_for_all(is_inspected: bool) -> None:
    scene = Scene(control=ScriptedControl(decides_jointly=not is_inspected))
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: scene.run(is_inspected=is_inspected))
            for worker in scene.workers:
                assert scene.control.decided == scene.inspected == []
                await until_idle()
                worker.finish(through=Validate)
            await until_idle()
            for worker in scene.workers:
                worker.finish(through=Apply)

    assert scene.control.decided == [tuple(range(6))]
    assert scene.inspected == ([tuple(range(6))] if is_inspected else [])


@pytest.mark.parametrize(
    ("extractor", "num_envs", "expected"),
    [
        (FeatureExtractor(("r0c0",), 4), 512, False),
        (FeatureExtractor(("r0c0",), 4), 513, True),
        (SwappedExtractor(("r0c0",), 4), 2, True),
    ],
)
async def test_blind_policy_and_very_many_envs_are_decided_together(
    extractor: FeatureExtractor, num_envs: int, expected: bool
) -> None:
    control = make_control(num_envs=num_envs)
    control.extractor = extractor
    thread = ControlThread(control)
    try:
        assert thread.decides_jointly is expected
    finally:
        thread.close()


class BrokenWorkerError(Exception):
    """What a test lets a worker fail with."""


async def test_step_whose_worker_fails_waits_for_the_others_before_it_raises() -> None:
    scene = Scene()
    raised: list[BaseException] = []

    async def run() -> None:
        try:
            await scene.run()
        except BrokenWorkerError as error:
            raised.append(error)

    first, second, third = scene.workers
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await until_idle()
            assert first.queued == [Train.__name__, Validate.__name__]
            for _, future in first.calls:
                future.set_exception(BrokenWorkerError("gone"))
            await until_idle()
            assert raised == []
            second.finish(through=Validate)
            third.finish(through=Validate)

    assert [str(error) for error in raised] == ["gone"]


async def test_a_closed_control_thread_has_ended() -> None:
    control = ControlThread(ScriptedControl())  # type: ignore[arg-type]
    await control.run(int)

    control.close()

    assert not control.lane._thread.is_alive()
