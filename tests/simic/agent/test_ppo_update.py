"""The PPO update: ratios, losses, gates."""

from dataclasses import replace

import pytest
import torch
from tests.simic.agent.rollouts import NUM_ENVS, NUM_STEPS, learn_round, play_round, small_agent
from tests.tamiyo.policies import generator
from torch import Tensor

from esper.leyline.actions import HEADS, Head, Op, causal_heads
from esper.simic.agent import ppo_update
from esper.simic.agent.gae import Advantages
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.agent.ppo_config import Coefficients
from esper.simic.agent.ppo_update import UpdateBatch, build_update_batch, run_update
from esper.simic.normalizers import RewardNormalizer

ROLLBACKS = [(1, 4), (2, 0), (3, 8), (3, 2), (4, 1)]
WEIGHTS = Coefficients(entropy=0.05, value=0.5, floor=1.0, contribution=0.05)


def prepared(agent: PPOAgent) -> UpdateBatch:
    """Return the buffer's round as the update sees it, with made-up advantages."""
    batch = agent.buffer.batch()
    advantages = torch.randn(batch.values.shape, generator=generator(7))
    zeros = torch.zeros_like(advantages)
    return build_update_batch(
        agent.network,
        batch,
        cuts=agent.buffer.cuts(),
        advantages=Advantages(advantages=advantages, returns=zeros, td_errors=zeros),
        value_targets=torch.randn(batch.values.shape, generator=generator(8)),
        config=agent.config,
    )


def weights_of(agent: PPOAgent) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in agent.network.parameters()]


def are_equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def head_gradients(agent: PPOAgent, loss: Tensor) -> dict[Head, float]:
    agent.network.zero_grad()
    loss.backward()
    return {
        head: sum(float(item.grad.abs().sum()) for item in net.parameters())
        for head, net in zip(HEADS, agent.network.heads.values(), strict=True)
    }


def losses_of(agent: PPOAgent, batch: UpdateBatch) -> ppo_update.Losses:
    evaluation = ppo_update.evaluate_actions(agent.network, batch)
    ratios = ppo_update.compute_ratios(evaluation.log_probs, batch)
    return ppo_update.compute_losses(evaluation, ratios, batch, agent.config)


@torch.no_grad()
def compute_total(agent: PPOAgent) -> Tensor:
    return losses_of(agent, prepared(agent)).total(WEIGHTS)


@torch.no_grad()
def log_ratios(agent: PPOAgent, batch: UpdateBatch) -> Tensor:
    return ppo_update.evaluate_actions(agent.network, batch).log_probs - batch.old_log_probs


@pytest.mark.parametrize("rollbacks", [[], ROLLBACKS])
@pytest.mark.parametrize("has_amp", [False, True])
def test_log_ratio_is_zero_before_the_first_optimizer_step(
    rollbacks: list[tuple[int, int]], has_amp: bool
) -> None:
    agent = small_agent()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=has_amp):
        play_round(agent, rollbacks=rollbacks)
        batch = prepared(agent)
        valid = agent.buffer.batch().valid

        differences = log_ratios(agent, batch)[valid]

    assert float(differences.abs().max()) <= 1e-5
    is_single = batch.choice_masks.sum(-1)[valid] == 1
    assert int(is_single.sum()) > 50
    assert bool((differences[is_single] == 0.0).all())


def test_log_ratio_is_zero_for_each_minibatch_of_rows() -> None:
    agent = small_agent()
    play_round(agent, rollbacks=ROLLBACKS)
    whole, valid = prepared(agent), agent.buffer.batch().valid
    for rows in ([0, 1], [3, 4], [5]):
        differences = log_ratios(agent, whole.rows(rows))[valid[rows]]
        assert float(differences.abs().max()) <= 1e-5


def test_forgetting_to_reset_at_segment_starts_would_show_in_the_ratio() -> None:
    agent = small_agent()
    play_round(agent, rollbacks=ROLLBACKS)
    batch, valid = prepared(agent), agent.buffer.batch().valid
    unbroken = replace(batch, cuts=((),) * NUM_ENVS)

    assert float(log_ratios(agent, unbroken)[valid].abs().max()) > 1e-4


def test_kl_breach_leaves_weights_and_optimizer_bit_identical() -> None:
    agent = small_agent()
    play_round(agent)
    batch = prepared(agent)
    shift = 2.0 * torch.randn(batch.old_log_probs.shape, generator=generator(3))
    moved = replace(batch, old_log_probs=batch.old_log_probs + shift)
    before = weights_of(agent)

    trace = run_update(
        agent.network,
        agent.optimizer,
        moved,
        config=agent.config,
        weights=WEIGHTS,
        generator=generator(1),
    )

    assert trace.kl_stop_epoch == 0
    assert trace.num_optimizer_steps == 0
    assert trace.kl_divergence > 1.5 * agent.config.target_kl
    assert are_equal(before, weights_of(agent))
    assert agent.optimizer.state_dict()["state"] == {}


