"""The PPO update: ratios, losses, gates."""

import math
from dataclasses import fields, replace

import msgspec
import pytest
import torch
from tests.simic.agent.rollouts import (
    NUM_ENVS,
    NUM_STEPS,
    learn_round,
    play_round,
    rows_of,
    small_agent,
)
from tests.tamiyo.policies import generator, random_inputs, random_masks
from torch import Tensor

from esper.leyline.actions import HEADS, Head, Op, causal_heads
from esper.leyline.config import AdvantageNorm
from esper.simic.agent import ppo_update
from esper.simic.agent.gae import Advantages
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.agent.ppo_config import Coefficients
from esper.simic.agent.ppo_metrics import LossMetrics, materialize_figures, materialize_heads
from esper.simic.agent.ppo_update import (
    UpdateBatch,
    UpdateTrace,
    build_update_batch,
    run_update,
)
from esper.simic.normalizers import RewardNormalizer
from esper.tamiyo.mask_types import ActionMasks
from esper.tamiyo.network import draw_uniforms

ROLLBACKS = [(1, 4), (2, 0), (3, 8), (3, 2), (4, 1)]
WEIGHTS = Coefficients(
    lr=3e-4, entropy=0.05, value=0.5, floor=1.0, floor_scale=1.0, contribution=0.05
)


