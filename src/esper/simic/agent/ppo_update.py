"""The PPO update: advantages, ratios, losses, clipping, KL early stop and finiteness check.

Shapes: N envs (rows), T steps, K heads, W widest head.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from esper.leyline.actions import HEADS
from esper.leyline.config import AdvantageNorm
from esper.simic.agent.gae import Advantages
from esper.simic.agent.ppo_config import Coefficients, PPOConfig
from esper.simic.agent.ppo_metrics import HeadMetrics, LossMetrics, pack
from esper.simic.agent.rollout_buffer import RolloutBatch
from esper.tamiyo.distributions import OP_ROW
from esper.tamiyo.network import LstmState, PolicyNetwork, PolicyOutput

__all__ = [
    "Evaluation",
    "Losses",
    "Ratios",
    "UpdateBatch",
    "UpdateTrace",
    "build_update_batch",
    "compute_losses",
    "compute_ratios",
    "evaluate_actions",
    "minibatch_rows",
    "normalized_advantages",
    "run_update",
]

MAX_LOG_RATIO: Final = 20.0
KL_STOP_FACTOR: Final = 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateBatch:
    """The inputs of the losses; constant over all epochs."""

    obs: Tensor  # [N, T, D]
    blueprints: Tensor  # [N, T, S]
    starts: Tensor  # bool [N, T]
    actions: Tensor  # [N, T, K]
    old_log_probs: Tensor  # [N, T, K]
    choice_masks: Tensor  # bool [N, T, K, W]
    available_masks: Tensor  # bool [N, T, K, W]
    is_learnable: Tensor  # [N, T, K]: the head mattered for the effective op, and op had a choice
    is_available: Tensor  # [N, T, K]: the head could have mattered, and had a choice
    advantages: Tensor  # [N, T], normalised unless that is done by minibatch
    old_values: Tensor  # [N, T], of the rollout, on the scale of the targets
    value_targets: Tensor  # [N, T], normalised
    value_weights: Tensor  # [N, T]
    ops: Tensor  # [N, T]
    contributions: Tensor  # [N, T, S]
    is_measured: Tensor  # [N, T, S]
    cuts: tuple[tuple[int, ...], ...]
    """For each row, the steps other than the first at which a segment starts."""

    @property
    def is_decision(self) -> Tensor:
        """Return the steps at which the policy had a choice, [N, T]."""
        return self.is_learnable[..., OP_ROW]

    def rows(self, index: Sequence[int]) -> "UpdateBatch":
        """Return the rows of these envs."""
        chosen = torch.tensor(index, dtype=torch.long, device=self.obs.device)
        tensors = {
            item.name: getattr(self, item.name)[chosen]
            for item in fields(self)
            if item.name != "cuts"
        }
        return UpdateBatch(**tensors, cuts=tuple(self.cuts[row] for row in index))

    def all_cuts(self) -> list[int]:
        """Return every step other than the first at which some row starts a segment."""
        return sorted({step for cuts in self.cuts for step in cuts})


@dataclass(eq=False, slots=True)
class UpdateTrace:
    """The record of an update; metrics stay on the device until its end."""

    losses: list[Tensor] = field(default_factory=list)
    heads: list[Tensor] = field(default_factory=list)
    state: LstmState | None = None
    num_optimizer_steps: int = 0
    num_finiteness_skips: int = 0
    nan_gradient_count: int = 0
    inf_gradient_count: int = 0
    nonfinite: list[str] = field(default_factory=list)
    kl_stop_epoch: int | None = None
    kl_divergence: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The stored actions evaluated with the current weights."""

    output: PolicyOutput
    log_probs: Tensor  # [N, T, K]
    entropies: Tensor  # [N, T, K]
    available_entropies: Tensor  # [N, T, K]
    q_values: Tensor  # [N, T]
    contributions: Tensor  # [N, T, S]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratios:
    """Probability ratios of the stored actions, new policy over old policy."""

    heads: Tensor  # [N, T, K], for diagnostics
    joint: Tensor  # [N, T], of the whole decision
    kl_divergence: Tensor
    """Mean over decisions, old policy to new."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Losses:
    """The terms of the loss, unweighted."""

    policy: Tensor
    value: Tensor
    q: Tensor
    entropy: Tensor
    """Entropy bonus: entropies of a decision weighted by head, to be subtracted."""
    floor_penalty: Tensor
    contribution: Tensor

    def total(self, weights: Coefficients) -> Tensor:
        """Return the weighted total loss."""
        return (
            self.policy
            + weights.value * (self.value + 0.5 * self.q)
            - weights.entropy * self.entropy
            + weights.floor * self.floor_penalty
            + weights.contribution * self.contribution
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Verdict:
    """The values on the CPU that decide whether the optimizer steps."""

    kl_divergence: float
    is_finite: bool


def build_update_batch(
    network: PolicyNetwork,
    batch: RolloutBatch,
    *,
    cuts: Sequence[Sequence[int]],
    advantages: Advantages,
    old_values: Tensor,
    value_targets: Tensor,
    config: PPOConfig,
) -> UpdateBatch:
    """Prepare everything that is constant over the epochs."""
    space = network.space
    ops = batch.actions[..., -1]
    available = space.available_masks(batch.masks)
    # Steps of failed envs and steps without a choice: no gradient may come from either.
    is_free = (batch.valid & ~batch.is_forced).unsqueeze(-1)
    weights = torch.where(batch.is_forced, config.forced_value_weight, 1.0)
    by_round = config.advantage_norm is AdvantageNorm.ROUND
    normalized = normalized_advantages(advantages.advantages, is_free.squeeze(-1), config)
    return UpdateBatch(
        obs=batch.obs,
        blueprints=batch.blueprints,
        starts=batch.starts,
        actions=batch.actions,
        old_log_probs=batch.log_probs,
        choice_masks=space.choice_masks(batch.masks, ops),
        available_masks=available.masks,
        # By the op that took effect, not the one that was chosen: a vetoed op became WAIT, for
        # which no other head mattered.
        is_learnable=space.causal[batch.effective_ops] & is_free,
        is_available=available.has_choice & is_free,
        advantages=normalized if by_round else advantages.advantages,
        old_values=old_values,
        value_targets=value_targets,
        value_weights=weights * batch.valid,
        ops=ops,
        contributions=batch.contributions,
        is_measured=batch.is_measured & batch.valid.unsqueeze(-1),
        cuts=tuple(tuple(row) for row in cuts),
    )


def normalized_advantages(advantages: Tensor, is_decision: Tensor, config: PPOConfig) -> Tensor:
    """Standardise over all decisions, with a lower bound on the standard deviation."""
    mean = _masked_mean(advantages, is_decision)
    std = _masked_mean((advantages - mean).square(), is_decision).sqrt()
    # A round in which all advantages are alike would otherwise turn rounding noise into a signal of
    # normal size.
    scale = std.clamp_min(config.advantage_std_floor) + 1e-8
    return torch.where(is_decision, (advantages - mean) / scale, 0.0)


def run_update(
    network: PolicyNetwork,
    optimizer: Optimizer,
    batch: UpdateBatch,
    *,
    config: PPOConfig,
    weights: Coefficients,
    generator: torch.Generator,
    check_cancelled: Callable[[], None] | None = None,
) -> UpdateTrace:
    """Take optimizer steps over minibatches of whole env rows until epochs or KL limit end.

    The last minibatch's gradients are left in place, for diagnostics after an anomaly.

    Args:
        network: the policy network.
        optimizer: over the network's parameters.
        batch: the prepared round.
        config: clip range, KL target, epochs and minibatch size.
        weights: coefficients of the loss terms.
        generator: CPU generator for the order of rows.
        check_cancelled: called between minibatches; may raise to end the update.
    """
    trace = UpdateTrace()
    for group in optimizer.param_groups:
        # The schedule counts rounds; torch's own schedulers count steps.
        group["lr"] = weights.lr
    for epoch in range(config.num_epochs):
        for rows in minibatch_rows(batch.obs.shape[0], config.rows_per_minibatch, generator):
            if check_cancelled is not None:
                check_cancelled()
            if not _step(network, optimizer, batch.rows(rows), config, weights, trace):
                trace.kl_stop_epoch = epoch
                return trace
    return trace


def minibatch_rows(
    num_rows: int, rows_per_minibatch: int, generator: torch.Generator
) -> Iterator[list[int]]:
    """Yield minibatches of rows in random order, each row once."""
    # Whole rows, as the LSTM has to be unrolled from the start of an episode.
    order = torch.randperm(num_rows, generator=generator).tolist()
    for first in range(0, num_rows, rows_per_minibatch):
        yield order[first : first + rows_per_minibatch]


def _step(
    network: PolicyNetwork,
    optimizer: Optimizer,
    batch: UpdateBatch,
    config: PPOConfig,
    weights: Coefficients,
    trace: UpdateTrace,
) -> bool:
    """Take or skip one optimizer step; return False if the KL early stop ends the update."""
    if config.advantage_norm is AdvantageNorm.MINIBATCH:
        own = normalized_advantages(batch.advantages, batch.is_decision, config)
        batch = replace(batch, advantages=own)
    evaluation = evaluate_actions(network, batch)
    ratios = compute_ratios(evaluation.log_probs, batch)
    losses = compute_losses(evaluation, ratios, batch, config, weights.floor_scale)
    total = losses.total(weights)
    optimizer.zero_grad(set_to_none=True)
    total.backward()  # type: ignore[no-untyped-call]
    # By group for the metrics; the total follows from them without a second pass over the
    # gradients.
    norms = _gradient_norms(network)
    gradient_norm = norms.square().sum().sqrt()
    # The one synchronization of a minibatch.
    verdict = materialize_verdict(ratios.kl_divergence, total, gradient_norm)
    if not verdict.is_finite:
        _note_nonfinite(network, evaluation, trace)
        return True
    trace.kl_divergence = verdict.kl_divergence
    # Checked before the step: a policy already past the KL limit must not move further.
    if config.target_kl is not None and (verdict.kl_divergence > KL_STOP_FACTOR * config.target_kl):
        return False
    clip_grads_with_norm_(network.parameters(), config.max_grad_norm, gradient_norm)
    optimizer.step()
    trace.num_optimizer_steps += 1
    trace.state = evaluation.output.state
    with torch.no_grad():
        trace.losses.append(_pack_losses(losses, ratios, evaluation, batch, norms, config))
        trace.heads.append(_pack_heads(evaluation, ratios, batch, norms, config))
    return True


def materialize_verdict(kl_divergence: Tensor, loss: Tensor, gradient_norm: Tensor) -> _Verdict:
    """Transfer the values that decide about an optimizer step to the CPU at once."""
    numbers = torch.stack((kl_divergence, loss, gradient_norm)).detach().tolist()
    return _Verdict(kl_divergence=numbers[0], is_finite=all(math.isfinite(n) for n in numbers))


def evaluate_actions(network: PolicyNetwork, batch: UpdateBatch) -> Evaluation:
    """Evaluate the stored actions by unrolling the LSTM over the rows, as in the rollout."""
    output = network.unroll(batch.obs, batch.blueprints, batch.starts, batch.all_cuts())
    chosen = network.space.distributions(output.logits, batch.choice_masks)
    available = network.space.distributions(output.logits, batch.available_masks)
    return Evaluation(
        output=output,
        log_probs=chosen.log_prob(batch.actions),
        entropies=chosen.entropy(),
        available_entropies=available.entropy(),
        q_values=network.q_values(output.hidden, batch.ops),
        contributions=network.contributions(output.hidden),
    )


def compute_ratios(log_probs: Tensor, batch: UpdateBatch) -> Ratios:
    """Return the ratios to the log-probabilities stored in the rollout, and the approximate KL.

    A decision is one action of the joint policy: its log-ratio is the sum over the heads that
    mattered for it.
    """
    log_ratios = log_probs - batch.old_log_probs
    # `where` and not a product with the mask: 0 times the infinity of an impossible choice is NaN.
    decided = torch.where(batch.is_learnable, log_ratios, 0.0).sum(-1)
    # exp of an unbounded log-ratio would overflow; 20 is far beyond the clip range.
    bounded = decided.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    joint = bounded.exp()
    # The k3 estimator (r - 1) - log r is never negative and has less variance than -log r.
    kl = _masked_mean((joint - 1 - bounded).detach(), batch.is_decision)
    heads = log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return Ratios(heads=heads, joint=joint, kl_divergence=kl)


def compute_losses(
    evaluation: Evaluation,
    ratios: Ratios,
    batch: UpdateBatch,
    config: PPOConfig,
    floor_scale: float,
) -> Losses:
    """Compute all loss terms; those of the policy are means over decisions.

    The surrogate of a decision is the sum over the heads that mattered for it, each clipped by
    itself: at a ratio of 1 its gradient is that of the joint policy, and a decision of six heads
    may move each of them as far as a decision of one.
    """
    advantages = batch.advantages.unsqueeze(-1)
    clipped = ratios.heads.clamp(1 - config.clip_ratio, 1 + config.clip_ratio)
    gains = torch.minimum(ratios.heads * advantages, clipped * advantages)
    gain = torch.where(batch.is_learnable, gains, 0.0).sum(-1)
    entropy_weights = gain.new_tensor(config.entropy_weights)
    bonus = torch.where(batch.is_learnable, entropy_weights * evaluation.entropies, 0.0).sum(-1)
    # Symmetric logarithm: contributions range from fractions of a point to tens of them.
    targets = batch.contributions.sign() * batch.contributions.abs().log1p()
    return Losses(
        policy=-_masked_mean(gain, batch.is_decision),
        value=_value_loss(evaluation.output.values, batch, config.value_clip),
        q=_value_loss(evaluation.q_values, batch, None),
        entropy=_masked_mean(bonus, batch.is_decision),
        floor_penalty=_floor_penalty(evaluation.available_entropies, batch, config, floor_scale),
        contribution=_masked_mean((evaluation.contributions - targets) ** 2, batch.is_measured),
    )


def _value_loss(values: Tensor, batch: UpdateBatch, clip: float | None) -> Tensor:
    """Return half the weighted mean squared error; clipped, the larger of two errors counts.

    The second error is that of a value that has moved at most `clip` from the rollout's.
    """
    errors = (values - batch.value_targets) ** 2
    if clip is not None:
        near = batch.old_values + (values - batch.old_values).clamp(-clip, clip)
        errors = torch.maximum(errors, (near - batch.value_targets) ** 2)
    total = (batch.value_weights * errors).sum()
    # At least 1, so that a minibatch of failed envs gives 0 instead of NaN.
    return 0.5 * total / batch.value_weights.sum().clamp_min(1.0)


def _floor_penalty(
    entropies: Tensor, batch: UpdateBatch, config: PPOConfig, floor_scale: float
) -> Tensor:
    """Return the penalty for heads whose mean entropy, where they had a choice, is too low."""
    floors = floor_scale * entropies.new_tensor(config.entropy_floors)
    # Of the mean over steps: a single confident decision is fine, a head that never explores is
    # not.
    lacking = (floors - _mean_over_steps(entropies, batch.is_available)).clamp_min(0.0)
    prices = entropies.new_tensor(config.floor_penalties) * lacking.square()
    return torch.where(batch.is_available.any(1).any(0), prices, 0.0).sum()


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp_min(1)


def _mean_over_steps(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of each head over the steps of its mask, [K]; 0 where there are none."""
    return torch.where(mask, values, 0.0).sum((0, 1)) / mask.sum((0, 1)).clamp_min(1)