def test_kl_stop_ends_the_update_between_two_steps() -> None:
    agent = small_agent(lr=0.02, target_kl=0.001)
    play_round(agent)

    metrics = learn_round(agent, RewardNormalizer(), generator=generator(1))

    assert metrics.kl_stop_epoch is not None
    assert 0 < metrics.num_optimizer_steps < 4 * 3
    assert metrics.kl_divergence > 1.5 * 0.001


def test_without_a_target_the_kl_stops_nothing() -> None:
    agent = small_agent(lr=0.02, target_kl=None)
    play_round(agent)

    metrics = learn_round(agent, RewardNormalizer(), generator=generator(1))

    assert metrics.num_optimizer_steps == 4 * 3


def test_step_that_is_not_finite_is_skipped_and_named() -> None:
    agent = small_agent(num_epochs=1)
    play_round(agent)
    batch = prepared(agent)
    batch.obs[2] = float("nan")
    before = weights_of(agent)

    trace = run_update(
        agent.network,
        agent.optimizer,
        batch,
        config=agent.config,
        weights=WEIGHTS,
        generator=generator(1),
    )

    assert (trace.num_finiteness_skips, trace.num_optimizer_steps) == (1, 2)
    assert {"op", "value", "q", "gradient"} <= set(trace.nonfinite)
    assert trace.nan_gradient_count > 0
    assert not are_equal(before, weights_of(agent))
    assert all(bool(torch.isfinite(item).all()) for item in weights_of(agent))


def test_gradients_that_are_not_finite_are_not_stepped_on() -> None:
    agent = small_agent()
    play_round(agent)
    batch = replace(prepared(agent), advantages=torch.full((NUM_ENVS, NUM_STEPS), torch.inf))
    before = weights_of(agent)

    trace = run_update(
        agent.network,
        agent.optimizer,
        batch,
        config=agent.config,
        weights=WEIGHTS,
        generator=generator(1),
    )

    assert trace.num_optimizer_steps == 0
    assert trace.num_finiteness_skips == 12
    assert are_equal(before, weights_of(agent))


def test_huge_log_ratios_stay_finite() -> None:
    agent = small_agent()
    play_round(agent)
    batch = prepared(agent)
    for shift in (-1000.0, 1000.0):
        moved = replace(batch, old_log_probs=batch.old_log_probs + shift)
        ratios = ppo_update.compute_ratios(batch.old_log_probs, moved)
        for numbers in (ratios.heads, ratios.joint, ratios.kl_divergence):
            assert bool(torch.isfinite(numbers).all())


def test_joint_ratio_is_the_product_of_the_heads() -> None:
    agent = small_agent()
    play_round(agent)
    batch = prepared(agent)
    shift = 0.3 * torch.randn(batch.old_log_probs.shape, generator=generator(3))

    ratios = ppo_update.compute_ratios(batch.old_log_probs + shift, batch)

    torch.testing.assert_close(ratios.joint, ratios.heads.prod(-1), rtol=1e-4, atol=1e-5)


def test_policy_loss_clips_each_head_over_the_steps_in_which_it_mattered() -> None:
    agent = small_agent()
    play_round(agent, rollbacks=ROLLBACKS)
    batch = prepared(agent)
    shift = 0.5 * torch.randn(batch.old_log_probs.shape, generator=generator(3))
    batch = replace(batch, old_log_probs=batch.old_log_probs + shift)
    with torch.no_grad():
        evaluation = ppo_update.evaluate_actions(agent.network, batch)
    expected = 0.0
    rows = agent.buffer.batch()
    for row, head in enumerate(HEADS):
        terms = []
        for env in range(NUM_ENVS):
            for step in range(NUM_STEPS):
                op = Op(int(rows.effective_ops[env, step]))
                if not rows.valid[env, step] or head not in causal_heads(op):
                    continue
                old = float(batch.old_log_probs[env, step, row])
                ratio = torch.tensor(float(evaluation.log_probs[env, step, row]) - old).exp()
                advantage = float(batch.advantages[env, step])
                clipped = min(max(float(ratio), 0.8), 1.2)
                terms.append(min(float(ratio) * advantage, clipped * advantage))
        expected -= sum(terms) / max(len(terms), 1)

    assert losses_of(agent, batch).policy.item() == pytest.approx(expected, rel=1e-4)


def test_credit_follows_the_effective_op() -> None:
    agent = small_agent()
    play_round(agent)
    agent.buffer.batch().effective_ops.fill_(Op.WAIT)

    gradients = head_gradients(agent, losses_of(agent, prepared(agent)).policy)

    assert gradients[Head.OP] > 0
    assert all(size == 0 for head, size in gradients.items() if head is not Head.OP)


def test_forced_steps_teach_the_critic_only() -> None:
    agent = small_agent()
    play_round(agent, is_forced=True)
    losses = losses_of(agent, prepared(agent))

    actor = losses.policy - losses.entropy + losses.floor_penalty

    assert all(size == 0 for size in head_gradients(agent, actor).values())
    assert prepared(agent).value_weights.unique().tolist() == pytest.approx([0.2])