def prepared(agent: PPOAgent) -> UpdateBatch:
    """Return the buffer's round as the update sees it, with made-up advantages."""
    batch = agent.buffer.batch()
    advantages = torch.randn(batch.values.shape, generator=generator(7))
    zeros = torch.zeros_like(advantages)
    return build_update_batch(
        agent.network,
        batch,
        cuts=agent.buffer.cuts(),
        advantages=Advantages(
            advantages=advantages, returns=zeros, realized=zeros, td_errors=zeros
        ),
        old_values=batch.values,
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
    return ppo_update.compute_losses(evaluation, ratios, batch, agent.config, 1.0)


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

        everywhere = log_ratios(agent, batch)
        differences = everywhere[valid]

    assert float(differences.abs().max()) <= 1e-5
    joint = ppo_update.compute_ratios(batch.old_log_probs + everywhere, batch).joint
    assert float((joint[valid] - 1.0).abs().max()) <= 3e-5
    is_single = batch.choice_masks.sum(-1)[valid] == 1
    assert int(is_single.sum()) > 50
    assert bool((differences[is_single] == 0.0).all())


def test_log_ratio_of_a_vetoed_op_is_zero_too() -> None:
    # The heads were sampled under the op that was chosen, whatever took effect in its place.
    agent = small_agent()
    play_round(agent, rollbacks=ROLLBACKS)
    rows = agent.buffer.batch()
    assert int((rows.actions[..., -1] != Op.WAIT).sum()) > 10
    rows.effective_ops.fill_(Op.WAIT)

    assert float(log_ratios(agent, prepared(agent))[rows.valid].abs().max()) <= 1e-5


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


@pytest.mark.parametrize(("share", "is_stopped"), [(1.45, False), (1.55, True)])
def test_kl_stops_the_update_from_one_and_a_half_times_its_target_on(
    share: float, is_stopped: bool
) -> None:
    agent = small_agent(num_epochs=1, num_minibatches=1)
    play_round(agent)
    batch = prepared(agent)
    shift = 0.3 * torch.randn(batch.old_log_probs.shape, generator=generator(3))
    batch = replace(batch, old_log_probs=batch.old_log_probs + shift)
    with torch.no_grad():
        evaluation = ppo_update.evaluate_actions(agent.network, batch)
    kl = ppo_update.compute_ratios(evaluation.log_probs, batch).kl_divergence.item()
    agent.config = msgspec.structs.replace(agent.config, target_kl=kl / share)

    trace = run(agent, batch)

    assert trace.kl_stop_epoch == (0 if is_stopped else None)
    assert trace.num_optimizer_steps == (0 if is_stopped else 1)


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


def test_joint_ratio_is_the_product_over_the_heads_that_mattered() -> None:
    agent = small_agent()
    play_round(agent, rollbacks=ROLLBACKS)
    batch = prepared(agent)
    shift = 0.3 * torch.randn(batch.old_log_probs.shape, generator=generator(3))

    ratios = ppo_update.compute_ratios(batch.old_log_probs + shift, batch)

    mattered = torch.where(batch.is_learnable, ratios.heads, 1.0)
    torch.testing.assert_close(ratios.joint, mattered.prod(-1), rtol=1e-4, atol=1e-5)


def decisions_of(agent: PPOAgent) -> list[tuple[int, int, list[int]]]:
    """Return every valid, free (env, step) of the buffer with the rows of its causal heads."""
    rows = agent.buffer.batch()
    found = []
    for env in range(NUM_ENVS):
        for step in range(NUM_STEPS):
            if rows.valid[env, step] and not rows.is_forced[env, step]:
                causal = causal_heads(Op(int(rows.effective_ops[env, step])))
                found.append((env, step, [HEADS.index(head) for head in causal]))
    return found


def test_policy_loss_and_kl_are_means_over_decisions() -> None:
    agent = small_agent()
    play_round(agent, rollbacks=ROLLBACKS)
    agent.buffer.batch().is_forced[:2, :4] = True  # no decisions, as nothing could be decided
    batch = prepared(agent)
    shift = 0.5 * torch.randn(batch.old_log_probs.shape, generator=generator(3))
    batch = replace(batch, old_log_probs=batch.old_log_probs + shift)
    with torch.no_grad():
        evaluation = ppo_update.evaluate_actions(agent.network, batch)
    terms, estimates = [], []
    for env, step, causal in decisions_of(agent):
        changes = (evaluation.log_probs - batch.old_log_probs)[env, step, causal].tolist()
        advantage = float(batch.advantages[env, step])
        ratios = [math.exp(change) for change in changes]
        clipped = [min(max(ratio, 0.8), 1.2) for ratio in ratios]
        pairs = zip(ratios, clipped, strict=True)
        terms.append(math.fsum(min(one * advantage, other * advantage) for one, other in pairs))
        estimates.append(math.prod(ratios) - 1 - math.fsum(changes))

    found = ppo_update.compute_ratios(evaluation.log_probs, batch)
    expected_loss, expected_kl = -math.fsum(terms) / len(terms), math.fsum(estimates) / len(terms)

    assert losses_of(agent, batch).policy.item() == pytest.approx(expected_loss, rel=1e-4)
    assert found.kl_divergence.item() == pytest.approx(expected_kl, rel=1e-4)


def test_policy_gradient_at_ratio_one_is_that_of_the_joint_policy() -> None:
    agent = small_agent()
    play_round(agent, rollbacks=ROLLBACKS)
    batch = prepared(agent)
    found = gradients_of(agent, losses_of(agent, batch).policy)

    evaluation = ppo_update.evaluate_actions(agent.network, batch)
    scores = [
        float(batch.advantages[env, step]) * evaluation.log_probs[env, step, causal].sum()
        for env, step, causal in decisions_of(agent)
    ]
    expected = gradients_of(agent, -torch.stack(scores).mean())

    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-5, msg=name)
    assert max(float(item.abs().max()) for item in expected.values()) > 1e-2


def gradients_of(agent: PPOAgent, loss: Tensor) -> dict[str, Tensor]:
    agent.network.zero_grad()
    loss.backward()
    return {
        name: item.grad.clone()
        for name, item in agent.network.named_parameters()
        if item.grad is not None
    }


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

    assert loss.item() == pytest.approx((float(predicted.detach()) - math.log(26.0)) ** 2, rel=1e-5)


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


def test_advantages_of_steps_without_a_choice_or_a_row_enter_no_mean() -> None:
    config = small_agent().config
    mask = torch.tensor([[True, True, False, True, False]])
    some = torch.tensor([[1.0, 4.0, 999.0, -2.0, -999.0]])

    normalized = ppo_update.normalized_advantages(some, mask, config)

    decided = torch.tensor([1.0, 4.0, -2.0])
    expected = (decided - 1.0) / decided.std(correction=0)
    torch.testing.assert_close(normalized[mask], expected)
    assert normalized[~mask].tolist() == [0.0, 0.0]