# --- Gradients and metrics ------------------------------------------------------------------------


def _gradient_norms(network: PolicyNetwork) -> Tensor:
    return torch.stack(
        [
            get_total_norm([item.grad for item in group if item.grad is not None])
            for group in network.parameter_groups
        ]
    )


def _note_nonfinite(network: PolicyNetwork, evaluation: Evaluation, trace: UpdateTrace) -> None:
    """Record which values were not finite; called only for a nonfinite step."""
    trace.num_finiteness_skips += 1
    is_finite = torch.isfinite(evaluation.log_probs).all(0).all(0).tolist()
    trace.nonfinite += [head for head, fine in zip(HEADS, is_finite, strict=True) if not fine]
    for name, values in (("value", evaluation.output.values), ("q", evaluation.q_values)):
        if not bool(torch.isfinite(values).all()):
            trace.nonfinite.append(name)
    gradients = [item.grad for item in network.parameters() if item.grad is not None]
    num_nan = sum(int(gradient.isnan().sum()) for gradient in gradients)
    num_inf = sum(int(gradient.isinf().sum()) for gradient in gradients)
    trace.nan_gradient_count += num_nan
    trace.inf_gradient_count += num_inf
    if num_nan or num_inf:
        trace.nonfinite.append("gradient")


def _pack_losses(
    losses: Losses,
    ratios: Ratios,
    evaluation: Evaluation,
    batch: UpdateBatch,
    norms: Tensor,
    config: PPOConfig,
) -> Tensor:
    mask, decided = batch.is_learnable, batch.is_decision
    is_high = ratios.joint > 1 + config.clip_ratio
    is_low = ratios.joint < 1 - config.clip_ratio
    mean = _masked_mean(ratios.joint, decided)
    return pack(
        LossMetrics,
        policy_loss=losses.policy,
        value_loss=losses.value,
        q_loss=losses.q,
        contribution_loss=torch.where(batch.is_measured.any(), losses.contribution, torch.nan),
        entropy=_masked_mean(evaluation.entropies, mask),
        floor_penalty=losses.floor_penalty,
        gradient_norm=norms.square().sum().sqrt(),
        value_gradient_norm=norms[len(HEADS)],
        q_gradient_norm=norms[len(HEADS) + 1],
        clip_fraction=_masked_mean((is_high | is_low).float(), decided),
        clip_fraction_positive=_masked_mean((is_high & (batch.advantages > 0)).float(), decided),
        clip_fraction_negative=_masked_mean((is_low & (batch.advantages < 0)).float(), decided),
        ratio_mean=mean,
        ratio_std=_masked_mean((ratios.joint - mean).square(), decided).sqrt(),
        ratio_min=_extreme(ratios.joint, decided, is_max=False),
        ratio_max=_extreme(ratios.joint, decided, is_max=True),
        log_prob_min=_extreme(evaluation.log_probs, mask, is_max=False),
        log_prob_max=_extreme(evaluation.log_probs, mask, is_max=True),
    )


