"""The best policy of each probe: exhaustive search against closed forms."""

from dataclasses import replace
from itertools import product

import pytest
from tools.probes import __main__ as probes
from tools.probes.learning import job_of, setup_of
from tools.probes.plans import Plan, mean_return
from tools.probes.solver import Solution, fates_of, solve

from esper.leyline.errors import UnknownNameError
from esper.leyline.probes import PROBES
from esper.simic.probes.growth import Fate

ONE = Fate(0, (False, False))
BEST_RULE = Plan(
    blueprints=("conv_light", "depthwise", None),
    last_step=30,
    judged_at_age=7,
    prune_below_pp=0.0,
    whole_from=36,
)
"""What the search for `probe:growth` finds."""


@pytest.mark.parametrize(
    ("name", "best", "open_loop"),
    [
        # Three times the final accuracy, whatever is done.
        ("constant", 3 * 0.5, 3 * 0.5),
        # One seed, and one action that costs 0.18.
        ("discount", 3 * 0.6 - 0.18, 3 * 0.6 - 0.18),
        # Half of the envs end with 50 %, the other half with 20 %, or blindly with 0 %.
        ("memory", (0.5 + 0.2) / 2, (0.5 + 0.0) / 2),
        # Without the cue, any blueprint is right as often as wrong.
        ("context", 3 * 0.7, 3 * 0.4),
        # Two tries: three quarters of the envs end with 70 %; blindly half with 70 %, half 10 %.
        ("lottery", 0.75 * 0.7 + 0.25 * 0.3, (0.7 + 0.1) / 2),
        ("patience", 3 * 0.6, 3 * 0.6),
    ],
)
def test_search_finds_the_closed_form(name: str, best: float, open_loop: float) -> None:
    setup = setup_of(job_of(name))
    assert solve(setup).mean_return == pytest.approx(best)
    assert solve(setup, is_open_loop=True).mean_return == pytest.approx(open_loop)


def test_with_rent_the_best_is_to_plant_nothing() -> None:
    setup = setup_of(job_of("rent", max_epochs=8))
    (earned,) = solve(setup).returns.values()
    waiting = solve(setup_of(job_of("rent", max_epochs=8, max_seeds=1))).mean_return
    gain = PROBES["rent"].host
    end = gain.end_pct - (gain.end_pct - gain.start_pct) * 2.718281828459045 ** (-7 / 4)
    assert earned == pytest.approx(5.0 * (end - gain.start_pct) / 100.0)
    assert waiting == pytest.approx(earned)


def test_cheaper_rent_makes_planting_pay() -> None:
    cheap = dict(PROBES["rent"].settings["reward"])  # type: ignore[call-overload]
    cheap["param_penalty_weight"] = 0.1
    dear = solve(setup_of(job_of("rent", max_epochs=8))).mean_return
    assert solve(setup_of(job_of("rent", max_epochs=8, reward=cheap))).mean_return > dear + 0.1


@pytest.mark.parametrize("gamma", [0.8, 0.5])
def test_the_discount_decides_whether_a_late_gain_is_worth_its_cost(gamma: float) -> None:
    # A seed planted at step 6 pays 0.9 five steps later and costs 0.18 now.
    is_worth_it = 0.9 * gamma**5 > 0.18
    expected = 1.62 if is_worth_it else 0.9
    assert solve(setup_of(job_of("discount", gamma=gamma))).mean_return == pytest.approx(expected)


def test_no_style_tempo_target_or_speed_is_better_than_those_that_are_tried() -> None:
    setup = setup_of(job_of("discount", max_epochs=9))
    few, all_of_them = solve(setup), solve(setup, has_all_variants=True)
    assert few.mean_return > 1.5
    assert all_of_them.mean_return == pytest.approx(few.mean_return)


def test_fates_are_all_combinations_of_kind_and_luck() -> None:
    assert fates_of(PROBES["constant"].host) == (ONE,)
    expected = [Fate(0, duds) for duds in product((False, True), repeat=2)]
    assert list(fates_of(PROBES["lottery"].host)) == expected
    assert [fate.kind for fate in fates_of(PROBES["memory"].host)] == [0, 1]


def test_the_return_of_a_fate_looks_at_the_seeds_that_matter() -> None:
    returns = {fate: float(sum(fate.duds)) for fate in fates_of(PROBES["lottery"].host)}
    best = Solution(mean_return=1.0, returns=returns)
    assert best.return_of(Fate(0, (True, False, True, True))) == 1.0
    assert best.return_of(Fate(0, (True, True, False, False))) == 2.0


def test_a_plan_that_judges_seeds_earns_more_than_the_same_schedule() -> None:
    kept = Plan(blueprints=("conv_heavy", "depthwise", None), judged_at_age=99)
    judged = replace(kept, judged_at_age=7)

    assert (
        mean_return("growth", judged, seeds=[3000])
        > mean_return("growth", kept, seeds=[3000]) + 0.5
    )


def test_the_rule_that_was_found_is_better_than_its_neighbours() -> None:
    # Some of the changes that the search tries; it takes minutes as a whole.
    earned = mean_return("growth", BEST_RULE, seeds=[2000])
    others = (
        {"judged_at_age": 12},
        {"prune_below_pp": 8.0},
        {"whole_from": 99},
    )
    for change in others:
        assert mean_return("growth", replace(BEST_RULE, **change), seeds=[2000]) < earned


def test_an_unknown_probe_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="patience"):
        probes.main(["patiance"])


def test_a_row_is_passed_only_if_every_seed_learns_and_no_blind_policy_does() -> None:
    row = {"name": "x", "best_return": 1.0, "open_loop": 0.5, "cpu_s": 1.0}
    assert probes.Row(**row, learned=(0.95, 1.0), blind=0.9).is_passed
    assert not probes.Row(**row, learned=(0.94, 1.0), blind=None).is_passed
    assert not probes.Row(**row, learned=(1.0, 1.0), blind=0.96).is_passed
