"""Features, against a scalar oracle written from the table of the specification."""

import math

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tests.builders.messages import make_report, make_signals
from tests.tamiyo.states import SLOTS, batches

from esper.leyline.actions import BLUEPRINTS, Blueprint, Op, Style
from esper.leyline.alpha import AlphaMode, AlphaState
from esper.leyline.reports import GradientReading, SeedReport
from esper.leyline.signals import TrainingSignals
from esper.leyline.stages import Stage
from esper.tamiyo.features import (
    BASE_FEATURES,
    BASE_TABLE,
    SLOT_FEATURES,
    SLOT_TABLE,
    ActionFeedback,
    FeatureExtractor,
    observation_size,
)

NUM_STEPS = 40
EXTRACTOR = FeatureExtractor(SLOTS, NUM_STEPS)
COLUMN = {feature.name: index for index, feature in enumerate(SLOT_TABLE)}


# --- The oracle: one env, one number at a time ---------------------------------------------------


def symlog(value: float) -> float:
    return math.copysign(math.log1p(abs(value)), value) / 7.0


def known(value: float | None, scale, missing: float) -> float:
    return missing if value is None or not math.isfinite(value) else scale(value)


def points(value: float | None) -> float:
    return known(value, lambda v: math.copysign(math.log1p(abs(v)), v) / math.log(101.0), -2.0)


def share_of_episode(value: int) -> float:
    return min(value, NUM_STEPS) / NUM_STEPS


