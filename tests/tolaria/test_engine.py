"""The lane engine with work that only writes down what is done to it."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import anyio
import pytest
from tests.builders.messages import env_evidence, make_signals
from tests.builders.steps import all_evidence, applied

from esper.leyline.actions import ActionOutcome, ActionSpec, Op
from esper.leyline.errors import EnvFaultError, InterruptedRunError, RunFailedError
from esper.leyline.messages import (
    ActionExecutionResult,
    EnvEvidence,
    EnvFailure,
    EnvOutcome,
    LstmRow,
    MemoryStats,
    Phase,
    StepDecision,
)
from esper.tolaria.containment import Place, contained
from esper.tolaria.engine import WorkerEngine
from esper.tolaria.stopping import StopFlag
from esper.tolaria.worker import Worker

WAIT_S = 20.0
NUM_ENVS = 5
NUM_BATCHES = 7
pytestmark = pytest.mark.anyio


@dataclass(eq=False)
class NotedEnv:
    env_id: int
    round_index: int
    log: list[str] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def note(self, text: str) -> None:
        self.log.append(text)
        self.threads.add(threading.get_ident())


class NotingWork:
    """Writes down every call; breaks where a test asks for it."""

    def __init__(self) -> None:
        self.envs: dict[int, NotedEnv] = {}
        self.released: list[int] = []
        self.applied: list[tuple[int, ...]] = []
        self.fault: Callable[[str, int], None] = lambda what, env_id: None

    def _do(self, env: NotedEnv, what: str) -> None:
        self.fault(what, env.env_id)
        env.note(what)

    def build(self, round_index: int, env_id: int) -> NotedEnv:
        self.fault("build", env_id)
        env = self.envs[env_id] = NotedEnv(env_id, round_index)
        env.note("build")
        return env

    def begin_train(self, env: NotedEnv, step: int) -> None:
        self._do(env, f"begin {step}")

    def train_batch(self, env: NotedEnv, batch_index: int, batch: str) -> None:
        self._do(env, f"batch {batch_index} {batch}")

    def finish_train(self, env: NotedEnv) -> None:
        self._do(env, "finish")

    def validate(self, env: NotedEnv, step: int, beat: Callable[[], None]) -> EnvEvidence:
        beat()
        self._do(env, f"validate {step}")
        return env_evidence(env.env_id, step)

    def apply(
        self,
        envs: Sequence[NotedEnv],
        decision: StepDecision,
        failures: list[EnvFailure],
        beat: Callable[[], None],
    ) -> ActionExecutionResult:
        self.applied.append(tuple(env.env_id for env in envs))
        result = ActionExecutionResult()
        for env in envs:
            with contained(failures, env.env_id, Place(Phase.APPLY, decision.step)):
                result.outcomes.append(self._outcome(env, decision))
                if decision.is_truncated:
                    result.truncated_bootstrap_targets.append((env.env_id, decision.step))
                    result.post_action_signals.append(make_signals(step=env.env_id))
                    result.post_action_slot_reports.append(())
                    result.post_action_masks.append((env.env_id % 2 == 0, True))
            beat()
        return result

    def _outcome(self, env: NotedEnv, decision: StepDecision) -> EnvOutcome:
        action = decision.actions[env.env_id]
        assert action is not None
        self._do(env, f"apply {action.slot_id}")
        return EnvOutcome(
            env_id=env.env_id,
            outcome=ActionOutcome(action=action, effective_op=Op.WAIT, succeeded=True),
            rollback=None,
            action_effects=(),
            tick_effects=(),
            reports=(),
            num_auto_prunes=0,
            lstm_hidden=LstmRow(index=env.env_id),
            slots=(),
        )

    def memory(self, envs: Sequence[NotedEnv]) -> dict[str, MemoryStats]:
        return {}

    def release(self, env: NotedEnv) -> None:
        self.released.append(env.env_id)


def shared_batches(round_index: int, step: int) -> Iterator[Sequence[str]]:
    for index in range(NUM_BATCHES):
        yield [f"{round_index}/{step}/{index}/{env_id}" for env_id in range(NUM_ENVS)]


def decision(step: int, *, is_truncated: bool = False) -> StepDecision:
    actions = tuple(ActionSpec(slot_id=f"r0c{env_id}") for env_id in range(NUM_ENVS))
    return StepDecision(
        round=0,
        step=step,
        is_last_step=is_truncated,
        is_truncated=is_truncated,
        actions=actions,
        details=(None,) * NUM_ENVS,
        previous_rewards=(None,) * NUM_ENVS,
    )


def engine_for(
    work: NotingWork,
    num_lanes: int,
    stop: StopFlag | None = None,
    batches: Callable[[int, int], Iterable[Sequence[str]]] = shared_batches,
    *,
    has_feeder: bool = True,
) -> WorkerEngine:
    worker = Worker(
        env_ids=range(NUM_ENVS),
        num_lanes=num_lanes,
        work=work,
        batches=batches,
        stop=stop or StopFlag(),
        has_feeder=has_feeder,
    )
    return WorkerEngine([worker], num_envs=NUM_ENVS)


def expected_log(env_id: int, num_steps: int) -> list[str]:
    log = ["build"]
    for step in range(num_steps):
        log.append(f"begin {step}")
        log += [f"batch {index} 0/{step}/{index}/{env_id}" for index in range(NUM_BATCHES)]
        log += ["finish", f"validate {step}", f"apply r0c{env_id}"]
    return log


WITH_AND_WITHOUT_FEEDER = [(1, True), (1, False), (2, True), (5, True), (8, True)]


@pytest.mark.parametrize(("num_lanes", "has_feeder"), WITH_AND_WITHOUT_FEEDER)
async def test_every_env_goes_through_the_same_work_on_one_thread_for_any_number_of_lanes(
    num_lanes: int, has_feeder: bool
) -> None:
    work = NotingWork()
    engine = engine_for(work, num_lanes, has_feeder=has_feeder)
    with anyio.fail_after(WAIT_S):
        assert await engine.build_round(0) == ()
        for step in range(3):
            evidence = await all_evidence(engine, step)
            outcome = await applied(engine, decision(step, is_truncated=step == 2))
            assert [env and env.env_id for env in evidence.envs] == list(range(NUM_ENVS))
            assert [env and env.env_id for env in outcome.envs] == list(range(NUM_ENVS))
        engine.close()

    for env_id, env in work.envs.items():
        assert env.log == expected_log(env_id, 3)
        assert len(env.threads) == 1
    assert len({min(env.threads) for env in work.envs.values()}) == min(num_lanes, NUM_ENVS)
    assert sorted(work.released) == list(range(NUM_ENVS))
    assert all(lane.close(WAIT_S) for lane in engine.lanes)


@pytest.mark.parametrize(
    ("what", "phase", "batch"),
    [
        ("build", Phase.BUILD, None),
        ("begin 0", Phase.TRAIN, None),
        ("batch 3 0/0/3/2", Phase.TRAIN, 3),
        ("finish", Phase.TRAIN, None),
        ("validate 0", Phase.VALIDATE, None),
        ("apply r0c2", Phase.APPLY, None),
    ],
)
async def test_an_env_that_breaks_is_named_and_the_others_go_on_undisturbed(
    what: str, phase: Phase, batch: int | None
) -> None:
    work = NotingWork()

    def fault(doing: str, env_id: int) -> None:
        if doing == what and env_id == 2:
            raise EnvFaultError("not finite", slot_id="r0c1", layer="conv.weight")

    work.fault = fault
    engine = engine_for(work, 2)
    with anyio.fail_after(WAIT_S):
        failures = list(await engine.build_round(0))
        for step in range(2):
            evidence = await all_evidence(engine, step)
            outcome = await applied(engine, decision(step, is_truncated=step == 1))
            failures += [*evidence.failures, *outcome.failures]
        engine.close()

    assert len(failures) == 1
    failure = failures[0]
    assert (failure.env_id, failure.phase, failure.batch) == (2, phase, batch)
    assert failure.step == (None if phase is Phase.BUILD else 0)
    assert (failure.slot_id, failure.layer) == ("r0c1", "conv.weight")
    assert failure.error_type == "EnvFaultError"
    assert evidence.envs[2] is None
    assert outcome.envs[2] is None
    for env_id in {0, 1, 3, 4}:
        assert work.envs[env_id].log == expected_log(env_id, 2)


@pytest.mark.parametrize("num_lanes", [1, 2, 3])
async def test_a_lane_applies_all_its_live_envs_in_one_call_and_results_are_in_env_order(
    num_lanes: int,
) -> None:
    work = NotingWork()

    def fault(doing: str, env_id: int) -> None:
        if doing == "apply r0c1" and env_id == 1:
            raise ValueError("once")

    work.fault = fault
    engine = engine_for(work, num_lanes)
    with anyio.fail_after(WAIT_S):
        await engine.build_round(0)
        first = await applied(engine, decision(0))
        last = await applied(engine, decision(1, is_truncated=True))
        engine.close()

    every = [tuple(range(lane, NUM_ENVS, num_lanes)) for lane in range(num_lanes)]
    live = [tuple(env_id for env_id in envs if env_id != 1) for envs in every]
    assert sorted(work.applied) == sorted([*every, *live])
    assert first.truncated_bootstrap_targets == ()
    assert last.truncated_bootstrap_targets == ((0, 1), (2, 1), (3, 1), (4, 1))
    assert [item.step for item in last.post_action_signals] == [0, 2, 3, 4]
    assert last.post_action_slot_reports == ((),) * 4
    assert [row[0] for row in last.post_action_masks] == [True, True, False, True]


async def test_a_new_round_builds_every_env_anew_even_one_that_broke() -> None:
    work = NotingWork()
    breaking = {"validate 0"}

    def fault(doing: str, env_id: int) -> None:
        if doing in breaking and env_id == 1:
            raise ValueError("once")

    work.fault = fault
    engine = engine_for(work, 2)
    with anyio.fail_after(WAIT_S):
        await engine.build_round(0)
        assert (await all_evidence(engine, 0)).envs[1] is None
        breaking.clear()
        await engine.build_round(1)
        evidence = await all_evidence(engine, 0)
        engine.close()
    assert None not in evidence.envs
    assert evidence.failures == ()
    assert {env.round_index for env in work.envs.values()} == {1}


@pytest.mark.parametrize(("num_lanes", "has_feeder"), WITH_AND_WITHOUT_FEEDER[1:3])
async def test_a_data_stream_that_breaks_off_ends_the_pass_with_its_error(
    num_lanes: int, has_feeder: bool
) -> None:
    work = NotingWork()

    def broken(round_index: int, step: int) -> Iterator[Sequence[str]]:
        yield from list(shared_batches(round_index, step))[:3]
        raise OSError("data file vanished")

    engine = engine_for(work, num_lanes, batches=broken, has_feeder=has_feeder)
    with anyio.fail_after(WAIT_S):
        await engine.build_round(0)
        with pytest.raises(OSError, match="data file vanished"):
            await all_evidence(engine, 0)
        engine.close()


@pytest.mark.parametrize("has_feeder", [True, False])
async def test_a_stop_ends_a_pass_between_two_batches(has_feeder: bool) -> None:
    stop = StopFlag()
    work = NotingWork()

    def fault(doing: str, env_id: int) -> None:
        if doing.startswith("batch 2"):
            stop.set("SIGTERM")

    work.fault = fault
    engine = engine_for(work, 1, stop, has_feeder=has_feeder)
    with anyio.fail_after(WAIT_S):
        await engine.build_round(0)
        with pytest.raises(InterruptedRunError, match="SIGTERM"):
            await all_evidence(engine, 0)
        engine.close()

    for env_id, env in work.envs.items():
        # This work does not look at the stop, so its validation, which was queued, is carried out.
        assert env.log == [*expected_log(env_id, 1)[: 2 + 3], "validate 0"]


async def test_closing_does_not_wait_for_a_lane_that_hangs() -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def hang() -> None:
        has_begun.set()
        may_end.wait(WAIT_S)

    engine = engine_for(NotingWork(), 2)
    await engine.build_round(0)
    hung = engine.lanes[0]
    hung.submit(hang)
    while not has_begun.is_set():
        await anyio.lowlevel.checkpoint()
    hung.abandon(RunFailedError("stalled"))

    engine.close()
    assert hung.silent_s() > 0.0
    may_end.set()