def test_round_is_normalised_over_its_decisions_alone() -> None:
    agent = small_agent()
    play_round(agent, rollbacks=ROLLBACKS)
    rows = agent.buffer.batch()
    rows.is_forced[0, :3] = True
    is_decision = rows.valid & ~rows.is_forced
    plain = torch.randn(rows.values.shape, generator=generator(7))
    zeros = torch.zeros_like(plain)
    found = [
        build_update_batch(
            agent.network,
            rows,
            cuts=agent.buffer.cuts(),
            advantages=Advantages(
                advantages=advantages, returns=zeros, realized=zeros, td_errors=zeros
            ),
            old_values=zeros,
            value_targets=zeros,
            config=agent.config,
        ).advantages
        for advantages in (plain, torch.where(is_decision, plain, 999.0))
    ]

    assert torch.equal(found[0], found[1])
    assert found[0][is_decision].mean().item() == pytest.approx(0.0, abs=1e-5)


def test_advantages_can_be_normalised_by_minibatch() -> None:
    seen = {}
    for norm in AdvantageNorm:
        agent = small_agent(advantage_norm=norm, num_epochs=1, num_minibatches=2)
        play_round(agent)
        batch, taken = prepared(agent), []
        with pytest.MonkeyPatch.context() as patch:
            compute = ppo_update.compute_losses

            def noting(evaluation, ratios, part, *rest, compute=compute, taken=taken):
                taken.append(part.advantages[part.is_decision])
                return compute(evaluation, ratios, part, *rest)

            patch.setattr(ppo_update, "compute_losses", noting)
            run(agent, batch)
        seen[norm] = taken

    for part in seen[AdvantageNorm.MINIBATCH]:
        assert part.mean().item() == pytest.approx(0.0, abs=1e-5)
        assert part.std(correction=0).item() == pytest.approx(1.0, abs=1e-4)
    whole = torch.cat(seen[AdvantageNorm.ROUND])
    assert whole.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert abs(seen[AdvantageNorm.ROUND][0].mean().item()) > 1e-3


def run(agent: PPOAgent, batch: UpdateBatch, weights: Coefficients = WEIGHTS) -> UpdateTrace:
    return run_update(
        agent.network,
        agent.optimizer,
        batch,
        config=agent.config,
        weights=weights,
        generator=generator(1),
    )


@pytest.mark.parametrize("clip", [None, 0.1, 0.5])
def test_clipped_value_loss_is_the_larger_of_two_errors(clip: float | None) -> None:
    agent = small_agent(value_clip=clip)
    play_round(agent, rollbacks=ROLLBACKS)
    batch = prepared(agent)
    old = batch.value_targets + torch.randn(batch.old_values.shape, generator=generator(4))
    batch = replace(batch, old_values=old)
    with torch.no_grad():
        values = ppo_update.evaluate_actions(agent.network, batch).output.values
    total = weight = 0.0
    for value, before, target, share in zip(
        *(item.flatten().tolist() for item in (values, old, batch.value_targets)),
        batch.value_weights.flatten().tolist(),
        strict=True,
    ):
        errors = [(value - target) ** 2]
        if clip is not None:
            errors.append((before + min(max(value - before, -clip), clip) - target) ** 2)
        total, weight = total + share * max(errors), weight + share

    assert losses_of(agent, batch).value.item() == pytest.approx(0.5 * total / weight, rel=1e-5)


def test_learning_rate_is_that_of_the_schedule() -> None:
    agent = small_agent(num_epochs=1)
    play_round(agent)
    batch, before = prepared(agent), weights_of(agent)

    run(agent, batch, replace(WEIGHTS, lr=0.0))

    assert are_equal(before, weights_of(agent))
    assert {group["lr"] for group in agent.optimizer.param_groups} == {0.0}
    run(agent, batch, replace(WEIGHTS, lr=1e-3))
    assert not are_equal(before, weights_of(agent))


@pytest.mark.parametrize(("num_minibatches", "num_steps"), [(1, 1), (2, 2), (3, 3), (6, 6), (9, 6)])
def test_pass_has_the_number_of_minibatches_that_is_configured(
    num_minibatches: int, num_steps: int
) -> None:
    agent = small_agent(num_epochs=1, num_minibatches=num_minibatches, target_kl=None)
    play_round(agent)

    assert run(agent, prepared(agent)).num_optimizer_steps == num_steps