def oracle_slot(report: SeedReport | None) -> list[float]:
    if report is None:
        return [0.0] * 31
    order = [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    alpha, gradient = report.alpha, report.gradient
    row = [1.0, *(float(report.stage == number) for number in order), alpha.alpha]
    row += [points(report.contribution_pp), points(report.contribution_velocity_pp)]
    row += [report.tempo_steps / 12, alpha.target, alpha.mode / 2]
    row += [share_of_episode(alpha.steps_total), share_of_episode(alpha.steps_done)]
    row += [share_of_episode(alpha.steps_to_target), alpha.velocity]
    row += [(report.algorithm - 1) / 2, points(report.interaction_sum_pp)]
    if gradient is None:
        row += [-1.0, -1.0, -1.0, -1.0]
    else:
        row += [known(gradient.norm, symlog, -1.0), gradient.health]
        row += [float(gradient.has_vanishing), float(gradient.has_exploding)]
    health, age = report.previous_gradient_health, report.steps_since_contribution
    row += [-1.0 if health is None else health, share_of_episode(report.steps_in_stage)]
    row += [-1.0 if age is None else 0.995**age, share_of_episode(report.age_steps)]
    return row


def oracle(signals: TrainingSignals, reports, feedback: ActionFeedback) -> list[float]:
    stages = [report.stage for report in reports]
    padding = 5 - len(signals.loss_history), 5 - len(signals.accuracy_history)
    row = [share_of_episode(signals.step), known(signals.val_loss, symlog, -1.0)]
    row += [signals.val_accuracy_pct / 100]
    row += [-1.0] * padding[0] + [known(v, symlog, -1.0) for v in signals.loss_history]
    row += [-1.0] * padding[1] + [value / 100 for value in signals.accuracy_history]
    row += [stages.count(Stage.TRAINING) / 3, stages.count(Stage.BLENDING) / 3]
    row += [(stages.count(Stage.HOLDING) + stages.count(Stage.FOSSILIZED)) / 3]
    row += [float(feedback.has_succeeded), *(float(feedback.op == op) for op in range(6))]
    by_slot = {report.slot_id: report for report in reports}
    for slot_id in SLOTS:
        row += oracle_slot(by_slot.get(slot_id))
    return row


def observe(*envs) -> np.ndarray:
    signals, reports, feedback = zip(*envs, strict=True)
    return EXTRACTOR.observe(signals, reports, feedback).observations.numpy()


def slot_row(report: SeedReport) -> np.ndarray:
    row = observe((make_signals(), (report,), ActionFeedback()))[0]
    start = BASE_FEATURES + SLOT_FEATURES * SLOTS.index(report.slot_id)
    return row[start : start + SLOT_FEATURES]


# --- Properties ----------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(batches)
def test_the_batch_agrees_with_the_oracle_number_by_number(batch) -> None:
    expected = np.array([oracle(*env) for env in batch], dtype=np.float32)
    np.testing.assert_allclose(observe(*batch), expected, rtol=1e-6, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(batches)
def test_every_feature_of_every_state_is_finite(batch) -> None:
    assert np.isfinite(observe(*batch)).all()


@settings(max_examples=30, deadline=None)
@given(batches)
def test_blueprints_are_listed_by_slot(batch) -> None:
    signals, reports, feedback = zip(*batch, strict=True)
    found = EXTRACTOR.observe(signals, reports, feedback).blueprint_indices
    for row, env_reports in zip(found.tolist(), reports, strict=True):
        by_slot = {report.slot_id: BLUEPRINTS.index(report.blueprint) for report in env_reports}
        assert row == [by_slot.get(slot_id, -1) for slot_id in SLOTS]


def test_a_blueprint_that_a_run_adds_has_an_index_of_its_own() -> None:
    extractor = FeatureExtractor(SLOTS, NUM_STEPS, ("dilated", "widen"))
    report = make_report(SLOTS[1], blueprint="widen")
    found = extractor.observe([make_signals()], [(report,)], [ActionFeedback()])
    assert found.blueprint_indices.tolist() == [[-1, len(BLUEPRINTS) + 1, -1]]


def test_types_and_sizes_are_those_the_policy_expects() -> None:
    batch = EXTRACTOR.observe([make_signals()], [()], [ActionFeedback()])
    assert batch.observations.dtype == torch.float32
    assert batch.blueprint_indices.dtype == torch.int64
    assert batch.observations.shape == (1, 116)
    assert [observation_size(num_slots) for num_slots in (1, 3, 6, 10)] == [54, 116, 209, 333]
    assert (BASE_FEATURES, SLOT_FEATURES) == (23, 31)


def test_feature_names_are_unique() -> None:
    for table in (BASE_TABLE, SLOT_TABLE):
        assert len({feature.name for feature in table}) == len(table)


def test_an_empty_slot_is_all_zeros() -> None:
    row = observe((make_signals(), (make_report("r0c1"),), ActionFeedback()))[0]
    assert not row[BASE_FEATURES : BASE_FEATURES + SLOT_FEATURES].any()
    assert row[BASE_FEATURES + SLOT_FEATURES] == 1.0


MEASURED = make_report(
    stage=Stage.BLENDING,
    contribution_pp=0.0,
    contribution_velocity_pp=0.0,
    steps_since_contribution=0,
    interaction_sum_pp=0.0,
    gradient=GradientReading(
        norm=0.0, ratio=0.0, health=0.0, has_vanishing=False, has_exploding=False
    ),
    previous_gradient_health=0.0,
)


@pytest.mark.parametrize(
    ("field", "columns"),
    [
        ("contribution_pp", ["contribution"]),
        ("contribution_velocity_pp", ["contribution_velocity"]),
        ("steps_since_contribution", ["freshness"]),
        ("interaction_sum_pp", ["interaction"]),
        (
            "gradient",
            ["gradient_norm", "gradient_health", "has_vanishing", "has_exploding"],
        ),
        ("previous_gradient_health", ["previous_gradient_health"]),
    ],
)
def test_unmeasured_differs_from_every_measured_value(field: str, columns: list[str]) -> None:
    unmeasured = slot_row(msgspec.structs.replace(MEASURED, **{field: None}))
    changed = [SLOT_TABLE[index].name for index in np.flatnonzero(unmeasured != slot_row(MEASURED))]
    assert changed == columns
    for name in columns:
        is_signed = name in ("contribution", "contribution_velocity", "interaction")
        assert unmeasured[COLUMN[name]] == (-2.0 if is_signed else -1.0)


OTHER_VALUES = {
    "contribution_pp": 3.0,
    "contribution_velocity_pp": 1.5,
    "steps_since_contribution": 4,
    "interaction_sum_pp": -2.0,
    "previous_gradient_health": 0.5,
    "steps_in_stage": 7,
    "age_steps": 9,
    "tempo_steps": 8,
    "stage": Stage.HOLDING,
}


@pytest.mark.parametrize("field", OTHER_VALUES)
def test_every_observed_field_of_a_report_reaches_the_policy(field: str) -> None:
    changed = slot_row(msgspec.structs.replace(MEASURED, **{field: OTHER_VALUES[field]}))
    columns = {SLOT_TABLE[index].source for index in np.flatnonzero(changed != slot_row(MEASURED))}
    assert columns == {field}


def test_style_reaches_the_policy_as_the_algorithm_that_it_mixes_by() -> None:
    changed = slot_row(msgspec.structs.replace(MEASURED, style=Style.GATED_GATE))
    assert list(np.flatnonzero(changed != slot_row(MEASURED))) == [COLUMN["algorithm"]]


@pytest.mark.parametrize(
    ("field", "value"),
    [("alpha", 0.3), ("target", 0.7), ("mode", AlphaMode.DOWN), ("steps_done", 2)],
)
def test_every_observed_field_of_alpha_reaches_the_policy(field: str, value: float) -> None:
    before = AlphaState(steps_total=8)
    after = msgspec.structs.replace(before, **{field: value})
    rows = [slot_row(msgspec.structs.replace(MEASURED, alpha=state)) for state in (before, after)]
    columns = {SLOT_TABLE[index].source for index in np.flatnonzero(rows[0] != rows[1])}
    assert f"alpha.{field}" in columns


def test_a_seed_never_measured_does_not_read_fresh_however_old_it_is() -> None:
    old = make_report(age_steps=30, steps_in_stage=20)
    assert slot_row(old)[COLUMN["freshness"]] == -1.0
    just_measured = msgspec.structs.replace(old, contribution_pp=1.0, steps_since_contribution=0)
    assert slot_row(just_measured)[COLUMN["freshness"]] == 1.0


def test_a_gradient_that_is_not_finite_differs_from_one_never_measured() -> None:
    reading = GradientReading(
        norm=math.inf, ratio=0.0, health=0.0, has_vanishing=False, has_exploding=True
    )
    row = slot_row(msgspec.structs.replace(MEASURED, gradient=reading))
    assert row[COLUMN["gradient_norm"]] == -1.0
    assert row[COLUMN["has_exploding"]] == 1.0


def test_the_last_op_is_reported_with_its_success() -> None:
    feedback = ActionFeedback(op=Op.PRUNE, has_succeeded=False)
    row = observe((make_signals(), (), feedback))[0]
    assert row[16:23].tolist() == [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]


def test_blueprints_have_an_index_of_their_own_beside_the_features() -> None:
    reports = (make_report("r0c1", blueprint=Blueprint.CONV_HEAVY),)
    batch = EXTRACTOR.observe([make_signals()], [reports], [ActionFeedback()])
    assert batch.blueprint_indices.tolist() == [[-1, 7, -1]]
