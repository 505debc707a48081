"""The law of growth of a probe against closed forms."""

import math

import pytest

from esper.kasmina.seed import SeedState
from esper.leyline.actions import Blueprint, Style
from esper.leyline.alpha import AlphaState
from esper.leyline.probes import PROBES, ProbeHostSpec
from esper.leyline.stages import Stage
from esper.simic.probes.growth import (
    Fate,
    accuracy_pct,
    draw_fate,
    loss_of,
    visible_effect_pp,
    worth_pp,
)

PLAIN = ProbeHostSpec(start_pct=20.0, end_pct=60.0, rise_steps=4.0, gain_pp=(10.0,))
ONE_KIND = Fate(0, (False, True))


def seed(
    *,
    blueprint: Blueprint = Blueprint.NORM,
    step: int = 0,
    age: int = 9,
    stage: Stage = Stage.HOLDING,
    alpha: float = 0.5,
) -> SeedState:
    return SeedState(
        seed_id="s",
        blueprint=blueprint,
        style=Style.LINEAR_ADD,
        tempo_steps=3,
        alpha_target=1.0,
        stage=stage,
        previous_stage=Stage.BLENDING,
        age_steps=age,
        germinated_at_step=step,
        alpha=AlphaState(alpha=alpha, start=alpha, target=alpha),
    )


@pytest.mark.parametrize("step", [0, 1, 4, 40])
def test_a_host_rises_exponentially_from_start_to_end(step: int) -> None:
    expected = 60.0 - 40.0 * math.exp(-step / 4.0)
    assert accuracy_pct(PLAIN, ONE_KIND, step, [], []) == pytest.approx(expected)


def test_seeds_add_up_and_interfere_in_pairs() -> None:
    spec = ProbeHostSpec(start_pct=40.0, end_pct=40.0, gain_pp=(0.0,), interference_pp=3.0)
    alphas = [1.0, 0.5, 0.2]
    overlap = 1.0 * 0.5 + 1.0 * 0.2 + 0.5 * 0.2
    found = accuracy_pct(spec, ONE_KIND, 0, [5.0, -2.0, 1.0], alphas)
    assert found == pytest.approx(40.0 + 4.0 - 3.0 * overlap)


def test_accuracy_stays_between_0_and_100_percent() -> None:
    assert accuracy_pct(PLAIN, ONE_KIND, 0, [500.0], [1.0]) == 100.0
    assert accuracy_pct(PLAIN, ONE_KIND, 0, [-500.0], [1.0]) == 0.0


def test_a_cue_separates_the_kinds_during_its_steps_only() -> None:
    spec = PROBES["context"].host
    shown = [
        [accuracy_pct(spec, Fate(kind, ()), step, [], []) for kind in (0, 1)] for step in range(6)
    ]
    assert [one - other for one, other in shown] == [0.0, 0.0, 0.0, 2 * spec.cue_pp, 0.0, 0.0]


def test_the_worth_of_a_seed_follows_from_time_luck_and_blueprint_in_this_order() -> None:
    spec = ProbeHostSpec(
        start_pct=0.0,
        end_pct=0.0,
        gain_pp=(1.0, 2.0),
        blueprints=(Blueprint.NORM, Blueprint.ATTENTION),
        wrong_pp=-3.0,
        dud_pp=-4.0,
        earliest_step=5,
        early_pp=-5.0,
    )
    other = Fate(1, (False, True))
    late, attention = seed(step=5), seed(step=5, blueprint=Blueprint.ATTENTION)
    assert worth_pp(spec, ONE_KIND, late, 0) == 1.0
    assert worth_pp(spec, other, late, 0) == -3.0
    assert worth_pp(spec, other, attention, 0) == 2.0
    assert worth_pp(spec, other, attention, 1) == -4.0
    assert worth_pp(spec, other, seed(step=4), 1) == -5.0


@pytest.mark.parametrize(
    ("state", "effect"),
    [
        (seed(age=3), 0.0),
        (seed(age=4), 5.0),
        (seed(age=4, alpha=1.0), 10.0),
        (seed(age=9, stage=Stage.TRAINING), 0.0),
    ],
)
def test_a_seed_shows_its_worth_times_alpha_from_a_certain_age_on(
    state: SeedState, effect: float
) -> None:
    spec = ProbeHostSpec(start_pct=0.0, end_pct=0.0, gain_pp=(0.0,), shows_at_age=4)
    assert visible_effect_pp(spec, state, 10.0) == effect


def test_loss_is_that_of_a_guess_at_0_percent_and_0_at_100() -> None:
    assert loss_of(PLAIN, 0.0) == pytest.approx(math.log(10))
    assert loss_of(PLAIN, 100.0) == 0.0
    assert loss_of(PLAIN, 50.0) == pytest.approx(math.log(10) / 2)


def test_fates_have_the_shares_of_the_probe_and_differ_by_env_round_and_seed() -> None:
    spec = ProbeHostSpec(start_pct=0.0, end_pct=0.0, gain_pp=(0.0, 0.0), dud_share=0.25)
    fates = [
        draw_fate(spec, run_seed=seed, round_index=round_index, env_id=env_id, num_seeds=10)
        for seed in range(5)
        for round_index in range(10)
        for env_id in range(40)
    ]
    assert len(set(fates)) > 100
    assert sum(fate.kind for fate in fates) / len(fates) == pytest.approx(0.5, abs=0.05)
    duds = [is_dud for fate in fates for is_dud in fate.duds]
    assert sum(duds) / len(duds) == pytest.approx(0.25, abs=0.02)
