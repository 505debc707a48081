"""The tally: counts that agree with each other."""

import pytest
from tests.builders.messages import env_evidence
from tests.simic.training.builders import env_outcome

from esper.leyline.actions import ActionOutcome, ActionSpec, Op
from esper.leyline.rewards import RewardComponents
from esper.simic.training.round_tally import RoundTally

ONLY_WAIT = [op is Op.WAIT for op in Op]
ALL = [True] * len(Op)


def test_an_op_is_legal_at_most_as_often_as_it_was_asked_for() -> None:
    tally = RoundTally()
    tally.add_legality([ALL, ONLY_WAIT, ALL], [True, True, False])
    tally.add_legality([ALL, ALL, ALL], [True, False, False])

    rates = tally.mask_hit_rates()

    assert rates.num_decisions == 3
    assert rates.legal_counts == {op.name: 3 if op is Op.WAIT else 2 for op in Op}
    assert rates.forced_count == 1


def test_decisions_are_counted_as_chosen_and_successes_as_they_came_out() -> None:
    tally = RoundTally()
    prune = ActionSpec(op=Op.PRUNE, slot_id="r0c0")
    vetoed = ActionOutcome(action=prune, effective_op=Op.WAIT, succeeded=False)
    evidence = env_evidence(0, 0)
    for outcome in (env_outcome(evidence, outcome=vetoed), env_outcome(evidence, prune)):
        tally.add_outcome(outcome)

    distribution = tally.action_distribution(())

    assert distribution.counts == {op.name: 2 * (op is Op.PRUNE) for op in Op}
    assert distribution.successes["PRUNE"] == 1


def test_means_are_over_the_rewards_that_were_paid() -> None:
    tally = RoundTally()
    assert tally.mean_components() == RewardComponents()
    for value in (1.0, 2.0, 6.0):
        tally.add_reward(RewardComponents(pbrs=value, rent=-1.0))

    assert tally.mean_components() == RewardComponents(pbrs=3.0, rent=-1.0)
    assert tally.total_reward == pytest.approx(6.0)