def test_head_whose_op_was_legal_but_never_chosen_gets_a_floor_gradient() -> None:
    agent = small_agent(entropy_floors=(0.99,) * len(HEADS))
    play_round(agent)
    rows = agent.buffer.batch()
    rows.actions[..., -1] = Op.WAIT
    rows.effective_ops.fill_(Op.WAIT)
    assert bool(rows.masks.op[..., Op.GERMINATE].any())
    losses = losses_of(agent, prepared(agent))

    from_policy = head_gradients(agent, losses_of(agent, prepared(agent)).policy)
    from_floor = head_gradients(agent, losses.floor_penalty)

    assert from_policy[Head.BLUEPRINT] == 0
    assert all(size > 0 for size in from_floor.values())


def test_floor_penalty_is_zero_for_heads_that_no_legal_op_looks_at() -> None:
    agent = small_agent(entropy_floors=(0.99,) * len(HEADS))
    play_round(agent)
    agent.buffer.batch().masks.op[..., Op.GERMINATE] = False

    gradients = head_gradients(agent, losses_of(agent, prepared(agent)).floor_penalty)

    assert gradients[Head.BLUEPRINT] == 0
    assert gradients[Head.ALPHA_SPEED] > 0


def test_masked_rows_change_nothing() -> None:
    agent = small_agent()
    play_round(agent, rollbacks=ROLLBACKS)
    before = compute_total(agent)
    rows = agent.buffer.batch()
    hole = ~rows.valid
    rows.actions[hole], rows.effective_ops[hole], rows.is_forced[hole] = 1, Op.GERMINATE, True

    after = compute_total(agent)

    assert int(hole.sum()) == len(ROLLBACKS)
    assert torch.equal(before, after)


def test_rows_of_a_discarded_segment_change_nothing() -> None:
    agent = small_agent(entropy_floors=(0.99,) * len(HEADS))
    play_round(agent)
    rows = agent.buffer.batch()
    rows.valid[0] = False
    before = compute_total(agent)

    for mask in (rows.masks.op, rows.masks.blueprint, rows.masks.slot_by_op, rows.masks.tempo):
        mask[0] = True
    rows.is_measured[0] = True
    after = compute_total(agent)

    assert torch.equal(before, after)


def test_contribution_loss_looks_at_measured_slots_only() -> None:
    agent = small_agent()
    play_round(agent)
    assert losses_of(agent, prepared(agent)).contribution.item() == 0.0
    rows = agent.buffer.batch()
    rows.contributions[0, 0, 1], rows.is_measured[0, 0, 1] = 25.0, True
    predicted = ppo_update.evaluate_actions(agent.network, prepared(agent)).contributions[0, 0, 1]

    loss = losses_of(agent, prepared(agent)).contribution

    assert loss.item() == pytest.approx((float(predicted.detach()) - 10.0) ** 2, rel=1e-5)


def test_every_row_is_seen_once_per_epoch_in_a_seeded_order() -> None:
    for num_rows, size in ((6, 2), (7, 2), (1, 1), (10, 3)):
        chunks = list(ppo_update.minibatch_rows(num_rows, size, generator(5)))
        again = list(ppo_update.minibatch_rows(num_rows, size, generator(5)))

        assert sorted(row for chunk in chunks for row in chunk) == list(range(num_rows))
        assert all(len(chunk) <= size for chunk in chunks)
        assert chunks == again


def test_minibatches_are_a_quarter_of_the_envs_rounded_up() -> None:
    sizes = {n: small_agent(num_envs=n).config.rows_per_minibatch for n in (1, 4, 6, 9)}

    assert sizes == {1: 1, 4: 1, 6: 2, 9: 3}


def test_advantages_with_a_small_spread_are_not_blown_up() -> None:
    config = small_agent().config
    valid = torch.ones(1, 4, dtype=torch.bool)
    small = torch.tensor([[0.001, -0.001, 0.001, -0.001]])

    normalized = ppo_update.normalized_advantages(small, valid, config)

    torch.testing.assert_close(normalized, small / 0.1)


def test_cancellation_is_asked_for_between_minibatches() -> None:
    agent = small_agent()
    play_round(agent)
    asked = []

    learn_round(
        agent,
        RewardNormalizer(),
        generator=generator(1),
        check_cancelled=lambda: asked.append(True),
    )

    assert len(asked) == 4 * 3


def test_heads_learn_under_autocast_after_a_decision_in_the_same_context() -> None:
    agent = small_agent(num_epochs=1, entropy_floors=(0.99,) * len(HEADS))
    before = weights_of(agent)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        play_round(agent)
        metrics = learn_round(agent, RewardNormalizer(), generator=generator(1))

    assert metrics.num_optimizer_steps == 3
    names = [name for name, _ in agent.network.named_parameters()]
    stuck = [
        name
        for name, old, new in zip(names, before, weights_of(agent), strict=True)
        if torch.equal(old, new) and not name.startswith("contribution")
    ]
    assert stuck == []
    assert all(row.gradient_norm is not None for row in metrics.heads.values())


def test_whole_update_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    agent = small_agent()
    play_round(agent)

    learn_round(agent, RewardNormalizer(), generator=generator(1))

    assert torch.equal(before, torch.get_rng_state())
