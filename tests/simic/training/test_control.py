"""Control: whose reward goes where, and what is left of an env that is lost."""

from dataclasses import fields
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.messages import attribution, env_evidence, make_report, make_signals
from tests.simic.training.builders import (
    NUM_ENVS,
    NUM_STEPS,
    Play,
    env_outcome,
    loss_scheme,
    make_control,
    rolled_back,
    small_policy,
    wait_control,
)
from tests.tamiyo.states import SLOTS
from torch import Tensor

from esper.leyline.actions import ActionOutcome, ActionSpec, Blueprint, Op
from esper.leyline.errors import ContractError
from esper.leyline.payloads import EnvFailed, EpisodeOutcome, GovernorRollback, LastAction
from esper.leyline.reports import EpisodeStatus
from esper.leyline.rewards import EpisodeEnd
from esper.leyline.stages import Stage
from esper.simic.agent import ppo_update
from esper.simic.agent.gae import discounted_returns
from esper.simic.agent.ppo_update import Ratios, UpdateBatch
from esper.simic.normalizers import RewardNormalizer
from esper.simic.training.round_tally import RoundTally
from esper.tamiyo.features import ActionFeedback

PENALTY = -10.0


def rows(play: Play):
    """Return the rollout of a finished round."""
    return play.control.learner.agent.buffer.batch()


def told(play: Play, payload_type: type) -> list:
    return [draft.payload for draft in play.drafts if isinstance(draft.payload, payload_type)]


def deltas_at(step: int) -> dict[int, float]:
    """Return loss deltas that differ between any two env-steps of a round."""
    return {env_id: 0.1 * (1 + step + NUM_STEPS * env_id) for env_id in range(NUM_ENVS)}


def test_rewards_land_on_the_rows_of_their_env_and_step() -> None:
    play = Play(make_control())
    for step in range(NUM_STEPS):
        play.step(deltas=deltas_at(step))

    expected = torch.tensor(
        [[5 * deltas_at(step)[env_id] for step in range(NUM_STEPS)] for env_id in range(NUM_ENVS)]
    )
    torch.testing.assert_close(rows(play).rewards, expected)
    assert rows(play).valid.all()
    assert [play.control.ledgers[env_id].rewards for env_id in range(NUM_ENVS)] == [
        pytest.approx(row) for row in expected.tolist()
    ]


def test_a_decision_gets_the_reward_of_the_one_before_it() -> None:
    play = Play(make_control())
    play.step(deltas={0: 0.2, 1: 0.4, 2: 0.6})
    play.step(panics={1})
    play.step()

    assert play.decisions[0].previous_rewards == (None, None, None)
    assert play.decisions[1].previous_rewards == pytest.approx((1.0, 2.0, 3.0))
    assert play.decisions[2].previous_rewards == (0.0, None, 0.0)


def test_a_rollback_forfeits_its_segment_and_charges_its_last_row() -> None:
    play = Play(make_control(death_penalty=25.0))
    for _ in range(3):
        play.step(deltas={0: 1.0, 1: 1.0, 2: 1.0})
    record = play.step(panics={1})
    play.finish()

    batch = rows(play)
    assert record.rewards[1] is None
    assert record.penalties[1].blamed_step == 2
    assert record.penalties[1].num_steps_forfeited == 3
    assert batch.rewards[1].tolist() == [0.0, 0.0, PENALTY, 0.0, 0.0, 0.0]
    assert batch.is_forfeited[1].tolist() == [True, True, True, False, False, False]
    assert batch.valid[1].tolist() == [True, True, True, False, True, True]
    assert batch.starts[1].tolist() == [True, False, False, False, True, False]
    assert batch.ends[1].tolist() == [False, False, True, False, False, True]
    assert batch.rewards[0, :3].tolist() == [5.0, 5.0, 5.0]


def test_the_ledger_mirrors_what_the_rollout_forfeits() -> None:
    play = Play(make_control())
    play.step(deltas={1: 1.0})
    play.step(deltas={1: 1.0})
    play.step(panics={1})
    play.step()
    play.step(deltas={1: 0.4})
    play.finish()

    batch = rows(play)
    assert play.control.ledgers[1].rewards == pytest.approx([0.0, PENALTY, 0.0, 2.0, 0.0])
    (episode,) = [item for record in play.records for item in record.ended if item.env_id == 1]
    assert episode.total_reward == pytest.approx(float(batch.rewards[1].sum()))
    assert episode.num_rollbacks == 1


