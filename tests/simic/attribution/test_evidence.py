"""What accuracies of ablations say about seeds."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simic.attribution.games import (
    accuracies,
    blending,
    brute_force_shapley,
    evidence_of,
    fossil,
    slots,
)

from esper.leyline.errors import ContractError
from esper.simic.attribution.configurations import plan_ablations
from esper.simic.attribution.evidence import attribute_contributions
from esper.simic.attribution.shapley import antithetic_permutations

POWERS = {slot_id: 2.0 + index for index, slot_id in enumerate(slots(7))}


def additive(on: frozenset[str]) -> float:
    return 40.0 + sum(POWERS[slot_id] for slot_id in on)


def synergistic(on: frozenset[str]) -> float:
    return additive(on) + (5.0 if {"r0c0", "r0c1"} <= on else 0.0)


def redundant(on: frozenset[str]) -> float:
    return 40.0 + (10.0 if on else 0.0)


@pytest.mark.parametrize("num_seeds", [2, 3, 4])
def test_additive_seeds_do_not_interact(num_seeds: int) -> None:
    evidence = evidence_of(num_seeds, additive)
    assert [pair.interaction_pp for pair in evidence.interactions] == pytest.approx(
        [0.0] * (num_seeds * (num_seeds - 1) // 2)
    )


@pytest.mark.parametrize("num_seeds", [1, 2, 4, 5, 7])
def test_an_additive_seed_is_worth_the_same_by_every_measure(num_seeds: int) -> None:
    for seed in evidence_of(num_seeds, additive).seeds:
        assert seed.contribution_pp == pytest.approx(POWERS[seed.slot_id])
        assert seed.attributed_pp == pytest.approx(POWERS[seed.slot_id])


def test_two_seeds_are_enough_to_measure_an_interaction() -> None:
    evidence = evidence_of(2, synergistic)
    assert evidence.interactions[0].interaction_pp == pytest.approx(5.0)
    assert [seed.interaction_sum_pp for seed in evidence.seeds] == pytest.approx([5.0, 5.0])


def test_interactions_are_summed_and_the_best_one_is_kept() -> None:
    evidence = evidence_of(3, synergistic)
    first, third = evidence.of("r0c0"), evidence.of("r0c2")
    assert (first.interaction_sum_pp, first.boost_received_pp) == pytest.approx((5.0, 5.0))
    assert (third.interaction_sum_pp, third.boost_received_pp) == pytest.approx((0.0, 0.0))


def test_a_lone_seed_has_no_interaction_to_measure() -> None:
    seed = evidence_of(1, additive).seeds[0]
    assert seed.interaction_sum_pp is None
    assert seed.boost_received_pp is None


def test_redundant_seeds_share_a_gain_that_leaving_one_out_does_not_show() -> None:
    evidence = evidence_of(2, redundant)
    assert [seed.contribution_pp for seed in evidence.seeds] == [0.0, 0.0]
    assert [seed.attributed_pp for seed in evidence.seeds] == pytest.approx([5.0, 5.0])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(0, 10**6))
def test_shares_equal_the_brute_force_over_all_orders(num_seeds: int, seed: int) -> None:
    rng = random.Random(seed)
    table: dict[frozenset[str], float] = {}

    def worth(on: frozenset[str]) -> float:
        return table.setdefault(on, rng.uniform(0.0, 100.0))

    evidence = evidence_of(num_seeds, worth)
    expected = brute_force_shapley(slots(num_seeds), worth)
    shares = {item.slot_id: item.attributed_pp for item in evidence.seeds}
    assert shares == pytest.approx(expected)
    gain = evidence.accuracy_pct - evidence.committed_accuracy_pct
    assert sum(shares.values()) == pytest.approx(gain)
    assert evidence.is_exact


def test_beyond_the_full_factorial_shares_are_exact_for_pairwise_interactions() -> None:
    evidence = evidence_of(6, synergistic)
    expected = brute_force_shapley(slots(6), synergistic)
    shares = {item.slot_id: item.attributed_pp for item in evidence.seeds}
    assert shares == pytest.approx(expected)
    assert not evidence.is_exact
    assert evidence.interactions == ()


def test_sampled_orders_are_weighed_where_they_were_planned() -> None:
    orders = antithetic_permutations(slots(5), 2, random.Random(0))
    evidence = evidence_of(5, additive, permutations=orders)
    found = {item.player: item.mean for item in evidence.shapley}
    assert found == pytest.approx({slot_id: POWERS[slot_id] for slot_id in slots(5)})
    assert evidence_of(5, additive).shapley == ()


def test_committed_accuracy_keeps_the_fossils_only() -> None:
    reports = [fossil("r0c0"), blending("r0c1"), blending("r0c2")]
    plan = plan_ablations(reports, fossils_to_measure={"r0c0"})
    evidence = attribute_contributions(plan, accuracies(plan, additive, slots(3)))
    assert evidence.committed_accuracy_pct == 42.0
    assert evidence.accuracy_pct == 49.0


def test_a_fossil_is_judged_by_what_its_removal_costs() -> None:
    reports = [fossil("r0c0"), blending("r0c1")]
    plan = plan_ablations(reports, fossils_to_measure={"r0c0"})
    seed = attribute_contributions(plan, accuracies(plan, synergistic, slots(2))).of("r0c0")
    assert seed.contribution_pp == 7.0
    assert seed.attributed_pp is None


def test_a_network_without_active_seeds_has_committed_everything() -> None:
    evidence = attribute_contributions(plan_ablations([]), [55.0])
    assert (evidence.accuracy_pct, evidence.committed_accuracy_pct) == (55.0, 55.0)
    assert evidence.seeds == ()


def test_missing_measurements_are_refused() -> None:
    plan = plan_ablations([blending("r0c0")])
    with pytest.raises(ContractError, match="2 ablations were planned, 1 were measured"):
        attribute_contributions(plan, [50.0])