def test_permuting_envs_permutes_results_and_nothing_else() -> None:
    agent = small_agent()
    play_round(agent, rollbacks=ROLLBACKS)
    batch, order = prepared(agent), [4, 2, 0, 5, 1, 3]
    moved = batch.rows(order)
    with torch.no_grad():
        one = ppo_update.evaluate_actions(agent.network, batch)
        other = ppo_update.evaluate_actions(agent.network, moved)
        totals = [losses_of(agent, item).total(WEIGHTS) for item in (batch, moved)]

    torch.testing.assert_close(one.log_probs[order], other.log_probs, rtol=0, atol=1e-6)
    torch.testing.assert_close(one.output.values[order], other.output.values, rtol=0, atol=1e-6)
    torch.testing.assert_close(totals[0], totals[1], rtol=1e-5, atol=1e-6)


def test_k3_estimates_the_exact_kl_of_the_joint_policy_per_decision() -> None:
    num_envs = 4000
    agent = small_agent(num_envs=num_envs, num_steps=1)
    obs, blueprints = random_inputs(generator(1), 1)
    masks = full_masks(1)
    everywhere = full_masks(num_envs)
    decision = agent.decide(
        obs.expand(num_envs, -1),
        blueprints.expand(num_envs, -1),
        everywhere,
        agent.initial_state(),
        uniforms=draw_uniforms(num_envs, generator(2)),
    )
    rows = rows_of(
        obs.expand(num_envs, -1),
        blueprints.expand(num_envs, -1),
        everywhere,
        decision,
        [0.0] * num_envs,
    )
    agent.buffer.record(0, rows, range(num_envs))
    for env in range(num_envs):
        agent.buffer.terminate(env)
    old = joint_policy(agent, obs, blueprints, masks)
    with torch.no_grad():
        for head in agent.network.heads.values():
            noise = torch.randn(head[-1].bias.shape, generator=generator(3))
            head[-1].bias.add_(0.5 * noise)
    new = joint_policy(agent, obs, blueprints, masks)
    batch = prepared(agent)
    with torch.no_grad():
        evaluation = ppo_update.evaluate_actions(agent.network, batch)

    found = ppo_update.compute_ratios(evaluation.log_probs, batch).kl_divergence.item()

    assert old.sum().item() == pytest.approx(1.0, abs=1e-5)
    assert new.sum().item() == pytest.approx(1.0, abs=1e-5)
    exact = (old * (old / new).log()).sum().item()
    assert exact > 0.01
    assert found == pytest.approx(exact, rel=0.15)


def full_masks(num_envs: int) -> ActionMasks:
    """Return masks under which every op, slot and choice is legal."""
    masks = random_masks(generator(0), num_envs)
    return ActionMasks(
        **{item.name: torch.ones_like(getattr(masks, item.name)) for item in fields(masks)}
    )


@torch.no_grad()
def joint_policy(agent: PPOAgent, obs: Tensor, blueprints: Tensor, masks: ActionMasks) -> Tensor:
    """Return the probability of every action of one env, by enumeration."""
    logits = agent.network.step(obs, blueprints, agent.network.initial_state(1)).logits
    space, sums = agent.network.space, []
    for op in Op:
        probs = space.distributions(logits, space.choice_masks(masks, torch.tensor([op]))).probs[0]
        table = probs[HEADS.index(Head.OP), op].reshape(1)
        for row, head in enumerate(HEADS):
            if head is not Head.OP:
                legal_choices = probs[row][probs[row] > 0]
                table = torch.outer(table, legal_choices).flatten()
        sums.append(table)
    return torch.cat(sums).double()


def test_inactive_heads_have_no_probability_entropy_or_gradient() -> None:
    agent = small_agent()
    play_round(agent, rollbacks=ROLLBACKS)
    batch, rows = prepared(agent), agent.buffer.batch()
    evaluation = ppo_update.evaluate_actions(agent.network, batch)
    is_inactive = ~agent.network.space.causal[rows.actions[..., -1]] & rows.valid.unsqueeze(-1)

    assert int(is_inactive.sum()) > 100
    for numbers in (evaluation.log_probs, evaluation.entropies, batch.old_log_probs):
        assert bool((numbers[is_inactive] == 0.0).all())
    gradients = torch.autograd.grad(
        evaluation.log_probs[is_inactive].sum() + evaluation.entropies[is_inactive].sum(),
        evaluation.output.logits,
        allow_unused=True,
    )[0]
    assert gradients is None or not bool(gradients.any())


