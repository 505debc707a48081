"""The envs of a probe: the same messages as networks send, from closed forms and without torch."""

from functools import partial

import anyio
import msgspec
import pytest
from tests.builders.steps import all_evidence, applied
from torch.utils._python_dispatch import TorchDispatchMode

from esper.leyline.actions import ActionSpec, Blueprint, Op, Style, Tempo
from esper.leyline.jobs import merge_job
from esper.leyline.messages import EnvEvidence, Phase, StepDecision, StepEvidence, StepOutcome
from esper.leyline.probes import PROBES
from esper.leyline.stages import Stage
from esper.simic.probes.growth import Fate
from esper.simic.training.assembly.engines import build_engine, choose_engine
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import RunSetup, prepare_run
from esper.simic.training.assembly.worker_assembly import build_probe_work
from esper.simic.training.probe_env import ProbeEnv, ProbeWork
from esper.tolaria.containment import Place, contained
from esper.tolaria.stopping import StopFlag

SLOT = "r0c0"
WAIT = ActionSpec(slot_id=SLOT)
PLANT = ActionSpec(
    op=Op.GERMINATE,
    slot_id=SLOT,
    blueprint=Blueprint.CONV_LIGHT,
    style=Style.LINEAR_ADD,
    tempo=Tempo.FAST,
)


def setup_of(name: str, **training: object) -> RunSetup:
    layer = {"training": {"task": f"probe:{name}", **training}, "run": {"lanes": None}}
    job, _ = merge_job(("test", layer))
    return prepare_run(job, "wait", None, StopFlag(), parts=RunParts())


def work_of(name: str) -> ProbeWork:
    setup = setup_of(name, n_envs=1)
    return build_probe_work(setup.worker, PROBES[name].host)


def decision_of(step: int, actions: tuple[ActionSpec, ...], *, is_last: bool) -> StepDecision:
    blank = (None,) * len(actions)
    return StepDecision(
        round=0,
        step=step,
        is_last_step=is_last,
        actions=actions,
        details=blank,
        previous_rewards=blank,
    )


def play(work: ProbeWork, env: ProbeEnv, actions: dict[int, ActionSpec]) -> list[EnvEvidence]:
    """Take an env through an episode with these actions, and WAIT otherwise."""
    seen = []
    num_steps = work.config.max_epochs
    for step in range(num_steps):
        work.begin_train(env, step)
        work.finish_train(env)
        seen.append(work.validate(env, step, lambda: None))
        chosen = (actions.get(step, WAIT),)
        failures: list = []
        decision = decision_of(step, chosen, is_last=step == num_steps - 1)
        outcome = work.apply([env], decision, failures, lambda: None).outcomes[0]
        assert failures == []
        assert outcome.outcome.succeeded
    return seen


def test_a_planted_seed_ramps_the_accuracy_up_to_its_worth() -> None:
    work = work_of("patience")
    env = work.build_with(Fate(0, (False,) * 16), 0, 0)
    seen = play(work, env, {9: PLANT})
    accuracies = [evidence.signals.val_accuracy_pct for evidence in seen]
    assert accuracies[:12] == [30.0] * 12
    assert accuracies[12:] == pytest.approx([40.0, 50.0, 60.0, 60.0])
    contributions = [evidence.attribution.of(SLOT) for evidence in seen[12:]]
    assert [found.contribution_pp for found in contributions if found] == pytest.approx(
        [10.0, 20.0, 30.0, 30.0]
    )
    stages = [report.stage for evidence in seen for report in evidence.reports]
    assert stages == [Stage.TRAINING] + [Stage.BLENDING] * 3 + [Stage.HOLDING] * 2


def test_a_seed_planted_too_early_has_the_worth_of_an_early_one() -> None:
    work = work_of("patience")
    seen = play(work, work.build_with(Fate(0, (False,) * 16), 0, 0), {7: PLANT})
    assert seen[-1].signals.val_accuracy_pct == pytest.approx(10.0)


@pytest.mark.parametrize("kind", [0, 1])
def test_memory_shows_its_cue_at_step_1_and_allows_the_choice_at_step_30(kind: int) -> None:
    work = work_of("memory")
    env = work.build_with(Fate(kind, (False,) * 33), 0, 0)
    seen = play(work, env, {})
    accuracies = [evidence.signals.val_accuracy_pct for evidence in seen]
    assert accuracies[1] - accuracies[0] == (15.0 if kind == 0 else -15.0)
    assert accuracies[0] == accuracies[2]
    assert set(accuracies[2:32]) == {20.0}
    assert accuracies[32] == (50.0 if kind == 0 else 0.0)
    legal = [work.masker.legal_ops(evidence.reports) for evidence in seen]
    assert [sum(ops) for ops in legal[:30]] == [1] * 30
    assert legal[30][Op.FOSSILIZE]
    assert legal[30][Op.PRUNE]