def _pack_heads(
    evaluation: Evaluation,
    ratios: Ratios,
    batch: UpdateBatch,
    norms: Tensor,
    config: PPOConfig,
) -> Tensor:
    """Compute the metrics of each head; NaN for a head without a step to measure."""
    mask = batch.is_learnable
    num_learnable, num_available = mask.sum((0, 1)), batch.is_available.sum((0, 1))
    entropies = _mean_over_steps(evaluation.available_entropies, batch.is_available)
    is_clipped = ((ratios.heads - 1).abs() > config.clip_ratio).float()
    head_norms = norms[: len(HEADS)]
    highest = ratios.heads.masked_fill(~mask, -torch.inf).amax((0, 1))
    num_steps = (batch.value_weights > 0).sum().clamp_min(1)
    return pack(
        HeadMetrics,
        entropy=_measured_where(num_available > 0, entropies),
        learnable_fraction=num_learnable / num_steps,
        # All heads share one padded tensor: the gradient of an unused head is 0 instead of None.
        gradient_norm=_measured_where(head_norms > 0, head_norms),
        ratio_max=_measured_where(num_learnable > 0, highest),
        clip_fraction=_measured_where(num_learnable > 0, _mean_over_steps(is_clipped, mask)),
    )


def _measured_where(mask: Tensor, values: Tensor) -> Tensor:
    return torch.where(mask, values, torch.nan)


def _extreme(values: Tensor, mask: Tensor, *, is_max: bool) -> Tensor:
    outside = -torch.inf if is_max else torch.inf
    masked = values.masked_fill(~mask, outside)
    return _measured_where(mask.any(), masked.amax() if is_max else masked.amin())
