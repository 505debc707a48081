"""The basic modes: linear rent and a bonus for contributing fossils, at once or in instalments."""

from dataclasses import dataclass

from esper.leyline.actions import Op
from esper.leyline.errors import ContractError
from esper.leyline.rewards import RewardComponents, RewardInputs
from esper.simic.rewards.costs import effective_seed_params
from esper.simic.rewards.scheme import RewardScheme
from esper.simic.rewards.seed_terms import harmonic_mean
from esper.simic.rewards.terms import ModeTerms

__all__ = ["basic_plus_terms", "basic_terms"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fossilization:
    """Bonus and penalty of the op FOSSILIZE in the basic modes."""

    bonus: float = 0.0
    penalty: float = 0.0


def basic_terms(inputs: RewardInputs, scheme: RewardScheme) -> ModeTerms:
    """Return the terms of the basic mode: the full bonus when a contributing seed is fossilized."""
    outcome = _fossilization(inputs, scheme)
    paid = RewardComponents(fossilize_bonus=outcome.bonus, action_shaping=outcome.penalty)
    return ModeTerms(components=RewardComponents.sum_of(_frame(inputs, scheme), paid))


def basic_plus_terms(inputs: RewardInputs, scheme: RewardScheme) -> ModeTerms:
    """Return the terms of basic-plus: part of the bonus at once, the rest while it contributes."""
    config = scheme.config
    outcome = _fossilization(inputs, scheme)
    scales = {slot.slot_id: slot.drip_scale for slot in inputs.memory.slots if slot.drip_scale}
    drip = sum(_drip(slot_id, scale, inputs, scheme) for slot_id, scale in scales.items())
    if outcome.bonus > 0.0 and inputs.target_slot is not None:
        num_left = max(inputs.num_steps - 1 - inputs.step, config.min_drip_steps)
        scales[inputs.target_slot] = config.drip_fraction * outcome.bonus / num_left
    paid = RewardComponents(
        fossilize_bonus=(1.0 - config.drip_fraction) * outcome.bonus,
        action_shaping=outcome.penalty,
        drip=drip,
    )
    return ModeTerms(
        components=RewardComponents.sum_of(_frame(inputs, scheme), paid), drip_scales=scales
    )


def _frame(inputs: RewardInputs, scheme: RewardScheme) -> RewardComponents:
    config = scheme.config
    share_of_budget = effective_seed_params(inputs, config) / config.param_budget
    is_paid = inputs.is_last_step and not config.disable_terminal_reward
    gain = config.basic_acc_delta_weight * inputs.accuracy_since_start_pp / 100.0
    return RewardComponents(
        rent=-config.param_penalty_weight * share_of_budget, terminal=gain if is_paid else 0.0
    )


def _fossilization(inputs: RewardInputs, scheme: RewardScheme) -> _Fossilization:
    config, target = scheme.config, inputs.target()
    if inputs.op is not Op.FOSSILIZE or target is None:
        return _Fossilization()
    if not inputs.has_succeeded:
        return _Fossilization(penalty=config.basic_fossilize_invalid_penalty)
    contribution, attributed = target.contribution_pp or 0.0, target.attributed_pp or 0.0
    if attributed > 0.0 and scheme.is_contributing(contribution):
        worth = config.basic_contribution_scale * harmonic_mean(attributed, contribution)
        bonus = config.basic_fossilize_base_bonus + worth
        return _Fossilization(bonus=bonus * scheme.legitimacy(target.steps_in_stage))
    is_parasite = attributed <= 0.0 and contribution > config.ransomware_contribution
    return _Fossilization(
        penalty=config.basic_fossilize_invalid_penalty
        if is_parasite
        else config.basic_fossilize_noncontributing_penalty
    )


def _drip(slot_id: str, scale: float, inputs: RewardInputs, scheme: RewardScheme) -> float:
    fossil = next((seed for seed in inputs.fossils if seed.slot_id == slot_id), None)
    if fossil is None or fossil.contribution_pp is None:
        raise ContractError(f"slot {slot_id!r}: a drip bonus needs a measured contribution")
    highest = scheme.config.max_drip_per_step
    lowest = -scheme.config.negative_drip_ratio * highest
    return max(lowest, min(scale * fossil.contribution_pp, highest))