def test_masks_are_stored_with_the_decision_and_not_shared_with_it() -> None:
    agent = small_agent(num_steps=1)
    obs, blueprints = random_inputs(generator(1), NUM_ENVS)
    masks = random_masks(generator(2), NUM_ENVS)
    uniforms = draw_uniforms(len(obs), generator(3))
    decision = agent.decide(obs, blueprints, masks, agent.initial_state(), uniforms=uniforms)
    agent.buffer.record(0, rows_of(obs, blueprints, masks, decision, [0.0] * NUM_ENVS), range(6))
    before = {item.name: getattr(masks, item.name).clone() for item in fields(masks)}

    for item in fields(masks):
        getattr(masks, item.name).logical_not_()

    stored = agent.buffer._rows.masks
    assert all(torch.equal(getattr(stored, name)[:, 0], kept) for name, kept in before.items())


def test_total_loss_weights_each_term_by_its_coefficient() -> None:
    terms = {"policy": 2.0, "value": 3.0, "q": 5.0, "entropy": 7.0}
    losses = ppo_update.Losses(
        **{name: torch.tensor(value) for name, value in terms.items()},
        floor_penalty=torch.tensor(11.0),
        contribution=torch.tensor(13.0),
    )
    weights = replace(WEIGHTS, value=0.25, entropy=0.125, floor=0.5, contribution=0.0625)

    total = losses.total(weights)

    # The two critics have one target; the second counts half.
    expected = 2.0 + 0.25 * (3.0 + 0.5 * 5.0) - 0.125 * 7.0 + 0.5 * 11.0 + 0.0625 * 13.0
    assert float(total) == pytest.approx(expected)


def gradient_norm(module: torch.nn.Module) -> float:
    squares = [item.grad.square().sum() for item in module.parameters() if item.grad is not None]
    return math.sqrt(float(sum(squares)))


def test_metrics_of_a_step_are_those_of_its_decisions() -> None:
    # Without clipping, the gradients that are left in place are those that were measured.
    agent = small_agent(num_epochs=1, num_minibatches=1, target_kl=None, max_grad_norm=1e9)
    play_round(agent, rollbacks=ROLLBACKS)
    batch = prepared(agent)
    shift = 0.3 * torch.randn(batch.old_log_probs.shape, generator=generator(3))
    advantages = batch.advantages.clone()
    advantages[0] = 0.0  # neither positive nor negative
    batch = replace(batch, old_log_probs=batch.old_log_probs + shift, advantages=advantages)
    with torch.no_grad():
        evaluation = ppo_update.evaluate_actions(agent.network, batch)
        ratios = ppo_update.compute_ratios(evaluation.log_probs, batch)
    clip = agent.config.clip_ratio

    trace = run(agent, batch)

    [found] = materialize_figures(LossMetrics, trace.losses)
    joint, credit = ratios.joint[batch.is_decision], batch.advantages[batch.is_decision]
    high, low = joint > 1 + clip, joint < 1 - clip
    assert high[credit == 0].any()
    assert low[credit == 0].any()
    chosen = evaluation.log_probs[batch.is_learnable]
    expected = {
        "clip_fraction": (high.sum() + low.sum()) / len(joint),
        "clip_fraction_positive": high[credit > 0].sum() / len(joint),
        "clip_fraction_negative": low[credit < 0].sum() / len(joint),
        "ratio_mean": joint.mean(),
        "ratio_std": joint.std(unbiased=False),
        "ratio_min": joint.min(),
        "ratio_max": joint.max(),
        "log_prob_min": chosen.min(),
        "log_prob_max": chosen.max(),
        "entropy": evaluation.entropies[batch.is_learnable].mean(),
        "value_gradient_norm": gradient_norm(agent.network.value),
        "q_gradient_norm": gradient_norm(agent.network.q),
    }
    assert 0.0 < float(expected["clip_fraction_positive"]) < float(expected["clip_fraction"])
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(float(value), rel=1e-4, abs=1e-6), name
    weighted = evaluation.entropies * evaluation.entropies.new_tensor(agent.config.entropy_weights)
    bonus = (weighted * batch.is_learnable).sum(-1)[batch.is_decision].mean()
    losses = ppo_update.compute_losses(evaluation, ratios, batch, agent.config, 1.0)
    assert float(losses.entropy) == pytest.approx(float(bonus), rel=1e-4)
    [heads] = materialize_heads(trace.heads)
    for place, head in enumerate(HEADS):
        mask, free = batch.is_learnable[..., place], batch.is_available[..., place]
        mine = ratios.heads[..., place][mask]
        assert heads[head].learnable_fraction == pytest.approx(
            int(mask.sum()) / int((batch.value_weights > 0).sum())
        )
        if free.any():
            seen = evaluation.available_entropies[..., place][free].mean()
            assert heads[head].entropy == pytest.approx(float(seen), rel=1e-4)
        if mask.any():
            assert heads[head].ratio_max == pytest.approx(float(mine.max()), rel=1e-4)
            is_clipped = (mine > 1 + clip) | (mine < 1 - clip)
            assert heads[head].clip_fraction == pytest.approx(float(is_clipped.float().mean()))


