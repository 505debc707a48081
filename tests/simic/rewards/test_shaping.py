"""Shaping moves reward in time and never adds any."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.messages import make_report
from tests.simic.rewards.builders import GAMMA, inputs, result, scheme, terms

from esper.leyline.actions import Op
from esper.leyline.config import TrainingConfig
from esper.leyline.errors import ContractError
from esper.leyline.jobs import merge_job
from esper.leyline.rewards import (
    EpisodeEnd,
    LossRewardConfig,
    Potential,
    RewardFamily,
    RewardMemory,
    RewardMode,
    SlotStage,
)
from esper.leyline.stages import COOLDOWN_STAGES, TRANSITIONS, Stage
from esper.leyline.tasks import task_named
from esper.simic.rewards.dispatcher import compute_reward
from esper.simic.rewards.inputs import memory_at
from esper.simic.rewards.scheme import RewardScheme, scheme_of
from esper.simic.rewards.shaping import network_potential, slot_potential

SHAPED_SCHEMES = [
    scheme(RewardMode.SHAPED),
    scheme(RewardMode.ESCROW),
    scheme(RewardMode.BASIC),
    scheme(RewardMode.BASIC_PLUS),
    scheme(RewardMode.SIMPLIFIED),
    scheme(RewardMode.SHAPED, RewardFamily.LOSS),
]

slot_stages = st.builds(SlotStage, stage=st.sampled_from(Stage), steps_in_stage=st.integers(0, 20))
states = st.lists(slot_stages, max_size=4).map(tuple)
moves = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 9), st.sampled_from(Op)), min_size=1, max_size=30
)


def walk(choices) -> list[tuple[SlotStage, ...]]:
    """Return the states of three slots that move one at a time along the lifecycle."""
    slots = [SlotStage(stage=Stage.DORMANT, steps_in_stage=0)] * 3
    visited = []
    for moved, choice, _ in choices:
        targets = TRANSITIONS[slots[moved].stage]
        slots = [
            SlotStage(stage=slot.stage, steps_in_stage=slot.steps_in_stage + 1) for slot in slots
        ]
        if targets:
            slots[moved] = SlotStage(stage=targets[choice % len(targets)], steps_in_stage=0)
        visited.append(tuple(slot for slot in slots if slot.stage is not Stage.DORMANT))
    return visited


def shaping_of(visited, start: float, rules: RewardScheme, ops) -> float:
    """Return the discounted sum of the shaping terms of a finished episode."""
    memory, total = RewardMemory(potential=start), 0.0
    for step, (after, op) in enumerate(zip(visited, ops, strict=True)):
        here = inputs(
            op=op,
            target_slot="r0c0",
            step=step,
            num_steps=len(visited),
            memory=memory,
            slots_after=after,
        )
        outcome = compute_reward(here, rules)
        total += GAMMA**step * outcome.components.pbrs
        memory = outcome.memory
    return total


def weight_of(rules: RewardScheme) -> float:
    is_loss = rules.family is RewardFamily.LOSS
    return rules.loss_config.pbrs_weight if is_loss else rules.config.pbrs_weight


every_shaped_scheme = pytest.mark.parametrize(
    "rules", SHAPED_SCHEMES, ids=lambda rules: f"{rules.family}-{rules.mode}"
)


@every_shaped_scheme
@settings(max_examples=25, deadline=None)
@given(moves)
def test_shaping_of_a_finished_episode_adds_up_to_nothing(rules: RewardScheme, choices) -> None:
    visited, ops = walk(choices), [op for _, _, op in choices]
    assert shaping_of(visited, 0.0, rules, ops) == pytest.approx(0.0, abs=1e-9)


@every_shaped_scheme
@settings(max_examples=25, deadline=None)
@given(states, st.lists(states, min_size=1, max_size=20))
def test_shaping_of_a_finished_episode_takes_back_the_first_potential(
    rules: RewardScheme, first, visited
) -> None:
    start = network_potential(first, rules)
    total = shaping_of(visited, start, rules, [Op.WAIT] * len(visited))
    assert total == pytest.approx(-weight_of(rules) * start, abs=1e-9)


@every_shaped_scheme
@settings(max_examples=25, deadline=None)
@given(states, st.lists(states, min_size=1, max_size=20))
def test_shaping_of_a_truncated_episode_goes_on_from_the_last_potential(
    rules: RewardScheme, first, visited
) -> None:
    rules = msgspec.structs.replace(rules, episode_end=EpisodeEnd.BOOTSTRAP)
    start, last = (network_potential(state, rules) for state in (first, visited[-1]))
    total = shaping_of(visited, start, rules, [Op.WAIT] * len(visited))
    expected = weight_of(rules) * (GAMMA ** len(visited) * last - start)
    assert total == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("mode", RewardMode)
def test_episodes_terminate_wherever_the_reward_has_a_terminal_term(mode: RewardMode) -> None:
    assert scheme(mode).episode_end is EpisodeEnd.TERMINATE
    is_disabled = mode not in (RewardMode.SPARSE, RewardMode.MINIMAL)
    expected = EpisodeEnd.BOOTSTRAP if is_disabled else EpisodeEnd.TERMINATE
    assert scheme(mode, disable_terminal_reward=True).episode_end is expected


def test_episodes_of_the_loss_family_terminate_while_the_final_loss_counts() -> None:
    found = [
        scheme(family=RewardFamily.LOSS, loss=LossRewardConfig(terminal_weight=w)).episode_end
        for w in (1.0, 0.0)
    ]
    assert found == [EpisodeEnd.TERMINATE, EpisodeEnd.BOOTSTRAP]


@pytest.mark.parametrize("wanted", EpisodeEnd)
def test_the_configured_end_of_an_episode_wins(wanted: EpisodeEnd) -> None:
    config = TrainingConfig(episode_end=wanted)
    assert scheme_of(config, task_named("digits")).episode_end is wanted


@settings(max_examples=30, deadline=None)
@given(states, states, st.sampled_from(Op), st.sampled_from(["r0c0", "r0c1", "r0c2"]))
def test_shaping_does_not_depend_on_which_slot_is_acted_on(before, after, op, slot_id) -> None:
    memory = RewardMemory(potential=network_potential(before, scheme()))
    acted = inputs(op=op, target_slot=slot_id, slots_after=after, memory=memory)
    waited = inputs(slots_after=after, memory=memory)
    assert terms(acted).pbrs == terms(waited).pbrs


@pytest.mark.parametrize("stage", [Stage.DORMANT, Stage.UNKNOWN, *sorted(COOLDOWN_STAGES)])
def test_a_slot_without_a_seed_has_no_potential_however_long_it_waits(stage: Stage) -> None:
    assert slot_potential(SlotStage(stage=stage, steps_in_stage=9), scheme().config) == 0.0


@pytest.mark.parametrize(
    ("stage", "steps", "potential"),
    [
        (Stage.GERMINATED, 0, 1.0),
        (Stage.TRAINING, 2, 2.6),
        (Stage.BLENDING, 1, 3.8),
        (Stage.HOLDING, 7, 7.5),
        (Stage.FOSSILIZED, 0, 6.0),
    ],
)
def test_potential_is_the_stage_and_a_capped_time_in_it(stage, steps, potential) -> None:
    slot = SlotStage(stage=stage, steps_in_stage=steps)
    assert slot_potential(slot, scheme().config) == pytest.approx(potential)


def test_potentials_of_slots_add_up() -> None:
    slots = [
        SlotStage(stage=Stage.TRAINING, steps_in_stage=1),
        SlotStage(stage=Stage.FOSSILIZED, steps_in_stage=0),
    ]
    assert network_potential(slots, scheme()) == pytest.approx(2.3 + 6.0)
    assert network_potential(slots, scheme(family=RewardFamily.LOSS)) == pytest.approx(8.0)


@pytest.mark.parametrize("mode", [RewardMode.SPARSE, RewardMode.MINIMAL])
def test_sparse_modes_are_not_shaped(mode: RewardMode) -> None:
    after = (SlotStage(stage=Stage.HOLDING, steps_in_stage=0),)
    assert terms(inputs(slots_after=after), mode).pbrs == 0.0


def test_shaping_can_be_switched_off() -> None:
    after = (SlotStage(stage=Stage.HOLDING, steps_in_stage=0),)
    assert terms(inputs(slots_after=after), disable_pbrs=True).pbrs == 0.0


def test_germinating_and_pruning_again_gains_nothing() -> None:
    germinated = (SlotStage(stage=Stage.GERMINATED, steps_in_stage=0),)
    pruned = (SlotStage(stage=Stage.PRUNED, steps_in_stage=0),)
    first = result(inputs(op=Op.GERMINATE, target_slot="r0c0", slots_after=germinated))
    second = result(inputs(slots_after=pruned, memory=first.memory))
    gained = first.components.pbrs + GAMMA * second.components.pbrs
    assert gained == pytest.approx(0.0, abs=1e-12)


def test_a_new_segment_starts_from_the_fossils_that_are_there() -> None:
    report = make_report(stage=Stage.FOSSILIZED, steps_in_stage=0)
    memory = memory_at([report], scheme())
    after = (SlotStage(stage=Stage.FOSSILIZED, steps_in_stage=0),)
    found = terms(inputs(slots_after=after, memory=memory)).pbrs
    assert found == pytest.approx(0.3 * (GAMMA - 1.0) * 6.0)


ACCURACY_SCHEMES = [
    scheme(mode, pbrs_potential=Potential.ACCURACY, pbrs_weight=10.0, pbrs_committed_share=0.25)
    for mode in RewardMode
    if mode not in (RewardMode.SPARSE, RewardMode.MINIMAL)
]
percentages = st.floats(0.0, 100.0)


def accuracy_shaping_of(readings, rules: RewardScheme) -> list[float]:
    """Return the shaping terms of an episode with these accuracies, whole and committed."""
    memory, found = memory_at((), rules), []
    for step, (whole, committed) in enumerate(readings):
        here = inputs(
            step=step,
            num_steps=len(readings),
            val_accuracy_pct=whole,
            committed_accuracy_pct=committed,
            memory=memory,
        )
        outcome = compute_reward(here, rules)
        found.append(outcome.components.pbrs)
        memory = outcome.memory
    return found


@pytest.mark.parametrize("rules", ACCURACY_SCHEMES, ids=lambda rules: rules.mode)
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(percentages, percentages), min_size=1, max_size=30))
def test_shaping_by_accuracy_adds_up_to_nothing(rules: RewardScheme, readings) -> None:
    found = accuracy_shaping_of(readings, rules)
    total = sum(GAMMA**step * term for step, term in enumerate(found))
    assert total == pytest.approx(0.0, abs=1e-9)


def test_shaping_by_accuracy_pays_each_gain_when_it_is_measured() -> None:
    rules = scheme(
        RewardMode.SIMPLIFIED,
        pbrs_potential=Potential.ACCURACY,
        pbrs_weight=10.0,
        pbrs_committed_share=0.25,
    )
    found = accuracy_shaping_of([(20.0, 20.0), (60.0, 20.0), (60.0, 60.0), (60.0, 60.0)], rules)
    potentials = [0.0, 0.2, 0.75 * 0.6 + 0.25 * 0.2, 0.6, 0.0]
    expected = [10.0 * (GAMMA * after - before) for before, after in itertools.pairwise(potentials)]
    assert found == pytest.approx(expected)


def test_on_digits_the_end_pays_only_what_no_step_has_paid() -> None:
    job, task = merge_job(("test", {"training": {"task": "digits"}}))
    rules = scheme_of(job.training, task)
    shaping = accuracy_shaping_of([(20.0, 20.0), (90.0, 60.0), (90.0, 90.0)], rules)
    last = inputs(step=2, num_steps=3, val_accuracy_pct=90.0, committed_accuracy_pct=90.0)
    terminal = compute_reward(last, rules).components.terminal
    # The last step commits 30 points more, of which shaping, by halves, has not paid 1.5.
    assert shaping[-1] + terminal == pytest.approx(1.5)
    assert shaping[:-1] == pytest.approx([10 * GAMMA * 0.2, 10 * (GAMMA * 0.75 - 0.2)])


def test_shaping_by_accuracy_needs_the_accuracy_of_the_fossils() -> None:
    here = inputs(committed_accuracy_pct=None)
    with pytest.raises(ContractError, match="step 50"):
        terms(here, RewardMode.SIMPLIFIED, pbrs_potential=Potential.ACCURACY)


def test_the_loss_family_is_shaped_by_stages_alone() -> None:
    after = (SlotStage(stage=Stage.HOLDING, steps_in_stage=0),)
    by_stages, by_accuracy = (
        compute_reward(
            inputs(slots_after=after),
            scheme(family=RewardFamily.LOSS, pbrs_potential=potential),
        ).components.pbrs
        for potential in Potential
    )
    assert by_accuracy == by_stages != 0.0
