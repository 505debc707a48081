"""Terms of one living seed in the dense rewards: attribution, warnings, synergy, suspicions."""

import math
from collections.abc import Iterable, Iterator

from esper.leyline.actions import Op
from esper.leyline.errors import ContractError
from esper.leyline.rewards import (
    AttributionFormula,
    HackingPattern,
    HackingSuspicion,
    RewardComponents,
    RewardConfig,
    RewardInputs,
    SeedRewardInputs,
)
from esper.leyline.stages import Stage

__all__ = [
    "attributed_of",
    "attribution_discount",
    "harmonic_mean",
    "is_ransomware",
    "ratio_penalty",
    "seed_attribution",
    "suspicions_of",
    "synergy",
    "timing_discount",
    "warnings",
]

_BLENDED_STAGES = frozenset({Stage.BLENDING, Stage.HOLDING})


def attributed_of(seed: SeedRewardInputs) -> float:
    """Return the accuracy gain attributed to a measured seed."""
    if seed.attributed_pp is None:
        raise ContractError(
            f"slot {seed.slot_id!r}: a contribution was measured without the seed's share of it"
        )
    return seed.attributed_pp


def attribution_discount(attributed: float, config: RewardConfig) -> float:
    """Return the discount of a seed's reward: 1 unless its attributed gain is negative."""
    if attributed >= 0.0:
        return 1.0
    # exp overflows beyond 709; the sigmoid is 0 long before.
    return 1.0 / (1.0 + math.exp(min(-config.attribution_sigmoid_steepness * attributed, 700.0)))


def ratio_penalty(contribution: float, attributed: float, config: RewardConfig) -> float:
    """Return the penalty (at most 0) for a removal cost far above the attributed gain."""
    if contribution <= config.hacking_min_contribution or config.disable_anti_gaming:
        return 0.0
    if attributed <= config.improvement_safe_threshold:
        share = min(1.0, contribution / config.unbacked_contribution_scale)
        return config.ratio_penalty_floor * share
    excess = contribution / attributed / config.hacking_ratio_threshold - 1.0
    return max(config.ratio_penalty_floor, -config.ratio_penalty_slope * max(0.0, excess))


def timing_discount(germination_step: int, config: RewardConfig) -> float:
    """Return the discount of a seed germinated during the first steps of the episode."""
    warmup = config.germination_warmup_steps
    if config.disable_timing_discount or germination_step >= warmup:
        return 1.0
    floor = config.germination_discount_floor
    return floor + (1.0 - floor) * max(0, germination_step) / warmup


def seed_attribution(
    seed: SeedRewardInputs, inputs: RewardInputs, config: RewardConfig
) -> RewardComponents:
    """Return a living seed's attribution and ratio penalty in the shaped mode."""
    op = inputs.op_on(seed)
    if seed.contribution_pp is None:
        earned, penalty = _proxy(seed, config), 0.0
    else:
        attributed = attributed_of(seed)
        # A seed with a negative attributed gain is already discounted below.
        is_believed = attributed >= 0.0
        penalty = ratio_penalty(seed.contribution_pp, attributed, config) if is_believed else 0.0
        earned = config.contribution_weight * _bounded(seed, config)
        if seed.contribution_pp >= 0.0:
            earned *= attribution_discount(attributed, config)
            earned *= timing_discount(inputs.step - seed.age_steps, config)
        if op is Op.FOSSILIZE and attributed < 0.0:
            earned = 0.0
    # Pruning a seed costs what it would earn; the ratio penalty keeps its sign for every op.
    return RewardComponents(
        attribution=-earned if op is Op.PRUNE else earned, ratio_penalty=penalty
    )


def _proxy(seed: SeedRewardInputs, config: RewardConfig) -> float:
    improvement = seed.stage_improvement_pp
    if seed.stage not in _BLENDED_STAGES or improvement is None:
        return 0.0
    return config.contribution_weight * config.proxy_confidence_factor * max(0.0, improvement)


def _bounded(seed: SeedRewardInputs, config: RewardConfig) -> float:
    contribution, progress = seed.contribution_pp or 0.0, seed.progress_since_germination_pp
    if contribution < 0.0:
        return contribution
    if progress is None:
        return config.unknown_progress_share * contribution
    if progress <= 0.0:
        return 0.0
    # Beyond the host's progress since its germination, a seed is paid less than its removal cost,
    # which alone would also reward a seed that the host was made to depend on.
    if contribution < progress:
        return contribution
    if config.attribution_formula is AttributionFormula.MINIMUM:
        return progress
    return harmonic_mean(progress, contribution)


def harmonic_mean(first: float, second: float) -> float:
    """Return the harmonic mean of two positive numbers."""
    return 2.0 * first * second / (first + second)


def warnings(
    seed: SeedRewardInputs, inputs: RewardInputs, earned: float, config: RewardConfig
) -> RewardComponents:
    """Return the penalties for a harmful seed in BLENDING and for staying in HOLDING too long."""
    steps = seed.steps_in_stage
    if seed.stage is Stage.BLENDING and seed.attributed_pp is not None and seed.attributed_pp < 0:
        growing = max(config.blending_warning_per_step * steps, config.blending_warning_floor)
        return RewardComponents(blending_warning=config.blending_warning + growing)
    is_decided = inputs.op_on(seed) in (Op.FOSSILIZE, Op.PRUNE)
    overtime = steps - config.holding_grace_steps
    # Only for a seed that earns: HOLDING forever would otherwise be the best way to be paid.
    if seed.stage is Stage.HOLDING and not is_decided and overtime >= 0 and earned > 0.0:
        warning = config.holding_warning + config.holding_warning_per_step * overtime
        return RewardComponents(holding_warning=max(warning, config.holding_warning_floor))
    return RewardComponents()


def synergy(seed: SeedRewardInputs, earned: float, config: RewardConfig) -> float:
    """Return the bonus for positive interactions; 0 if the seed's attributed gain is negative."""
    interaction = seed.interaction_sum_pp
    is_believed = seed.attributed_pp is None or seed.attributed_pp >= 0.0
    if interaction is None or interaction <= 0.0 or earned <= 0.0 or not is_believed:
        return 0.0
    return config.synergy_weight * math.tanh(config.synergy_scale * interaction)


def is_ransomware(contribution: float | None, attributed: float, config: RewardConfig) -> bool:
    """Return whether the network depends on a seed whose attributed gain is negative."""
    is_needed = contribution is not None and contribution > config.ransomware_contribution
    return is_needed and attributed < config.ransomware_attributed


def suspicions_of(
    seeds: Iterable[SeedRewardInputs], config: RewardConfig
) -> Iterator[HackingSuspicion]:
    """Yield the measured seeds that match a pattern of reward hacking."""
    for seed in seeds:
        contribution, attributed = seed.contribution_pp, seed.attributed_pp
        if contribution is None or attributed is None:
            continue
        is_large = contribution > config.hacking_min_contribution and attributed > 0.0
        if is_ransomware(contribution, attributed, config):
            pattern, threshold = HackingPattern.RANSOMWARE, config.ransomware_attributed
        elif is_large and contribution >= config.hacking_ratio_threshold * attributed:
            pattern, threshold = HackingPattern.ATTRIBUTION_RATIO, config.hacking_ratio_threshold
        else:
            continue
        yield HackingSuspicion(
            pattern=pattern,
            slot_id=seed.slot_id,
            seed_id=seed.seed_id,
            contribution_pp=contribution,
            attributed_pp=attributed,
            threshold=threshold,
        )
