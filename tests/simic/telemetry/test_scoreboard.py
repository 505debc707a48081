"""The scoreboard against a count by hand."""

import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.actions import BLUEPRINTS, Blueprint
from esper.leyline.effects import effect_of
from esper.leyline.payloads import (
    SeedFossilized,
    SeedGerminated,
    SeedPruned,
    SeedStageChanged,
)
from esper.simic.telemetry.scoreboard import ADDED_MULTIPLIER, COMPUTE_MULTIPLIERS, Scoreboard

names = st.sampled_from([*BLUEPRINTS[1:], "my_own"])
points = st.none() | st.floats(-20.0, 20.0)
ends = {
    "slot_id": st.just("r0c0"),
    "seed_id": st.just("a"),
    "blueprint": names,
    "age_steps": st.integers(0, 100),
    "contribution_pp": points,
    "improvement_pp": points,
    "blending_delta_pp": points,
}
events = st.lists(
    st.builds(
        SeedGerminated,
        slot_id=st.just("r0c0"),
        seed_id=st.just("a"),
        blueprint=names,
        num_params=st.integers(0, 999),
        style=st.just("SIGMOID_ADD"),
        tempo_steps=st.just(5),
        alpha_target=st.just(1.0),
    )
    | st.builds(SeedFossilized, num_params=st.integers(0, 999), **ends)
    | st.builds(SeedPruned, reason=st.just("x"), initiator=st.just("policy"), **ends)
    | st.just(
        SeedStageChanged(
            slot_id="r0c0",
            seed_id="a",
            from_stage="TRAINING",
            to_stage="BLENDING",
            alpha=0.0,
            steps_in_from_stage=5,
            accuracy_delta_pp=None,
        )
    ),
    max_size=30,
)


def mean(values: list[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return pytest.approx(statistics.fmean(measured)) if measured else None


@given(events, st.integers(0, 30), st.integers(1, 9))
def test_standings_are_what_a_recount_of_all_events_gives(
    reported, cut: int, num_hosts: int
) -> None:
    effects = [effect_of(payload) for payload in reported]
    board = Scoreboard().noting(effects[:cut]).noting(effects[cut:])
    seeds = [event for event in reported if not isinstance(event, SeedStageChanged)]

    standing = board.event(num_hosts=num_hosts)

    assert [row.blueprint for row in standing.blueprints] == sorted(
        {event.blueprint for event in seeds}
    )
    for row in standing.blueprints:
        mine = [event for event in seeds if event.blueprint == row.blueprint]
        ended = [event for event in mine if not isinstance(event, SeedGerminated)]
        assert row.num_germinated == len(mine) - len(ended)
        assert row.num_fossilized == sum(isinstance(event, SeedFossilized) for event in mine)
        assert row.num_pruned == sum(isinstance(event, SeedPruned) for event in mine)
        assert row.mean_contribution_pp == mean([event.contribution_pp for event in ended])
        assert row.mean_improvement_pp == mean([event.improvement_pp for event in ended])
        assert row.mean_age_steps == mean([event.age_steps for event in ended])
    fossils = [event for event in seeds if isinstance(event, SeedFossilized)]
    assert standing.params_added == sum(event.num_params for event in fossils)
    costs = [COMPUTE_MULTIPLIERS.get(event.blueprint, ADDED_MULTIPLIER) - 1.0 for event in fossils]
    assert standing.compute_cost == pytest.approx(1.0 + sum(costs) / num_hosts)
    assert msgspec.convert(msgspec.to_builtins(board), Scoreboard) == board


def test_every_blueprint_has_an_estimated_cost() -> None:
    assert set(COMPUTE_MULTIPLIERS) == set(Blueprint)
