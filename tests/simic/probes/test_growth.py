"""The law of growth of a probe against closed forms."""

import math

import pytest

from esper.kasmina.blueprints import blueprint_params
from esper.kasmina.seed import SeedState
from esper.leyline.actions import Blueprint, Style, Topology
from esper.leyline.alpha import AlphaState
from esper.leyline.probes import PROBES, ProbeHostSpec
from esper.leyline.stages import Stage
from esper.leyline.tasks import PRESETS, TASKS, CnnHostSpec
from esper.simic.probes.growth import (
    Fate,
    accuracy_pct,
    draw_fate,
    loss_of,
    noise_of,
    num_params_of,
    visible_effect,
    worth_of,
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


def worth(
    spec: ProbeHostSpec, fate: Fate, state: SeedState, *, seed_index: int = 0, slot_index: int = 0
) -> float:
    return worth_of(spec, fate, state, seed_index=seed_index, slot_index=slot_index)


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
    assert worth(spec, ONE_KIND, late) == 1.0
    assert worth(spec, other, late) == -3.0
    assert worth(spec, other, attention) == 2.0
    assert worth(spec, other, attention, seed_index=1) == -4.0
    assert worth(spec, other, seed(step=4), seed_index=1) == -5.0


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
    assert visible_effect(spec, state, 10.0) == effect


def test_a_seed_grows_from_the_age_at_which_it_begins_to_show() -> None:
    spec = ProbeHostSpec(
        start_pct=0.0, end_pct=0.0, gain_pp=(0.0,), shows_at_age=3, grows_over_steps=12.0
    )
    found = [visible_effect(spec, seed(age=age, alpha=1.0), 10.0) for age in (2, 3, 15, 300)]
    assert found == pytest.approx([0.0, 0.0, 10.0 * (1.0 - math.exp(-1.0)), 10.0])


def test_what_an_offer_costs_and_is_worth_depends_on_the_slot() -> None:
    spec = PROBES["growth"].host
    light = seed(blueprint=Blueprint.CONV_LIGHT)
    fate = Fate(0, (False, True), luck=(0.5, 2.0))

    assert [num_params_of(spec, Blueprint.CONV_LIGHT, slot) for slot in (0, 1, 2)] == [
        *(152, 592, 2336)
    ]
    assert [worth(spec, fate, light, slot_index=slot) for slot in (0, 1, 2)] == [35.0, 34.0, 24.0]
    assert worth(spec, fate, light, seed_index=1) == 2.0 * spec.dud_pp


def test_seeds_on_offer_each_close_their_share_of_what_is_missing() -> None:
    spec = PROBES["growth"].host
    host = accuracy_pct(spec, ONE_KIND, 9, [], [])

    assert accuracy_pct(spec, ONE_KIND, 9, [50.0, 60.0], [1.0, 1.0]) == pytest.approx(
        100.0 - (100.0 - host) * 0.5 * 0.4
    )


def test_offers_have_the_parameters_of_the_seeds_of_digits_lottery() -> None:
    host = TASKS["digits_lottery"].host
    assert isinstance(host, CnnHostSpec)
    widths = [host.base_channels * 2**block for block in range(host.num_blocks)]

    for offer in PROBES["growth"].host.offers:
        real = tuple(blueprint_params(Topology.CNN, offer.blueprint, width) for width in widths)
        assert offer.num_params == real


def test_hosts_end_at_different_heights_within_the_spread() -> None:
    spec = PROBES["growth"].host
    fates = [
        draw_fate(spec, run_seed=1, round_index=0, env_id=env_id, num_seeds=5)
        for env_id in range(200)
    ]
    shifts = [fate.end_shift_pp for fate in fates]
    assert max(map(abs, shifts)) <= spec.end_spread_pp
    assert max(shifts) - min(shifts) > 1.8 * spec.end_spread_pp
    assert {len(fate.luck) for fate in fates} == {5}
    late = accuracy_pct(spec, fates[0], 1000, [], [])
    assert late == pytest.approx(spec.end_pct + shifts[0])


def test_noise_is_an_env_s_own() -> None:
    drawn = {
        noise_of(run_seed=seed, round_index=index, env_id=env).random()
        for seed in range(3)
        for index in range(3)
        for env in range(3)
    }
    again = noise_of(run_seed=2, round_index=1, env_id=0).random()
    assert len(drawn) == 27
    assert again in drawn


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


def test_an_env_has_the_curve_the_duds_and_the_worths_of_its_kind() -> None:
    spec = PROBES["contexts"].host
    fates = [
        draw_fate(spec, run_seed=3, round_index=0, env_id=env_id, num_seeds=8)
        for env_id in range(1200)
    ]
    by_kind = {
        kind.name: [fate for fate in fates if fate.kind == index]
        for index, kind in enumerate(spec.kinds)
    }

    # Weights of 1, 1, 1, 1 and 3; three deviations of a binomial.
    assert [len(found) / 1200 for found in by_kind.values()] == pytest.approx(
        [1 / 7, 1 / 7, 1 / 7, 1 / 7, 3 / 7], abs=0.04
    )
    assert not any(any(fate.duds) for fate in fates if fate not in by_kind["lottery"])
    duds = [dud for fate in by_kind["lottery"] for dud in fate.duds]
    assert sum(duds) / len(duds) == pytest.approx(0.5, abs=0.03)
    ends = {
        name: {
            round(accuracy_pct(spec.of_kind(fate.kind), fate, 1000, [], []), 1) for fate in found
        }
        for name, found in by_kind.items()
    }
    assert min(ends["spatial"]) > 95.0
    assert max(ends["noisy"]) < 13.0
    light = seed(blueprint=Blueprint.CONV_LIGHT)
    worths = [worth(spec.of_kind(kind), Fate(kind, (False,)), light) for kind in range(5)]
    assert worths == pytest.approx([70.0, 70.0, 63.0, 0.7, 70.0])


def test_a_kind_that_is_given_changes_no_other_draw() -> None:
    spec = PROBES["contexts"].host
    facts = {"run_seed": 1, "round_index": 2, "env_id": 3, "num_seeds": 9}
    drawn = draw_fate(spec, **facts)

    assert draw_fate(spec, **facts, kind=drawn.kind) == drawn
    assert draw_fate(spec, **facts, kind=4).luck == drawn.luck


def test_the_probe_has_the_contexts_of_the_job_that_it_stands_for() -> None:
    preset = PRESETS["closed_loop"].settings["contexts"]
    contexts = TASKS["probe:contexts"].contexts

    assert {context.name: context.weight for context in contexts} == preset