class NoTorch(TorchDispatchMode):
    """Refuses every torch operation."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        raise AssertionError(f"{func} was called")


@pytest.mark.parametrize("name", PROBES)
def test_the_passes_of_a_probe_call_no_torch_operation(name: str) -> None:
    work = work_of(name)
    first = {} if PROBES[name].host.starts_with_seed else {0: PLANT}
    with NoTorch():
        play(work, work.build(0, 0), first)


async def rounds_of(setup: RunSetup, num_rounds: int) -> list[tuple[StepEvidence, StepOutcome]]:
    engine = build_engine(setup.worker)
    num_envs, num_steps = setup.job.training.n_envs, setup.job.training.max_epochs
    found = []
    for round_index in range(num_rounds):
        assert await engine.build_round(round_index) == ()
        for step in range(num_steps):
            evidence = await all_evidence(engine, step)
            actions = ((PLANT if step == 2 else WAIT),) * num_envs
            decision = decision_of(step, actions, is_last=step == num_steps - 1)
            found.append((evidence, await applied(engine, decision)))
    engine.close()
    return found


def without_clock(pair: tuple[StepEvidence, StepOutcome]) -> tuple[StepEvidence, StepOutcome]:
    return msgspec.structs.replace(pair[0], feeder_wait_s=0.0), pair[1]


def test_messages_do_not_depend_on_lanes_and_survive_the_wire() -> None:
    one = anyio.run(rounds_of, setup_of("context", n_envs=3), 2)
    job = setup_of("context", n_envs=3)
    lanes = msgspec.structs.replace(job.job.run, lanes=3)
    three = prepare_run(
        msgspec.structs.replace(job.job, run=lanes), "wait", None, StopFlag(), parts=RunParts()
    )
    assert choose_engine(three.worker).lanes == 3
    other = anyio.run(rounds_of, three, 2)
    assert list(map(without_clock, one)) == list(map(without_clock, other))
    for evidence, outcome in one:
        assert (
            msgspec.msgpack.decode(msgspec.msgpack.encode(evidence), type=StepEvidence) == evidence
        )
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(outcome), type=StepOutcome) == outcome


def test_an_env_does_not_depend_on_how_many_there_are() -> None:
    few = anyio.run(rounds_of, setup_of("context", n_envs=2), 1)
    many = anyio.run(rounds_of, setup_of("context", n_envs=5), 1)
    for (evidence, _), (other, _) in zip(few, many, strict=True):
        assert evidence.envs == other.envs[:2]
    kinds = {
        evidence.envs[env].signals.val_accuracy_pct for evidence, _ in many for env in range(5)
    }
    assert len(kinds) > 1


def test_a_probe_that_loses_its_accuracy_is_rolled_back_as_a_network_is() -> None:
    work = work_of("patience")
    work.spec = msgspec.structs.replace(work.spec, start_pct=80.0, end_pct=80.0, early_pp=-80.0)
    work.config = msgspec.structs.replace(
        work.config, governor=msgspec.structs.replace(work.config.governor, min_samples=2)
    )
    env = work.build_with(Fate(0, (False,) * 16), 0, 0)
    seen = []
    for step in range(10):
        work.begin_train(env, step)
        work.finish_train(env)
        seen.append(work.validate(env, step, lambda: None))
        decision = decision_of(step, ((PLANT if step == 2 else WAIT),), is_last=False)
        with contained([], 0, Place(Phase.APPLY, step)):
            outcome = work.apply([env], decision, [], lambda: None).outcomes[0]
        if seen[-1].panic is not None:
            break
    assert outcome.rollback is not None
    assert outcome.rollback.pruned_slots == (SLOT,)
    assert env.model.num_seed_params == 0
    assert outcome.lstm_hidden.num_steps == 0


def test_a_probe_has_no_network_to_save() -> None:
    setup = setup_of("constant", n_envs=1)
    engine = build_engine(setup.worker)

    async def saved() -> object:
        await engine.build_round(0)
        found = await engine.snapshot(0)
        engine.close()
        return found

    assert anyio.run(partial(saved)) is None
