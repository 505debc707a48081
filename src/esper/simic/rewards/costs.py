"""Costs of growth in the contribution family: rent, alpha shock and occupied slots."""

import math
from typing import Final

from esper.leyline.rewards import RewardComponents, RewardConfig, RewardInputs
from esper.leyline.stages import Stage

__all__ = ["alpha_shock", "capacity_costs", "effective_seed_params"]

RENTED_STAGES: Final = frozenset({Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED})
"""Stages that are charged rent; earlier ones and cooldown are free."""


def effective_seed_params(inputs: RewardInputs, config: RewardConfig) -> float:
    """Return the parameters that rent is charged for: alpha-weighted, plus a base per seed."""
    base = config.base_slot_rent_ratio * inputs.host_params
    rented = (seed for seed in inputs.seeds if seed.stage in RENTED_STAGES)
    return sum(base + seed.alpha * seed.num_params for seed in rented)


def alpha_shock(inputs: RewardInputs, config: RewardConfig) -> float:
    """Return the squared changes of alpha since the last step, weighted by parameter counts.

    A new seed causes no shock; a removed seed counts as a change to 0.
    """
    # By seed as well: a successor in the same slot is not a jump of its predecessor.
    alphas = {(seed.slot_id, seed.seed_id): seed.alpha for seed in inputs.seeds}
    jumps = (
        (alphas.get((slot.slot_id, slot.seed_id), 0.0) - slot.alpha) ** 2 * slot.num_params
        for slot in inputs.memory.slots
    )
    return sum(jumps) / _rent_base(inputs, config)


def capacity_costs(inputs: RewardInputs, config: RewardConfig) -> RewardComponents:
    """Return the cost terms for parameters, alpha changes and occupied slots."""
    growth = effective_seed_params(inputs, config) / _rent_base(inputs, config)
    shock = 0.0 if config.disable_anti_gaming else alpha_shock(inputs, config)
    num_fossils = len(inputs.fossils)
    num_paying = max(0, len(inputs.living) + num_fossils - config.free_slots)
    return RewardComponents(
        # Logarithmic: the first parameters cost most, and a large network is not priced out of its
        # gains.
        rent=-min(config.rent_weight * math.log1p(growth), config.max_rent),
        alpha_shock=-min(config.alpha_shock_coef * shock, config.alpha_shock_cap),
        occupancy_rent=-config.seed_occupancy_cost * num_paying,
        fossil_rent=-config.fossilized_maintenance_cost * num_fossils,
    )


def _rent_base(inputs: RewardInputs, config: RewardConfig) -> int:
    return max(inputs.host_params, config.rent_host_params_floor)