def test_a_rollback_empties_the_memory_of_its_env_alone() -> None:
    play = Play(make_control())
    play.step()
    play.step(panics={1})

    hidden = play.control.learner.lstm_state.h
    assert hidden[1].abs().sum() == 0
    assert (hidden[[0, 2]].abs().sum(-1) > 0).all()


def test_a_rollback_at_the_first_step_has_no_row_to_penalize_and_is_counted() -> None:
    play = Play(make_control())
    record = play.step(panics={0})
    play.finish()

    result = play.control.learn()
    assert record.penalties[0].blamed_step is None
    assert record.penalties[0].num_steps_forfeited == 0
    assert result.unattributed_penalties == 1
    assert result.rollback_attempts == 1
    assert result.episodes[0].total_reward == 0.0
    (event,) = told(play, GovernorRollback)
    assert not event.is_penalty_attributed


def test_two_rollbacks_in_a_row_charge_once() -> None:
    play = Play(make_control())
    play.step(deltas={0: 1.0})
    play.step(panics={0})
    play.step(panics={0})
    play.finish()

    result = play.control.learn()
    assert result.rollback_attempts == 2
    assert result.unattributed_penalties == 1
    assert result.episodes[0].total_reward == pytest.approx(PENALTY)


def test_a_panic_on_the_last_step_is_terminal_and_ends_the_episode_once() -> None:
    play = Play(make_control()).finish(panics={1})

    batch = rows(play)
    assert batch.ends[1].tolist() == [False] * 4 + [True, False]
    assert batch.bootstrap_values[1].tolist() == [0.0] * NUM_STEPS
    assert (batch.bootstrap_values[[0, 2], -1] != 0).all()
    assert len(told(play, EpisodeOutcome)) == NUM_ENVS
    assert told(play, EpisodeOutcome)[1].total_reward == pytest.approx(PENALTY)


def test_a_rollback_costs_a_controller_that_does_not_learn_the_same() -> None:
    play = Play(wait_control())
    play.step(deltas={0: 1.0})
    record = play.step(panics={0})
    play.finish()

    assert record.penalties[0].blamed_step == 0
    assert play.control.learn().episodes[0].total_reward == pytest.approx(PENALTY)


@pytest.mark.parametrize("where", ["breaking_before", "breaking_in_apply"])
@pytest.mark.parametrize("step", [0, 3, NUM_STEPS - 1])
def test_an_env_that_breaks_ends_once_and_leaves_the_others_alone(where: str, step: int) -> None:
    whole, broken = Play(make_control()), Play(make_control())
    for index in range(NUM_STEPS):
        whole.step(deltas=deltas_at(index))
        broken.step(deltas=deltas_at(index), **({where: {1}} if index == step else {}))

    episodes = [item for record in broken.records for item in record.ended]
    assert sorted(item.env_id for item in episodes) == [0, 1, 2]
    (failed,) = [item for item in episodes if item.status is EpisodeStatus.FAILED]
    assert (failed.env_id, failed.num_steps) == (1, step)
    assert len(told(broken, EnvFailed)) == 1
    assert len(told(broken, EpisodeOutcome)) == NUM_ENVS
    for before, after in zip(whole.decisions, broken.decisions, strict=True):
        assert len(after.actions) == NUM_ENVS
        assert [after.actions[env] for env in (0, 2)] == [before.actions[env] for env in (0, 2)]
        assert [after.details[env] for env in (0, 2)] == [before.details[env] for env in (0, 2)]
    others = torch.tensor([0, 2])
    torch.testing.assert_close(rows(broken).rewards[others], rows(whole).rewards[others])
    assert not rows(broken).valid[1].any()
    assert rows(broken).obs.shape == rows(whole).obs.shape


def test_an_env_that_broke_before_its_first_step_has_an_empty_episode() -> None:
    play = Play(make_control())
    play.step(breaking_before={2})
    play.finish()

    episode = play.control.learn().episodes[2]
    assert episode.status is EpisodeStatus.FAILED
    assert episode.num_steps == 0
    assert episode.final_accuracy_pct is None
    assert episode.total_reward == 0.0
    assert episode.param_ratio == 1.0


