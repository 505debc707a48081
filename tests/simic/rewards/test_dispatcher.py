"""What all modes share, and that no constant is dead."""

from functools import cache

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simic.rewards.builders import (
    acting,
    inputs,
    remembered,
    result,
    scheme,
    seed,
    worth,
)

from esper.leyline.actions import Op
from esper.leyline.rewards import (
    AttributionFormula,
    LossRewardConfig,
    Potential,
    RewardConfig,
    RewardFamily,
    RewardInputs,
    RewardMode,
    SlotStage,
)
from esper.leyline.stages import Stage
from esper.simic.rewards.dispatcher import compute_reward
from esper.simic.rewards.scaffold import hindsight_credit, with_interaction
from esper.simic.rewards.scheme import RewardScheme

HELD = worth(3.0, steps_in_stage=4, alpha=0.8, num_params=400, interaction_sum_pp=2.0)
HARMFUL = worth(0.5, "r0c1", Stage.BLENDING, attributed_pp=-0.5, steps_in_stage=2)
FOSSIL = seed("r0c2", Stage.FOSSILIZED, alpha=1.0, num_params=900, contribution_pp=30.0)
SHOCKED = remembered(alpha=0.1, num_params=100)
AFTER = (SlotStage(stage=Stage.HOLDING, steps_in_stage=4),)

SITUATIONS = (
    inputs(HELD, HARMFUL, FOSSIL, memory=SHOCKED, slots_after=AFTER),
    inputs(HELD, HARMFUL, FOSSIL, step=99, accuracy_since_start_pp=9.0),
    inputs(worth(2.0, age_steps=45)),
    inputs(worth(2.0, progress_since_germination_pp=1.0)),
    inputs(worth(2.0, progress_since_germination_pp=None)),
    inputs(seed(stage=Stage.BLENDING, stage_improvement_pp=2.0)),
    inputs(worth(3.0, alpha=1.0, num_params=10**8), memory=remembered(alpha=0, num_params=10**8)),
    inputs(worth(3.0, steps_in_stage=90), worth(1.0, "r0c1", Stage.BLENDING, steps_in_stage=90)),
    inputs(worth(-1.0, stage=Stage.BLENDING, steps_in_stage=90)),
    inputs(worth(8.0, attributed_pp=1.0)),
    inputs(worth(80.0, attributed_pp=1.0)),
    inputs(worth(6.0, attributed_pp=0.05)),
    inputs(worth(1.1, attributed_pp=0.1)),
    inputs(worth(6.0, attributed_pp=0.12)),
    inputs(worth(0.15, attributed_pp=-0.25)),
    inputs(HELD, host_params=10, pending_auto_prunes=1),
    inputs(FOSSIL, memory=remembered("r0c2", drip_scale=0.02)),
    inputs(
        seed("r0c2", Stage.FOSSILIZED, contribution_pp=-30.0),
        memory=remembered("r0c2", drip_scale=0.02),
    ),
    inputs(slots_after=(SlotStage(stage=Stage.HOLDING, steps_in_stage=20),)),
    inputs(
        seed(stage=Stage.FOSSILIZED, num_params=10**9, contribution_pp=1.0),
        step=99,
        committed_accuracy_pct=99.0,
    ),
    acting(Op.GERMINATE),
    acting(Op.SET_ALPHA_TARGET, HELD),
    acting(Op.ADVANCE, seed(stage=Stage.TRAINING)),
    acting(Op.PRUNE, seed(stage=Stage.TRAINING, age_steps=9)),
    acting(Op.PRUNE, seed(stage=Stage.TRAINING, age_steps=10)),
    *(acting(Op.PRUNE, worth(x)) for x in (-0.55, -0.3, 2.0, 90.0)),
    acting(Op.FOSSILIZE, HELD, has_succeeded=False),
    *(acting(Op.FOSSILIZE, worth(x, steps_in_stage=5), step=98) for x in (0.5, 3.0)),
    acting(Op.FOSSILIZE, worth(2.0, attributed_pp=-0.5)),
    acting(Op.FOSSILIZE, worth(2.0, attributed_pp=-50.0)),
)

SWITCHED = {
    AttributionFormula.HARMONIC: AttributionFormula.MINIMUM,
    True: False,
    False: True,
    Potential.STAGES: Potential.ACCURACY,
}

IN_FORCE = {"pbrs_committed_share": RewardConfig(pbrs_potential=Potential.ACCURACY)}
"""Configurations in which a constant counts, where the default one leaves it out."""

