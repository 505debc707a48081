"""Hindsight credit for the seeds that a fossil grew with."""

import math

import pytest

from esper.leyline.rewards import RewardConfig
from esper.simic.rewards.scaffold import hindsight_credit, with_interaction, without_beneficiary

CONFIG = RewardConfig()


def credit(ledger, slot_id="r0c1", contribution: float | None = 2.0, step: int = 10) -> float:
    return hindsight_credit(ledger, slot_id, contribution, step, CONFIG, 0.995)


def test_credit_grows_with_interaction_and_contribution_and_fades_with_time() -> None:
    ledger = with_interaction((), "r0c0", "r0c1", 3.0, 4)
    assert credit(ledger) == pytest.approx(0.1 * math.tanh(0.1 * 3.0 * 2.0) * 0.995**6)


def test_both_seeds_of_a_pair_are_scaffold_and_beneficiary() -> None:
    ledger = with_interaction((), "r0c0", "r0c1", 3.0, 4)
    assert credit(ledger, "r0c0") == credit(ledger, "r0c1") > 0.0
    assert credit(ledger, "r0c2") == 0.0


def test_interference_earns_nothing() -> None:
    assert with_interaction((), "r0c0", "r0c1", -3.0, 4) == ()
    assert with_interaction((), "r0c0", "r0c1", 0.0, 4) == ()


@pytest.mark.parametrize("contribution", [None, 0.0, -3.0])
def test_a_fossil_that_does_not_contribute_credits_no_scaffold(contribution) -> None:
    ledger = with_interaction((), "r0c0", "r0c1", 3.0, 4)
    assert credit(ledger, contribution=contribution) == 0.0


def test_credit_has_a_ceiling() -> None:
    ledger = ()
    for step in range(10):
        ledger = with_interaction(ledger, "r0c0", "r0c1", 30.0, step)
    assert credit(ledger) == 0.2


def test_a_settled_beneficiary_is_not_paid_again() -> None:
    ledger = without_beneficiary(with_interaction((), "r0c0", "r0c1", 3.0, 4), "r0c1")
    assert credit(ledger, "r0c1") == 0.0
    assert credit(ledger, "r0c0") > 0.0