@pytest.mark.parametrize("parts", [[[2], [0, 1]], [[1], [2], [0]]])
def test_a_round_is_the_same_whoever_is_decided_with_whom(parts: list[list[int]]) -> None:
    plays = [Play(make_control()), Play(make_control(), parts=parts)]
    results = []
    for play in plays:
        play.step()
        play.step(panics={0}, deltas={1: 0.3, 2: -0.2})
        play.step(breaking_before={1})
        play.finish()
        results.append(play.control.learn())
    whole, split = plays
    together, apart = results

    assert split.decisions == whole.decisions
    assert split.records == whole.records
    assert split.drafts == whole.drafts
    assert apart.episodes == together.episodes
    assert apart.metrics == together.metrics
    assert vars_of(apart.tally) == vars_of(together.tally)
    agents = [play.control.learner.agent.network.state_dict() for play in plays]
    assert all(torch.equal(agents[0][name], agents[1][name]) for name in agents[0])


def vars_of(tally: RoundTally) -> dict[str, object]:
    return {item.name: getattr(tally, item.name) for item in fields(tally)}


def test_a_round_whose_envs_all_broke_still_closes_its_books() -> None:
    play = Play(make_control())
    play.step()
    record = play.step(breaking_before={0, 1}, breaking_in_apply={2})

    assert [item.status for item in record.ended] == [EpisodeStatus.FAILED] * NUM_ENVS
    assert record.rewards == (None, None, None)


def test_nothing_is_learned_from_the_row_of_an_env_that_is_gone() -> None:
    play = Play(make_control())
    play.step(breaking_before={1})
    play.finish()
    learner = play.control.learner
    shown = torch.cat(learner._raw_obs)

    play.control.learn()

    assert len(shown) == 2 * NUM_STEPS
    assert learner.last_observation.shape[0] == 2
    torch.testing.assert_close(learner.obs_normalizer.mean, shown.double().mean(0))


def test_the_bootstrap_sees_the_state_after_the_tick_with_the_memory_carried_on() -> None:
    control = make_control()
    play = Play(control)
    while len(play.records) < NUM_STEPS - 1:
        play.step()
    evidence = env_evidence(0, NUM_STEPS - 1, reports=(make_report(stage=Stage.TRAINING),))
    after = (make_report(stage=Stage.BLENDING, steps_in_stage=0),)
    action = ActionSpec(op=Op.ADVANCE, slot_id=SLOTS[0])
    play.step(evidence={0: evidence}, outcomes={0: env_outcome(evidence, action, reports=after)})

    learner = control.learner
    others = [make_signals(step=NUM_STEPS - 1, val_loss=3.0, loss_delta=0.0)] * 2
    feedback = [ActionFeedback(op=Op.ADVANCE), ActionFeedback(), ActionFeedback()]
    next_view = control.extractor.observe([evidence.signals, *others], [after, (), ()], feedback)
    expected = learner.agent.bootstrap_values(
        learner.obs_normalizer.normalize(next_view.observations),
        next_view.blueprint_indices,
        learner.lstm_state,
    )
    stale_view = control.extractor.observe(
        [evidence.signals, *others], [evidence.reports, (), ()], feedback
    )
    stale = learner.agent.bootstrap_values(
        learner.obs_normalizer.normalize(stale_view.observations),
        stale_view.blueprint_indices,
        learner.lstm_state,
    )
    assert torch.equal(rows(play).bootstrap_values[:, -1], expected)
    assert stale[0] != expected[0]
    assert (learner.lstm_state.h.abs().sum(-1) > 0).all()


def test_an_episode_that_terminates_is_worth_its_rewards_alone() -> None:
    play = Play(make_control(reward_scheme=loss_scheme(EpisodeEnd.TERMINATE))).finish(panics={0})

    assert not any(decision.is_truncated for decision in play.decisions)
    batch = rows(play)
    assert batch.ends[1:, -1].all()
    assert not batch.bootstrap_values.any()
    found = play.control.learner.agent.estimate_advantages(RewardNormalizer())
    torch.testing.assert_close(
        found.advantages[1:, -1] + batch.values[1:, -1], found.realized[1:, -1]
    )


def test_only_the_last_step_of_an_episode_cuts_it_off() -> None:
    play = Play(make_control()).finish()

    assert [decision.is_truncated for decision in play.decisions] == [False] * 5 + [True]


def test_the_bootstrap_keeps_rows_apart_when_only_some_envs_are_truncated() -> None:
    whole, partial = Play(make_control()).finish(), Play(make_control()).finish(panics={0})

    expected = rows(whole).bootstrap_values[1:, -1]
    assert torch.equal(rows(partial).bootstrap_values[1:, -1], expected)