ELSEWHERE = {"escrow_stable_window"}
"""Read by the functions that look back over the accuracies."""


@cache
def every_result(config: RewardConfig, loss: LossRewardConfig) -> list[bytes]:
    schemes = [
        msgspec.structs.replace(scheme(mode), config=config, loss_config=loss)
        for mode in RewardMode
    ]
    schemes.append(
        msgspec.structs.replace(scheme(family=RewardFamily.LOSS, loss=loss), config=config)
    )
    results = [
        msgspec.json.encode(compute_reward(situation, each))
        for each in schemes
        for situation in SITUATIONS
        if not needs_drips(situation) or each.mode is RewardMode.BASIC_PLUS
    ]
    for interaction in (3.0, 400.0):
        ledger = with_interaction((), "r0c0", "r0c1", interaction, 4) * 3
        results.append(msgspec.json.encode(hindsight_credit(ledger, "r0c0", 2.0, 9, config, 1.0)))
    return results


def needs_drips(situation: RewardInputs) -> bool:
    return any(slot.drip_scale for slot in situation.memory.slots)


def changed(value):
    if isinstance(value, bool | AttributionFormula | Potential):
        return SWITCHED[value]
    if isinstance(value, int):
        return value * 2
    return value * 1.5 if value else 1.0


@pytest.mark.parametrize("name", sorted(set(RewardConfig.__struct_fields__) - ELSEWHERE))
def test_no_constant_of_the_contribution_family_is_dead(name: str) -> None:
    usual = IN_FORCE.get(name, RewardConfig())
    other = msgspec.structs.replace(usual, **{name: changed(getattr(usual, name))})
    assert every_result(other, LossRewardConfig()) != every_result(usual, LossRewardConfig())


@pytest.mark.parametrize("name", LossRewardConfig.__struct_fields__)
def test_no_constant_of_the_loss_family_is_dead(name: str) -> None:
    default = getattr(LossRewardConfig(), name)
    loss = LossRewardConfig(**{name: 0.5 if default is None else default * 2})
    grown = seed(age_steps=4, num_params=10**6)
    found = [
        [
            compute_reward(each, scheme(family=RewardFamily.LOSS, loss=rules)).total
            for each in (
                inputs(grown, loss_delta=0.05),
                inputs(loss_delta=9.0, step=99),
                inputs(loss_delta=-0.05),
                inputs(seed(num_params=10**300)),
                inputs(slots_after=AFTER),
            )
        ]
        for rules in (LossRewardConfig(), loss)
    ]
    assert found[0] != found[1]


schemes = st.sampled_from(
    [*(scheme(mode) for mode in RewardMode), scheme(family=RewardFamily.LOSS)]
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([item for item in SITUATIONS if not needs_drips(item)]), schemes)
def test_the_total_is_the_sum_of_its_components(here: RewardInputs, rules: RewardScheme) -> None:
    found = compute_reward(here, rules)
    names = found.components.__struct_fields__
    assert found.total == pytest.approx(sum(getattr(found.components, name) for name in names))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([item for item in SITUATIONS if not needs_drips(item)]), schemes)
def test_the_same_inputs_always_give_the_same_result(here, rules: RewardScheme) -> None:
    assert compute_reward(here, rules) == compute_reward(here, rules)


@pytest.mark.parametrize("mode", RewardMode)
def test_a_prune_by_the_governor_costs_once_in_every_mode(mode: RewardMode) -> None:
    plain, pruned = (
        result(inputs(HELD, pending_auto_prunes=count), mode).total for count in (0, 1)
    )
    assert pruned - plain == pytest.approx(-0.2)


@pytest.mark.parametrize("mode", RewardMode)
def test_hindsight_credit_is_added_in_every_mode(mode: RewardMode) -> None:
    plain, credited = (
        result(inputs(HELD, pending_hindsight_credit=credit), mode).total for credit in (0.0, 0.15)
    )
    assert credited - plain == pytest.approx(0.15)


def test_an_invalid_action_is_credited_as_waiting() -> None:
    waited = inputs(HELD)
    invalid = inputs(HELD, target_slot="r0c0", has_succeeded=False)
    assert result(waited).components == result(invalid).components


def test_memory_remembers_every_occupied_slot_under_its_seed() -> None:
    memory = result(inputs(HELD, FOSSIL)).memory
    assert [(slot.slot_id, slot.seed_id, slot.alpha) for slot in memory.slots] == [
        ("r0c0", "seed in r0c0", 0.8),
        ("r0c2", "seed in r0c2", 1.0),
    ]
    assert memory.of("r0c0", "another") is None
