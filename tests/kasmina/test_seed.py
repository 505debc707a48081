"""Measurements enter a seed's memory, and all of it reaches the report."""

import msgspec
import pytest
from tests.kasmina.seeds import CAUSE, HEALTHY, OCCUPIED_STAGES, seed_in

from esper.kasmina.seed import (
    Measurements,
    SeedState,
    report_of,
    with_accuracy,
    with_contribution,
    with_gradient,
    with_interaction,
)
from esper.leyline.alpha import AlphaMode, AlphaState
from esper.leyline.reports import SeedReport
from esper.leyline.stages import COOLDOWN_STAGES, Stage

FRESH = seed_in(Stage.TRAINING, measured=Measurements())


def report(state: SeedState) -> SeedReport:
    return report_of(
        state, slot_id="r0c1", num_params=17, upstream_alpha_sum=0.5, downstream_alpha_sum=0.25
    )


def test_first_accuracy_is_the_starting_point_and_later_ones_are_not() -> None:
    measured = with_accuracy(with_accuracy(FRESH, 40.0), 43.0).measured

    assert measured.accuracy_at_germination_pct == 40.0
    assert measured.stage_improvement_pp == 3.0


def test_recording_accuracy_does_not_count_a_step() -> None:
    seed = with_accuracy(FRESH, 40.0)

    assert (seed.steps_in_stage, seed.age_steps) == (FRESH.steps_in_stage, FRESH.age_steps)


def test_contribution_velocity_is_unknown_at_first_and_then_smoothed() -> None:
    velocities, seed = [], FRESH
    for contribution in (1.0, 2.0, 1.0):
        seed = with_contribution(seed, contribution)
        velocities.append(seed.measured.contribution_velocity_pp)

    assert velocities[0] is None
    assert velocities[1:] == pytest.approx([0.3, 0.7 * 0.3 - 0.3])
    assert seed.measured.steps_since_contribution == 0


def test_gradient_remembers_the_health_before() -> None:
    first = with_gradient(FRESH, msgspec.structs.replace(HEALTHY, health=0.25))
    second = with_gradient(first, HEALTHY)

    assert first.measured.previous_gradient_health is None
    assert second.measured.previous_gradient_health == 0.25


def test_interaction_may_be_unmeasured_again() -> None:
    seed = with_interaction(with_interaction(FRESH, 1.5, 0.5), None, None)

    assert (seed.measured.interaction_sum_pp, seed.measured.boost_received_pp) == (None, None)


def test_every_remembered_field_reaches_the_report() -> None:
    numbers = iter(range(100, 200))
    measured = Measurements(
        **{
            field.name: HEALTHY if field.name == "gradient" else next(numbers)
            for field in msgspec.structs.fields(Measurements)
        }
    )
    seed = seed_in(Stage.BLENDING, measured=measured)

    reported = report(seed)

    own = msgspec.structs.asdict(measured) | {
        "slot_id": "r0c1",
        "num_params": 17,
        "upstream_alpha_sum": 0.5,
        "downstream_alpha_sum": 0.25,
    }
    for field in msgspec.structs.fields(SeedReport):
        expected = own[field.name] if field.name in own else getattr(seed, field.name)
        assert getattr(reported, field.name) == expected, field.name


def test_unmeasured_stays_unmeasured_in_the_report() -> None:
    reported = report(FRESH)

    unknown = {field.name for field in msgspec.structs.fields(Measurements)}
    assert all(getattr(reported, name) is None for name in unknown)
    assert reported.improvement_pp is None


@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING, Stage.PRUNED])
def test_seed_outside_the_blended_stages_changes_no_output(stage: Stage) -> None:
    assert not seed_in(stage).is_blended


def test_seed_is_frozen_exactly_before_a_scheduled_prune() -> None:
    falling = AlphaState(alpha=0.5, mode=AlphaMode.DOWN)

    assert not seed_in(Stage.BLENDING, alpha=falling).is_frozen
    assert seed_in(Stage.BLENDING, alpha=falling, pending_prune=CAUSE).is_frozen


@pytest.mark.parametrize("stage", OCCUPIED_STAGES)
@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_living_seed_either_changes_the_output_or_incubates(stage: Stage, alpha: float) -> None:
    seed = seed_in(stage, alpha=AlphaState(alpha=alpha))

    assert (seed.is_blended, seed.is_incubating).count(True) == (stage not in COOLDOWN_STAGES)
