"""Emitters: what becomes of numbers on their way into events."""

import math

import pytest
from tests.builders.messages import attribution, batch_summary, env_evidence, make_report
from tests.simic.training.builders import env_outcome

from esper.leyline.actions import ActionOutcome, ActionSpec, Blueprint, Op
from esper.leyline.messages import DecisionDetail
from esper.leyline.payloads import (
    CounterfactualUnavailable,
    EpochCompleted,
    LastAction,
    LayerGradient,
    PerformanceDegradation,
    Throughput,
)
from esper.leyline.reports import BatchSummary, GradientReading
from esper.leyline.rewards import RewardComponents
from esper.leyline.stages import Stage
from esper.leyline.telemetry import Draft, EventScope
from esper.simic.telemetry.emitters import (
    aggregate_layer_gradient_health,
    check_performance_degradation,
    compute_grad_norm_surrogate,
    emit_cf_unavailable,
    emit_epoch_completed,
    emit_last_action,
    emit_throughput,
)

SCOPE = EventScope(round=1, step=2, env_id=3, episode_id=4)


def reading(norm: float) -> GradientReading:
    return GradientReading(
        norm=norm, ratio=0.5, health=0.25, has_vanishing=False, has_exploding=True
    )


def test_the_networks_norm_is_that_of_host_and_measured_seeds_together() -> None:
    reports = (
        make_report("r0c0", gradient=reading(3.0)),
        make_report("r0c1"),
        make_report("r0c2", gradient=reading(4.0)),
    )

    evidence = env_evidence(0, 0, reports=reports, host_gradient_norm=12.0)

    assert compute_grad_norm_surrogate(evidence) == pytest.approx(13.0)
    assert compute_grad_norm_surrogate(env_evidence(0, 0, reports=reports)) is None


def test_an_epoch_lists_each_seed_as_reported_and_nothing_as_zero_that_was_not_measured() -> None:
    measured = make_report(
        "r0c0",
        Stage.HOLDING,
        contribution_pp=2.0,
        steps_in_stage=4,
        gradient=reading(3.0),
        current_accuracy_pct=60.0,
        accuracy_at_stage_start_pct=55.0,
        upstream_alpha_sum=0.5,
    )
    drafts: list[Draft] = []
    evidence = env_evidence(0, 0, reports=(measured, make_report("r0c1")), host_gradient_norm=4.0)

    emit_epoch_completed(drafts.append, evidence, SCOPE)

    ((event, scope),) = [(draft.payload, draft.scope) for draft in drafts]
    assert isinstance(event, EpochCompleted)
    assert scope == SCOPE
    assert event.network_gradient_norm == pytest.approx(5.0)
    first, second = event.seeds
    assert (first.stage, first.steps_in_stage, first.contribution_pp) == ("HOLDING", 4, 2.0)
    assert (first.stage_improvement_pp, first.upstream_alpha_sum) == (5.0, 0.5)
    assert (first.gradient_norm, first.gradient_ratio, first.gradient_health) == (3.0, 0.5, 0.25)
    assert first.has_exploding_gradient is True
    assert (second.contribution_pp, second.gradient_norm, second.gradient_health) == (None,) * 3
    assert second.has_exploding_gradient is None


CAUSAL = {
    Op.WAIT: set(),
    Op.GERMINATE: {"slot_id", "blueprint", "style", "tempo", "alpha_target"},
    Op.SET_ALPHA_TARGET: {"slot_id", "alpha_target", "alpha_speed", "alpha_curve"},
    Op.PRUNE: {"slot_id", "alpha_speed", "alpha_curve"},
    Op.FOSSILIZE: {"slot_id"},
    Op.ADVANCE: {"slot_id"},
}