def test_metrics_of_a_single_decision_are_those_of_that_decision() -> None:
    agent = small_agent(num_envs=1, num_steps=1, num_epochs=1, num_minibatches=1, target_kl=None)
    play_round(agent)
    batch = prepared(agent)
    batch = replace(batch, old_log_probs=batch.old_log_probs - 1.0)  # each ratio is e
    with torch.no_grad():
        entropies = ppo_update.evaluate_actions(agent.network, batch).available_entropies

    trace = run(agent, batch)

    [heads] = materialize_heads(trace.heads)
    is_learnable = dict(zip(HEADS, batch.is_learnable[0, 0].tolist(), strict=True))
    is_available = dict(zip(HEADS, batch.is_available[0, 0].tolist(), strict=True))
    assert {True, False} == set(is_learnable.values()) == set(is_available.values())
    for head, entropy in zip(HEADS, entropies[0, 0].tolist(), strict=True):
        found = heads[head]
        assert found.learnable_fraction == is_learnable[head]
        assert found.entropy == (pytest.approx(entropy) if is_available[head] else None)
        assert found.ratio_max == (pytest.approx(math.e) if is_learnable[head] else None)
        assert found.clip_fraction == (1.0 if is_learnable[head] else None)


def test_metrics_of_a_step_contain_its_losses_and_gradient_norms() -> None:
    agent = small_agent(num_epochs=1, num_minibatches=1, target_kl=None, max_grad_norm=1e9)
    play_round(agent)
    rows = agent.buffer.batch()
    rows.contributions[2, 3, 0], rows.is_measured[2, 3, 0] = -7.0, True
    batch = prepared(agent)
    with torch.no_grad():
        losses = losses_of(agent, batch)

    trace = run(agent, batch)

    [found] = materialize_figures(LossMetrics, trace.losses)
    expected = {
        "policy_loss": losses.policy,
        "value_loss": losses.value,
        "q_loss": losses.q,
        "contribution_loss": losses.contribution,
        "floor_penalty": losses.floor_penalty,
        "gradient_norm": gradient_norm(agent.network),
    }
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(float(value), rel=1e-4, abs=1e-6), name
    [heads] = materialize_heads(trace.heads)
    for head, net in zip(HEADS, agent.network.heads.values(), strict=True):
        assert heads[head].gradient_norm == pytest.approx(gradient_norm(net), rel=1e-4)
    assert trace.num_optimizer_steps == 1
    assert trace.state is not None


def test_metrics_that_nothing_measures_are_missing() -> None:
    agent = small_agent(num_epochs=1, num_minibatches=1)
    play_round(agent, is_forced=True)

    trace = run(agent, prepared(agent))

    [found] = materialize_figures(LossMetrics, trace.losses)
    for name in ("ratio_min", "ratio_max", "log_prob_min", "log_prob_max", "contribution_loss"):
        assert getattr(found, name) is None, name
    assert (found.clip_fraction, found.ratio_mean, found.ratio_std) == (0.0, 0.0, 0.0)
    [heads] = materialize_heads(trace.heads)
    for head in HEADS:
        metrics = heads[head]
        assert metrics.learnable_fraction == 0.0
        assert (metrics.entropy, metrics.ratio_max, metrics.clip_fraction) == (None, None, None)
        assert metrics.gradient_norm is None


