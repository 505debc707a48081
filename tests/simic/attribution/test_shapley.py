"""Shapley values, against every single order of joining."""

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simic.attribution.games import brute_force_shapley, slots

from esper.simic.attribution.shapley import antithetic_permutations, exact_shapley, sampled_shapley


def random_worth(num_players: int, seed: int):
    rng = random.Random(seed)
    cache: dict[frozenset[str], float] = {}
    players = slots(num_players)

    def worth(on: frozenset[str]) -> float:
        assert on <= set(players)
        if on not in cache:
            cache[on] = rng.uniform(0.0, 100.0)
        return cache[on]

    return worth


games = st.tuples(st.integers(1, 5), st.integers(0, 10**6))


@settings(max_examples=40, deadline=None)
@given(games)
def test_exact_values_equal_the_mean_over_all_orders(game) -> None:
    num_players, seed = game
    players, worth = slots(num_players), random_worth(num_players, seed)
    assert exact_shapley(players, worth) == pytest.approx(brute_force_shapley(players, worth))


@settings(max_examples=40, deadline=None)
@given(games, st.integers(1, 4))
def test_shares_add_up_to_what_all_are_worth(game, num_pairs: int) -> None:
    num_players, seed = game
    players, worth = slots(num_players), random_worth(num_players, seed)
    gain = worth(frozenset(players)) - worth(frozenset())
    orders = antithetic_permutations(players, num_pairs, random.Random(seed))
    assert sum(exact_shapley(players, worth).values()) == pytest.approx(gain)
    sampled = sampled_shapley(orders, worth)
    assert sum(estimate.mean for estimate in sampled) == pytest.approx(gain)


def test_a_player_without_effect_gets_nothing() -> None:
    players = slots(4)
    shares = exact_shapley(players, lambda on: float(len(on - {"r0c2"}) ** 2))
    assert shares["r0c2"] == 0.0


def test_every_order_is_followed_by_its_reverse() -> None:
    orders = antithetic_permutations(slots(6), 5, random.Random(0))
    assert len(orders) == 10
    assert all(orders[index + 1] == orders[index][::-1] for index in range(0, 10, 2))
    assert len(set(orders)) == 10


def test_sampling_draws_from_its_own_generator_only() -> None:
    random.seed(7)
    before = random.getstate()
    first = antithetic_permutations(slots(5), 3, random.Random(1))
    assert random.getstate() == before
    assert first == antithetic_permutations(slots(5), 3, random.Random(1))


def test_a_pair_of_opposite_orders_is_exact_when_players_interact_in_pairs_only() -> None:
    players = slots(6)
    strength = {player: index - 2.0 for index, player in enumerate(players)}

    def worth(on: frozenset[str]) -> float:
        own = sum(strength[player] for player in on)
        pairs = sum(strength[a] * strength[b] for a in on for b in on if a < b)
        return own + 0.5 * pairs

    sampled = sampled_shapley(antithetic_permutations(players, 1, random.Random(3)), worth)
    exact = brute_force_shapley(players, worth)
    assert {estimate.player: estimate.mean for estimate in sampled} == pytest.approx(exact)


def test_spread_is_the_sample_standard_deviation() -> None:
    worth = {
        frozenset(): 0.0,
        frozenset("a"): 1.0,
        frozenset("b"): 2.0,
        frozenset("ab"): 6.0,
    }
    estimates = sampled_shapley((("a", "b"), ("b", "a")), worth.__getitem__)
    # a is worth 1 when it joins first and 4 when it joins last.
    assert (estimates[0].player, estimates[0].mean, estimates[0].num_samples) == ("a", 2.5, 2)
    assert estimates[0].std == pytest.approx(statistics.stdev([1.0, 4.0]))


def test_estimates_come_closer_with_more_orders() -> None:
    players, worth = slots(6), random_worth(6, 11)
    exact = brute_force_shapley(players, worth)
    errors = []
    for num_pairs in (2, 200):
        orders = antithetic_permutations(players, num_pairs, random.Random(5))
        estimates = sampled_shapley(orders, worth)
        errors.append(max(abs(item.mean - exact[item.player]) for item in estimates))
    assert errors[1] < errors[0] / 2