@pytest.mark.parametrize("op", Op)
def test_an_action_reports_the_heads_that_mattered_and_no_other(op: Op) -> None:
    action = ActionSpec(op=op, slot_id="r0c1", blueprint=Blueprint.NORM)
    outcome = env_outcome(
        env_evidence(0, 0),
        outcome=ActionOutcome(action=action, effective_op=op, succeeded=True),
    )
    drafts: list[Draft] = []

    emit_last_action(
        drafts.append, outcome, None, 1.5, RewardComponents(pbrs=1.5), SCOPE, is_forced=False
    )

    (event,) = [draft.payload for draft in drafts]
    assert isinstance(event, LastAction)
    heads = set().union(*CAUSAL.values())
    assert {name for name in heads if getattr(event, name) is not None} == CAUSAL[op]
    assert (event.reward, event.reward_components.pbrs) == (1.5, 1.5)
    assert (event.value_estimate, event.heads) == (None, {})


def test_an_action_reports_the_probabilities_it_was_chosen_with() -> None:
    detail = DecisionDetail(
        value_estimate=0.5, op_probabilities={"WAIT": 1.0}, heads={}, observation_hash=None
    )
    drafts: list[Draft] = []

    emit_last_action(
        drafts.append,
        env_outcome(env_evidence(0, 0)),
        detail,
        0.0,
        RewardComponents(),
        SCOPE,
        is_forced=True,
    )

    event = drafts[0].payload
    assert (event.value_estimate, event.op_probabilities) == (0.5, {"WAIT": 1.0})
    assert event.is_forced


def test_seeds_that_could_not_be_weighed_are_named_with_the_reason() -> None:
    drafts: list[Draft] = []
    evidence = env_evidence(0, 0, val_loss=math.nan, attribution=attribution(r0c1=1.0))

    emit_cf_unavailable(drafts.append, evidence, SCOPE)

    assert drafts == [
        Draft(CounterfactualUnavailable(slot_ids=("r0c1",), reason="validation loss is nan"), SCOPE)
    ]


def layer(health: float | None) -> LayerGradient:
    return LayerGradient(
        layer="x", norm=1.0, health=health, zero_fraction=0.0, nan_count=0, inf_count=0
    )


def test_layers_in_trouble_are_counted_by_kind() -> None:
    layers = [layer(health) for health in (0.0, 0.0, 0.1, 0.5, 1.0, None)]

    reported = aggregate_layer_gradient_health(layers)

    assert (len(reported.layers), reported.num_dead, reported.num_exploding) == (6, 2, 1)


def summary(accuracy: float | None) -> BatchSummary:
    return batch_summary(accuracy, round=5)


@pytest.mark.parametrize(
    ("accuracy", "rolling", "progress", "is_reported"),
    [
        (44.0, 50.0, 0.5, True),
        (45.0, 50.0, 0.5, True),
        (45.1, 50.0, 0.5, False),
        (10.0, 50.0, 0.09, False),
        (10.0, 50.0, 0.10, True),
        (10.0, None, 0.5, False),
        (None, 50.0, 0.5, False),
        (0.0, 0.0, 0.5, False),
    ],
)
def test_a_round_well_below_the_mean_is_reported_once_the_warm_up_is_over(
    accuracy, rolling, progress: float, is_reported: bool
) -> None:
    drafts: list[Draft] = []

    check_performance_degradation(
        drafts.append, summary(accuracy), rolling_before_pct=rolling, progress=progress
    )

    assert [type(draft.payload) for draft in drafts] == [PerformanceDegradation] * is_reported
    if is_reported:
        event = drafts[0].payload
        assert event.drop_fraction == pytest.approx((rolling - accuracy) / rolling)
        assert drafts[0].scope == EventScope(round=5)


def test_throughput_is_env_steps_over_time() -> None:
    drafts: list[Draft] = []

    emit_throughput(
        drafts.append,
        round_index=1,
        env_steps=30,
        train_samples=900,
        val_samples=300,
        feeder_wait_s=0.25,
        duration_s=2.0,
    )

    (event,) = [draft.payload for draft in drafts]
    assert isinstance(event, Throughput)
    assert (event.env_steps_per_s, event.feeder_wait_s) == (15.0, 0.25)