def test_a_row_without_a_legal_op_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    control = make_control()
    make_masks = control.masker.masks

    def without_ops(*args):
        masks = make_masks(*args)
        masks.op[1] = False
        return masks

    monkeypatch.setattr(control, "masker", SimpleNamespace(masks=without_ops))
    with pytest.raises(ContractError, match="env 1, step 0: no op is legal"):
        Play(control).step()


def test_steps_without_a_choice_are_flagged() -> None:
    play = Play(make_control())
    cooling = (make_report(stage=Stage.EMBARGOED),)
    record = play.step(evidence={1: env_evidence(1, 0, reports=cooling)})
    play.finish()

    assert record.is_forced == (False, True, False)
    assert rows(play).is_forced[:, 0].tolist() == [False, True, False]
    assert [action.is_forced for action in told(play, LastAction)[:3]] == [False, True, False]
    assert play.control.tally.mask_hit_rates().forced_count == 1


def test_a_step_without_a_choice_is_reported_for_every_controller() -> None:
    play = Play(wait_control())
    cooling = (make_report(stage=Stage.EMBARGOED),)
    play.step(evidence={1: env_evidence(1, 0, reports=cooling)})

    assert [action.is_forced for action in told(play, LastAction)] == [False, True, False]


def test_contribution_targets_come_from_this_step_alone() -> None:
    play = Play(make_control())
    held = (make_report("r0c1", Stage.HOLDING, contribution_pp=4.0, steps_since_contribution=0),)
    stale = (make_report("r0c1", Stage.HOLDING, contribution_pp=4.0, steps_since_contribution=1),)
    play.step(evidence={0: env_evidence(0, 0, reports=held, attribution=attribution(r0c1=4.0))})
    play.step(evidence={0: env_evidence(0, 1, reports=stale)})
    play.finish()

    batch = rows(play)
    assert batch.contributions[0, :2, 1].tolist() == [4.0, 0.0]
    assert batch.is_measured[0, :2].tolist() == [[False, True, False], [False, False, False]]
    assert batch.is_measured.sum() == 1


def test_credit_goes_to_the_op_that_took_effect() -> None:
    play = Play(make_control())
    evidence = env_evidence(0, 0)
    action = ActionSpec(op=Op.GERMINATE, slot_id=SLOTS[0], blueprint=Blueprint.NORM)
    vetoed = ActionOutcome(
        action=action, effective_op=Op.WAIT, succeeded=False, veto_reason="val_loss is not finite"
    )
    done = ActionOutcome(action=action, effective_op=Op.GERMINATE, succeeded=True)
    play.step(
        outcomes={
            0: env_outcome(evidence, outcome=vetoed),
            1: env_outcome(env_evidence(1, 0), outcome=done),
        }
    )
    play.finish()

    assert rows(play).effective_ops[:, 0].tolist() == [Op.WAIT, Op.GERMINATE, Op.WAIT]
    veto = told(play, LastAction)[0]
    assert (veto.op, veto.effective_op, veto.succeeded) == ("GERMINATE", "WAIT", False)
    assert veto.veto_reason == "val_loss is not finite"


def test_a_final_accuracy_at_the_threshold_is_a_success() -> None:
    play = Play(make_control())
    good = make_signals(step=NUM_STEPS - 1, val_loss=3.0, val_accuracy_pct=80.0)
    play.finish(evidence={0: env_evidence(0, NUM_STEPS - 1, signals=good)})

    statuses = [episode.status for episode in play.control.learn().episodes]
    assert statuses == [EpisodeStatus.SUCCESS, EpisodeStatus.TIMEOUT, EpisodeStatus.TIMEOUT]


def test_growth_is_judged_by_what_the_last_step_left() -> None:
    play = Play(make_control())
    before = (make_report("r0c0", num_params=500), make_report("r0c1", num_params=500))
    evidence = env_evidence(0, NUM_STEPS - 1, reports=before, total_params=2000)
    after = (make_report("r0c1", num_params=500),)
    play.finish(evidence={0: evidence}, outcomes={0: rolled_back(evidence, reports=after)})

    assert play.control.learn().episodes[0].param_ratio == 1.5


def test_a_new_round_starts_with_empty_books() -> None:
    play = Play(make_control())
    play.step(panics={0})
    play.finish()
    play.control.learn()
    play.control.begin_round(1)
    again = Play(play.control, round_index=1).finish()

    result = play.control.learn()
    assert [episode.episode_id for episode in result.episodes] == [3, 4, 5]
    assert result.rollback_attempts == 0
    assert result.tally.num_decisions == NUM_ENVS * NUM_STEPS
    assert len(told(again, EpisodeOutcome)) == NUM_ENVS