def test_gradients_that_are_not_finite_are_counted_by_kind() -> None:
    agent = small_agent(num_epochs=1, num_minibatches=2)
    play_round(agent)
    weight = agent.network.value[-1].weight

    def spoiled(gradient: Tensor) -> Tensor:
        broken = torch.full_like(gradient, torch.inf)
        broken.flatten()[0] = torch.nan
        return broken

    with weight.register_hook(spoiled):
        trace = run(agent, prepared(agent))

    assert trace.num_finiteness_skips == 2
    assert (trace.num_optimizer_steps, trace.kl_divergence, trace.state) == (0, None, None)
    assert (trace.losses, trace.heads) == ([], [])
    assert trace.nonfinite == ["gradient"] * 2
    assert trace.nan_gradient_count == 2
    assert trace.inf_gradient_count == 2 * (weight.numel() - 1)


@pytest.mark.parametrize("part", [*HEADS, "value", "q"])
def test_part_whose_results_are_not_finite_is_named(part: str) -> None:
    agent = small_agent(num_epochs=1, num_minibatches=1)
    play_round(agent)
    parts = dict(zip(HEADS, agent.network.heads.values(), strict=True))
    module = parts.get(part) or getattr(agent.network, part)
    with torch.no_grad():
        module[-1].bias.fill_(torch.inf if part in ("value", "q") else torch.nan)

    trace = run(agent, prepared(agent))

    assert trace.nonfinite == [part, "gradient"]
    assert trace.num_finiteness_skips == 1


def test_ratio_beyond_the_bound_counts_as_the_bound() -> None:
    agent = small_agent()
    play_round(agent)
    batch = prepared(agent)
    for sign in (-1.0, 1.0):
        moved = replace(batch, old_log_probs=batch.old_log_probs - sign * 1000.0)
        ratios = ppo_update.compute_ratios(batch.old_log_probs, moved)
        bound = math.exp(20.0 * sign)
        decided = ratios.joint[batch.is_decision]
        torch.testing.assert_close(decided, torch.full_like(decided, bound))
        torch.testing.assert_close(ratios.heads, torch.full_like(ratios.heads, bound))
        kl = bound - 1.0 - 20.0 * sign
        assert ratios.kl_divergence.item() == pytest.approx(kl, rel=1e-5)


def test_floor_penalty_is_the_weighted_square_of_what_the_mean_entropies_lack() -> None:
    floors = tuple(0.9 + 0.01 * place for place in range(len(HEADS)))
    prices = tuple(1.0 + place for place in range(len(HEADS)))
    agent = small_agent(entropy_floors=floors, floor_penalties=prices)
    play_round(agent, rollbacks=ROLLBACKS)
    batch = prepared(agent)
    with torch.no_grad():
        evaluation = ppo_update.evaluate_actions(agent.network, batch)
        ratios = ppo_update.compute_ratios(evaluation.log_probs, batch)
    for scale in (1.0, 0.7):
        expected = 0.0
        for place in range(len(HEADS)):
            free = batch.is_available[..., place]
            mean = evaluation.available_entropies[..., place][free].mean().item()
            expected += prices[place] * max(0.0, scale * floors[place] - mean) ** 2

        losses = ppo_update.compute_losses(evaluation, ratios, batch, agent.config, scale)

        assert losses.floor_penalty.item() == pytest.approx(expected, rel=1e-4)


def test_gradients_are_clipped_to_the_largest_norm() -> None:
    agent = small_agent(num_epochs=1, num_minibatches=1, target_kl=None, max_grad_norm=0.01)
    play_round(agent)

    trace = run(agent, prepared(agent))

    [found] = materialize_figures(LossMetrics, trace.losses)
    assert found.gradient_norm > 0.02
    assert gradient_norm(agent.network) == pytest.approx(0.01, rel=1e-3)


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
