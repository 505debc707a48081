"""Decisions carried out on real bodies: what each leaves behind, vetoed, refused, rolled back."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NoReturn

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.messages import env_evidence, make_signals
from tests.kasmina.tools import has_same_bits
from tests.simic.training.envs import SLOTS, World, germination, grow, poison, world_of

from esper.kasmina.lifecycle import tick
from esper.kasmina.seed import PruneCause
from esper.leyline.actions import (
    BLUEPRINTS,
    BLUEPRINTS_BY_TOPOLOGY,
    HEAD_SPECS,
    HEADS,
    ActionSpec,
    Blueprint,
    Head,
    Op,
    Topology,
    head_sizes,
)
from esper.leyline.effects import ActionLogged, Fossilization, Pruning
from esper.leyline.errors import EnvFaultError, InterruptedRunError
from esper.leyline.legality import is_legal
from esper.leyline.messages import (
    ActionExecutionResult,
    DecisionDetail,
    EnvFailure,
    EnvOutcome,
    Panic,
    PanicReason,
    Phase,
    StepDecision,
)
from esper.leyline.payloads import MorphologyCausalLog, SeedGerminated
from esper.leyline.signals import TrainingSignals
from esper.leyline.stages import COOLDOWN_STAGES, LifecycleRules, Stage
from esper.simic.training.action_execution import execute_actions, parse_sampled_action
from esper.tamiyo.masks import ActionMasker

WAIT = ActionSpec(slot_id=SLOTS[0])
PANIC = Panic(reason=PanicReason.LOBOTOMY, loss=1.6, threshold=12.0, consecutive_anomalies=0)
NEUTRAL = [HEAD_SPECS[head].neutral for head in HEADS]


def index_of(head: Head) -> int:
    return HEADS.index(head)


# --- Indices -------------------------------------------------------------------------------------


OF_RUN = {Head.SLOT: ("slot_id", SLOTS), Head.BLUEPRINT: ("blueprint", BLUEPRINTS)}


@pytest.mark.parametrize("head", HEADS)
def test_every_index_of_a_head_names_its_choice_and_nothing_else(head: Head) -> None:
    neutral = parse_sampled_action(NEUTRAL, SLOTS)
    for index in range(head_sizes(len(SLOTS))[head]):
        indices = [*NEUTRAL]
        indices[index_of(head)] = index
        action = parse_sampled_action(indices, SLOTS)
        choices = HEAD_SPECS[head].choices
        if choices is None:
            name, values = OF_RUN[head]
            assert action == msgspec.structs.replace(neutral, **{name: values[index]})
        else:
            assert action == msgspec.structs.replace(neutral, **{head.value: choices(index)})


rows = st.tuples(*(st.integers(0, size - 1) for size in head_sizes(len(SLOTS)).values()))


@given(rows)
def test_indices_and_actions_are_the_same_thing(row: tuple[int, ...]) -> None:
    action = parse_sampled_action(row, SLOTS)
    places = {name: list(values).index(getattr(action, name)) for name, values in OF_RUN.values()}
    fields = [getattr(action, head.value) for head in HEADS if head not in OF_RUN]
    assert (places["slot_id"], places["blueprint"], *fields) == row
    assert parse_sampled_action(list(row), list(SLOTS)) == action


def test_neutral_indices_are_a_plain_wait() -> None:
    assert parse_sampled_action(NEUTRAL, SLOTS) == WAIT


@pytest.mark.parametrize("row", [NEUTRAL[:-1], [*NEUTRAL, 0]])
def test_a_row_of_another_length_is_refused(row: list[int]) -> None:
    with pytest.raises(ValueError, match="argument"):
        parse_sampled_action(row, SLOTS)


# --- Results -------------------------------------------------------------------------------------


def execute(
    world: World,
    *actions: ActionSpec | None,
    panics: dict[int, Panic] | None = None,
    is_truncated: bool = False,
    details: tuple[DecisionDetail | None, ...] | None = None,
    previous_rewards: tuple[float | None, ...] | None = None,
    signals: TrainingSignals | None = None,
    failures: list[EnvFailure] | None = None,
    beat: Callable[[], None] = lambda: None,
) -> ActionExecutionResult:
    nothing = (None,) * len(actions)
    for env in world.envs:
        env.evidence = env_evidence(
            env.env_idx,
            9,
            signals=signals or make_signals(val_accuracy_pct=40.0 + env.env_idx),
            reports=env.reports,
            panic=(panics or {}).get(env.env_idx),
        )
    decision = StepDecision(
        round=3,
        step=9,
        is_last_step=True,
        is_truncated=is_truncated,
        actions=actions,
        details=details or nothing,
        previous_rewards=previous_rewards or nothing,
    )
    found: list[EnvFailure] = []
    result = execute_actions(
        world.envs,
        decision,
        rules=world.work.action_rules,
        masker=world.work.masker,
        failures=found if failures is None else failures,
        beat=beat,
    )
    assert not found, found
    return result


def test_outcomes_signals_and_reports_are_in_order_and_after_the_tick() -> None:
    world = world_of(n_envs=2)
    result = execute(world, germination("r0c1"), WAIT, is_truncated=True)
    assert [outcome.env_id for outcome in result.outcomes] == [0, 1]
    assert [signals.val_accuracy_pct for signals in result.post_action_signals] == [40.0, 41.0]
    assert result.post_action_slot_reports == [env.reports for env in world.envs]
    [report] = result.post_action_slot_reports[0]
    assert (report.slot_id, report.stage, report.age_steps) == ("r0c1", Stage.GERMINATED, 1)
    assert report.accuracy_at_germination_pct == 40.0
    for outcome, env in zip(result.outcomes, world.envs, strict=True):
        assert outcome.reports == env.reports


def test_no_return_goes_on_beyond_a_step_that_cuts_nothing_off() -> None:
    result = execute(world_of(n_envs=2), WAIT, WAIT)
    assert result.truncated_bootstrap_targets == []
    assert result.post_action_signals == []
    assert result.post_action_slot_reports == []
    assert result.post_action_masks == []


def test_where_episodes_are_cut_off_every_return_goes_on_but_that_of_a_rolled_back_env() -> None:
    world = world_of(n_envs=3)
    result = execute(world, WAIT, None, germination(), panics={1: PANIC}, is_truncated=True)
    assert result.truncated_bootstrap_targets == [(0, 9), (2, 9)]
    cut_off = [world.envs[0], world.envs[2]]
    assert [signals.val_accuracy_pct for signals in result.post_action_signals] == [40.0, 42.0]
    assert result.post_action_slot_reports == [env.reports for env in cut_off]
    expected = world.work.masker.masks([env.reports for env in cut_off])
    assert [list(row) for row in result.post_action_masks] == expected.op.tolist()
    assert result.post_action_masks[0] != result.post_action_masks[1]


@pytest.mark.parametrize("where", ["action", "tick", "masks"])
def test_an_env_that_raises_is_named_and_the_others_of_its_lane_go_on(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, twin = world_of(n_envs=3), world_of(n_envs=3)
    model, legal_ops, beats = world.envs[1].model, ActionMasker.legal_ops, []

    def refuse(*_: object) -> NoReturn:
        raise EnvFaultError("torn", slot_id="r0c0")

    def refuse_the_second(masker: ActionMasker, reports: Sequence[Any]) -> Any:
        return refuse() if len(beats) == 1 else legal_ops(masker, reports)

    if where == "masks":
        monkeypatch.setattr(ActionMasker, "legal_ops", refuse_the_second)
    else:
        monkeypatch.setattr(model, {"action": "germinate", "tick": "tick"}[where], refuse)
    actions = (WAIT, germination("r0c0"), germination("r0c1"))
    failures: list[EnvFailure] = []

    result = execute(
        world, *actions, is_truncated=True, failures=failures, beat=lambda: beats.append(1)
    )

    monkeypatch.undo()
    expected = execute(twin, *actions, is_truncated=True)
    assert [(it.env_id, it.phase, it.step) for it in failures] == [(1, Phase.APPLY, 9)]
    assert (failures[0].error_type, failures[0].slot_id) == ("EnvFaultError", "r0c0")
    assert result.outcomes == [expected.outcomes[0], expected.outcomes[2]]
    assert result.truncated_bootstrap_targets == [(0, 9), (2, 9)]
    assert len(result.post_action_masks) == len(result.post_action_signals) == 2
    assert len(beats) == 3


def test_a_request_to_stop_is_no_fault_of_an_env(monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()

    def stop(*_: object) -> NoReturn:
        raise InterruptedRunError("SIGTERM")

    monkeypatch.setattr(world.env.model, "tick", stop)
    failures: list[EnvFailure] = []

    with pytest.raises(InterruptedRunError):
        execute(world, WAIT, failures=failures)
    assert failures == []


def test_seeds_are_named_after_episode_env_and_count() -> None:
    world = world_of(n_envs=2)
    execute(world, WAIT, germination("r0c0"))
    world.envs[1].model.slot("r0c0").prune(PruneCause())
    while world.envs[1].reports:
        execute(world, WAIT, WAIT)
    execute(world, WAIT, germination("r0c0"))
    assert [report.seed_id for report in world.envs[1].reports] == ["ep1_env1_seed_1"]


# --- Vetoes and refusals -------------------------------------------------------------------------


def test_a_vetoed_action_counts_as_waiting_and_changes_nothing() -> None:
    world = world_of()
    grow(world.env, "r0c0", Stage.TRAINING)
    world.env.model.slot("r0c0").prune(PruneCause())
    world.env.outbox.clear()
    before = {name: value.clone() for name, value in world.env.model.state_dict().items()}
    expected = [tick(slot.state, slot.rules).state for slot in world.env.model.all_slots()]
    [outcome] = execute(world, germination("r0c1")).outcomes
    done = outcome.outcome
    assert (done.effective_op, done.succeeded) == (Op.WAIT, False)
    assert done.veto_reason == "slot 'r0c0' is in stage PRUNED"
    assert done.failure_reason is None
    assert [slot.state for slot in world.env.model.all_slots()] == expected
    after = world.env.model.state_dict()
    assert before.keys() == after.keys()
    assert all(has_same_bits(value, after[name]) for name, value in before.items())
    assert set(world.env.epoch_counts.values()) == {0}
    assert world.env.num_germinated == 0
    assert phases(outcome) == ["proposal", "verdict"]


def test_measurements_that_are_not_finite_veto_every_op_but_waiting() -> None:
    world = world_of(n_envs=2)
    done = execute(world, germination(), WAIT, signals=make_signals(val_loss=float("nan")))
    vetoed, waited = (outcome.outcome for outcome in done.outcomes)
    assert vetoed.veto_reason == "val_loss is not finite"
    assert (waited.succeeded, waited.veto_reason) == (True, None)


def test_an_action_that_its_gate_refuses_is_credited_and_fails() -> None:
    world = world_of(lifecycle=LifecycleRules(min_training_steps=5))
    grow(world.env, "r0c0", Stage.TRAINING)
    [outcome] = execute(world, ActionSpec(op=Op.ADVANCE, slot_id="r0c0")).outcomes
    done = outcome.outcome
    assert (done.effective_op, done.succeeded) == (Op.ADVANCE, False)
    assert done.failure_reason == "gate G2 failed: training_steps"
    assert (world.env.epoch_counts["r0c0"], world.env.epoch_successes["r0c0"]) == (1, 0)
    assert phases(outcome) == ["proposal", "verdict", "mutation", "dispatch"]
    assert links(outcome)[-1].reason == done.failure_reason


def test_rewards_are_credited_to_the_slot_that_the_step_before_acted_on() -> None:
    world = world_of()
    execute(world, germination("r0c1"))
    execute(world, WAIT, previous_rewards=(2.5,))
    execute(world, ActionSpec(op=Op.ADVANCE, slot_id="r0c1"), previous_rewards=(100.0,))
    execute(world, WAIT, previous_rewards=(-1.0,))
    assert world.env.epoch_rewards == {"r0c0": 0.0, "r0c1": 1.5, "r0c2": 0.0}
    assert world.env.epoch_counts["r0c1"] == world.env.epoch_successes["r0c1"] == 2


# --- Causal chains -------------------------------------------------------------------------------


def links(outcome: EnvOutcome) -> list[MorphologyCausalLog]:
    return [it.payload for it in outcome.action_effects if isinstance(it, ActionLogged)]


def phases(outcome: EnvOutcome) -> list[str]:
    return [link.phase for link in links(outcome)]


def test_waiting_leaves_no_trace() -> None:
    [outcome] = execute(world_of(), WAIT).outcomes
    assert outcome.action_effects == outcome.tick_effects == ()


def test_a_chain_leads_from_the_proposal_over_the_slots_events_to_the_commit() -> None:
    detail = DecisionDetail(
        value_estimate=0.0,
        op_probabilities={},
        heads={},
        observation_hash="0123456789abcdef",
    )
    [outcome] = execute(world_of(), germination("r0c2"), details=(detail,)).outcomes
    assert phases(outcome) == ["proposal", "verdict", "mutation", "dispatch", "commit"]
    kinds = [type(effect.payload) for effect in outcome.action_effects]
    assert kinds.index(SeedGerminated) == 4
    for link in links(outcome):
        assert link.action_id == "r3-s9-e0-r0c2-GERMINATE"
        assert (link.op, link.slot_id, link.blueprint) == ("GERMINATE", "r0c2", "conv_light")
        assert link.observation_hash == "0123456789abcdef"
    assert [link.approved for link in links(outcome)] == [None, True, None, None, None]


def test_a_fossilization_ends_its_chain_by_its_own_name() -> None:
    world = world_of()
    grow(world.env, "r0c0", Stage.HOLDING)
    [outcome] = execute(world, ActionSpec(op=Op.FOSSILIZE, slot_id="r0c0")).outcomes
    assert phases(outcome)[-2:] == ["dispatch", "fossilization"]
    assert any(isinstance(effect, Fossilization) for effect in outcome.action_effects)


def test_chains_add_up_over_any_walk() -> None:
    random, count, approved = Random(4), Counter[str](), 0
    for _ in range(6):
        world = world_of(n_envs=2)
        for _ in range(20):
            panics = {0: PANIC} if random.random() < 0.1 else {}
            actions = [drawn(world, env_id, random) for env_id in range(2)]
            for outcome in execute(world, *actions, panics=panics).outcomes:
                chain = links(outcome)
                count.update(link.phase for link in chain)
                approved += sum(link.approved is True for link in chain)
                assert len({link.action_id for link in chain}) <= 1
    assert count["proposal"] == count["verdict"] > 0
    assert count["mutation"] == approved == count["dispatch"] > 0
    assert 0 < count["commit"] + count["fossilization"] <= count["dispatch"]
    assert count["rollback"] == count["cooldown"] == count["audit"] > 0


def drawn(world: World, env_id: int, random: Random) -> ActionSpec:
    blueprints = [*BLUEPRINTS_BY_TOPOLOGY[Topology.CNN], Blueprint.NOOP]
    candidates = [
        ActionSpec(op=op, slot_id=slot_id, blueprint=random.choice(blueprints))
        for op, slot_id in itertools.product(Op, SLOTS)
    ]
    reports, rules = world.envs[env_id].reports, world.work.action_rules
    legal = [action for action in candidates if is_legal(action, reports, rules)]
    return random.choice(legal if random.random() < 0.7 else candidates)


# --- Rollbacks -----------------------------------------------------------------------------------


def test_a_rollback_takes_the_actions_place() -> None:
    world = world_of()
    grow(world.env, "r0c0", Stage.BLENDING)
    [outcome] = execute(world, germination("r0c1"), panics={0: PANIC}).outcomes
    done = outcome.outcome
    assert (done.effective_op, done.succeeded, done.action) == (Op.WAIT, False, WAIT)
    assert outcome.rollback is not None
    assert outcome.rollback.panic is PANIC
    assert outcome.rollback.pruned_slots == ("r0c0",)
    assert outcome.num_auto_prunes == 1
    assert world.env.model.slot("r0c1").state is None
    assert phases(outcome) == ["rollback", "cooldown", "audit"]
    assert {link.reason for link in links(outcome)} == {"lobotomy"}
    [pruned] = [it.payload for it in outcome.action_effects if isinstance(it, Pruning)]
    assert pruned.reason == "governor_lobotomy"
    assert world.env.epoch_counts == dict.fromkeys(SLOTS, 0)


def test_optimizers_remember_nothing_after_a_rollback_and_go_on_with_the_same_parameters() -> None:
    world = world_of()
    grow(world.env, "r0c0", Stage.FOSSILIZED)
    world.env.governor.take_snapshot()
    grow(world.env, "r0c1", Stage.HOLDING)
    world.look()
    optimizers = [world.env.host_optimizer, *world.env.seed_optimizers]
    assert all(optimizer.state for optimizer in optimizers)
    owned = [id(p) for p in world.env.host_optimizer.param_groups[0]["params"]]
    execute(world, None, panics={0: PANIC})
    assert not any(optimizer.state for optimizer in optimizers)
    assert owned == [id(p) for p in world.env.model.host_parameters()]
    assert len(world.env.seed_optimizers) == 1
    world.look()
    assert all(o.state for o in (world.env.host_optimizer, *world.env.seed_optimizers))


def test_a_fossil_made_since_the_last_snapshot_comes_back_with_its_weights() -> None:
    world = world_of()
    grow(world.env, "r0c0", Stage.HOLDING)
    execute(world, ActionSpec(op=Op.FOSSILIZE, slot_id="r0c0"))
    kept = {name: value.clone() for name, value in world.env.model.state_dict().items()}
    with torch.no_grad():
        for parameter in world.env.model.parameters():
            parameter.fill_(float("nan"))
    execute(world, None, panics={0: PANIC})
    after = world.env.model.state_dict()
    assert world.env.model.num_fossils == 1
    assert all(has_same_bits(value, after[name]) for name, value in kept.items())


def test_a_rollback_of_one_env_leaves_the_others_alone() -> None:
    world, twin = world_of(n_envs=2), world_of(n_envs=2)
    for it in (world, twin):
        grow(it.envs[1], "r0c0", Stage.TRAINING)
    execute(world, None, WAIT, panics={0: PANIC})
    execute(twin, WAIT, WAIT)
    assert world.envs[1].reports == twin.envs[1].reports
    ours, theirs = (it.envs[1].model.state_dict() for it in (world, twin))
    assert all(has_same_bits(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize("panic_step", [0, 2, 4])
def test_an_env_that_panics_at_any_step_goes_on_from_its_last_good_weights(panic_step: int) -> None:
    world = world_of(max_epochs=5)
    seen: list[EnvOutcome] = []
    for step in range(5):
        world.train()
        if step == panic_step:
            poison(world.env)
        [evidence] = world.validate()
        assert (evidence.panic is not None) is (step == panic_step)
        seen += world.act(germination("r0c0") if step == 1 else WAIT)
        assert all(p.isfinite().all() for p in world.env.model.parameters())
    assert [outcome.rollback is not None for outcome in seen] == [
        step == panic_step for step in range(5)
    ]
    growing = [it for it in world.env.reports if it.stage not in COOLDOWN_STAGES]
    assert len(growing) == int(panic_step == 0)