def test_a_controller_that_does_not_learn_leaves_no_metrics() -> None:
    result = Play(wait_control()).finish().control.learn()

    assert result.metrics is None
    assert result.reward_scale is None
    assert result.tally.action_distribution(()).counts["WAIT"] == NUM_ENVS * NUM_STEPS


def test_learning_takes_the_finished_round_and_empties_the_rollout() -> None:
    play = Play(make_control())
    for step in range(NUM_STEPS):
        play.step(deltas=deltas_at(step))

    result = play.control.learn()

    assert result.metrics.num_optimizer_steps > 0
    assert result.reward_scale > 0
    assert result.update_ms > 0
    assert play.control.learner.agent.buffer.num_rows == 0


def test_ratios_are_one_before_the_first_step_of_every_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever changes from round to round must not change between a rollout and its update."""
    compute, found = ppo_update.compute_ratios, []

    def noting(log_probs: Tensor, batch: UpdateBatch) -> Ratios:
        found.append((compute(log_probs, batch).joint, batch.is_decision))
        return compute(log_probs, batch)

    monkeypatch.setattr(ppo_update, "compute_ratios", noting)
    policy = small_policy(lr=0.01, num_minibatches=1, total_updates=3, floor_end=0.05)
    control = make_control(policy)
    mixtures = []
    for round_index in range(3):
        control.begin_round(round_index)
        play = Play(control, round_index=round_index)
        for step in range(NUM_STEPS):
            play.step(deltas=deltas_at(step), panics={1} if step == 2 else ())
        mixtures.append(policy.agent.network.space.mixtures.clone())
        control.learn()

    assert len(found) == 3
    for joint, is_decision in found:
        assert int(is_decision.sum()) > 10
        torch.testing.assert_close(joint, torch.ones_like(joint), atol=3e-5, rtol=0)
    assert bool((mixtures[0] > mixtures[1]).all() and (mixtures[1] > mixtures[2]).all())


def test_the_scale_of_rewards_is_learned_from_what_was_paid_alone() -> None:
    play = Play(make_control())
    play.step(deltas={0: 1.0, 1: 2.0, 2: 3.0})
    play.step(deltas={0: 1.0, 1: 2.0, 2: 3.0}, panics={2})
    play.finish()
    batch = rows(play)
    returns = discounted_returns(
        batch.rewards.double(), ends=batch.ends, valid=batch.valid, gamma=0.995
    )
    paid = returns[batch.valid & ~batch.is_forfeited]

    result = play.control.learn()

    state = play.control.learner.reward_normalizer.state_dict()
    assert int(state["count"]) == len(paid) == 3 * NUM_STEPS - 2
    assert result.reward_scale == pytest.approx(float(paid.std(correction=0)))


FATES = st.sampled_from(["act", "act", "act", "panic", "break before", "break in apply"])


@settings(max_examples=40)
@given(st.lists(st.tuples(FATES, FATES), min_size=5, max_size=5))
def test_rewards_reported_less_what_rollbacks_take_are_what_episodes_sum_up_to(script) -> None:
    """Whatever happens to envs: one end each, and its sum follows from the events alone."""
    play = Play(make_control(num_envs=2, num_steps=5))
    for step, fates in enumerate(script):
        chosen = {
            name: {env for env, fate in enumerate(fates) if fate == name and env not in play.gone}
            for name in ("panic", "break before", "break in apply")
        }
        play.step(
            deltas=dict.fromkeys(range(2), 0.1 * (step + 1)),
            panics=chosen["panic"],
            breaking_before=chosen["break before"],
            breaking_in_apply=chosen["break in apply"],
        )

    for env_id in range(2):
        mine = [draft for draft in play.drafts if draft.scope.env_id == env_id]
        paid: dict[int, float] = {}
        for draft in mine:
            match draft.payload:
                case LastAction(reward=reward):
                    paid[draft.scope.step] = reward
                case GovernorRollback(blamed_step=int(blamed), num_steps_forfeited=number):
                    steps = sorted(paid)[: sorted(paid).index(blamed) + 1][-number:]
                    paid |= dict.fromkeys(steps, 0.0) | {blamed: PENALTY}
        (end,) = [item.payload for item in mine if isinstance(item.payload, EpisodeOutcome)]
        assert isinstance(mine[-1].payload, EpisodeOutcome)
        assert end.total_reward == pytest.approx(sum(paid.values()))
        assert (end.status == "failed") == (env_id in play.gone)
    if len(play.gone) < 2:
        play.control.learn()
