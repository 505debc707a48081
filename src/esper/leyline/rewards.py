"""Rewards as data: modes, every constant, what a reward is computed from, and its components."""

from enum import StrEnum

import msgspec

from esper.leyline.actions import Op
from esper.leyline.stages import Stage

__all__ = [
    "AttributionFormula",
    "DripState",
    "LossRewardConfig",
    "RewardComponents",
    "RewardConfig",
    "RewardFamily",
    "RewardInputs",
    "RewardMode",
    "SeedRewardInputs",
]


class RewardFamily(StrEnum):
    """What a reward is made of."""

    CONTRIBUTION = "contribution"
    LOSS = "loss"


class RewardMode(StrEnum):
    """How dense the contribution family is, and what it pays for."""

    SHAPED = "shaped"
    ESCROW = "escrow"
    BASIC = "basic"
    BASIC_PLUS = "basic_plus"
    SPARSE = "sparse"
    MINIMAL = "minimal"
    SIMPLIFIED = "simplified"


class AttributionFormula(StrEnum):
    """How contribution and progress are joined when contribution is the larger."""

    HARMONIC = "harmonic"
    MINIMUM = "minimum"


class RewardConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every constant of the contribution family. Accuracies are in percentage points."""

    # Attribution
    contribution_weight: float = 1.0
    proxy_confidence_factor: float = 0.3
    attribution_formula: AttributionFormula = AttributionFormula.HARMONIC
    # Escrow
    escrow_stable_window: int = 3
    escrow_delta_clip: float = 2.0
    # Potential-based shaping
    pbrs_weight: float = 0.3
    epoch_progress_bonus: float = 0.3
    max_progress_bonus: float = 2.0
    # Rent and shock
    rent_weight: float = 0.5
    max_rent: float = 1.5
    rent_host_params_floor: int = 200
    base_slot_rent_ratio: float = 0.0039
    alpha_shock_coef: float = 0.1958
    alpha_shock_cap: float = 1.0
    # Enforcement
    invalid_fossilize_penalty: float = -1.0
    prune_fossilized_penalty: float = -1.0
    germinate_with_seed_penalty: float = -0.3
    advance_from_training_penalty: float = -0.1
    auto_prune_penalty: float = -0.2
    # Action costs
    germinate_cost: float = -0.15
    fossilize_cost: float = -0.01
    prune_cost: float = -0.005
    set_alpha_target_cost: float = -0.005
    # Fossilizing
    fossilize_base_bonus: float = 0.5
    fossilize_contribution_scale: float = 0.1
    fossilize_noncontributing_penalty: float = -0.2
    fossilize_terminal_scale: float = 3.0
    fossilize_quality_ceiling: float = 3.0
    # Pruning
    prune_hurting_bonus: float = 0.15
    prune_acceptable_bonus: float = 0.1
    prune_good_seed_penalty: float = -0.3
    prune_hurting_threshold: float = -0.5
    early_prune_threshold: int = 5
    early_prune_penalty: float = -0.1
    # Against gaming
    improvement_safe_threshold: float = 0.1
    hacking_ratio_threshold: float = 5.0
    attribution_sigmoid_steepness: float = 3.0
    germination_warmup_steps: int = 10
    germination_discount_floor: float = 0.4
    disable_timing_discount: bool = False
    # Terminal and sparse
    terminal_acc_weight: float = 0.05
    param_budget: int = 500_000
    param_penalty_weight: float = 0.1
    sparse_reward_scale: float = 1.0
    # Basic
    basic_acc_delta_weight: float = 5.0
    basic_fossilize_base_bonus: float = 0.3
    basic_contribution_scale: float = 0.5
    basic_fossilize_invalid_penalty: float = -0.5
    basic_fossilize_noncontributing_penalty: float = -0.2
    # Capacity
    seed_occupancy_cost: float = 0.01
    free_slots: int = 1
    fossilized_maintenance_cost: float = 0.002
    # Drip (basic_plus)
    drip_fraction: float = 0.7
    max_drip_per_step: float = 0.1
    min_drip_steps: int = 5
    negative_drip_ratio: float = 0.5
    # Scaffolds
    hindsight_credit_weight: float = 0.1
    max_hindsight_credit: float = 0.2
    # Switches
    disable_pbrs: bool = False
    disable_terminal_reward: bool = False
    disable_anti_gaming: bool = False


class LossRewardConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every constant of the loss family; None takes the task's own figure."""

    loss_delta_weight: float = 5.0
    loss_delta_clip: float = 5.0
    regression_scale: float = 0.5
    loss_delta_std: float | None = None
    rent_weight: float | None = None
    max_rent: float = 5.0
    rent_grace_steps: int = 3
    pbrs_weight: float = 0.1
    terminal_weight: float = 1.0


class DripState(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a fossil's bonus that is still to be paid, step by step."""

    slot_id: str
    scale: float
    """Reward per percentage point of contribution and step."""


class SeedRewardInputs(msgspec.Struct, frozen=True, kw_only=True):
    """One occupied slot as the reward sees it, before the action."""

    slot_id: str
    seed_id: str
    stage: Stage
    previous_stage: Stage
    previous_stage_steps: int
    steps_in_stage: int
    age_steps: int
    num_params: int
    contribution_pp: float | None
    """Accuracy with all on minus accuracy with this seed off, measured this step."""
    attributed_pp: float | None
    """This seed's own share of the gain of all seeds over the bare host, measured this step."""
    stage_improvement_pp: float | None
    progress_since_germination_pp: float | None
    interaction_sum_pp: float | None
    escrow_credit: float = 0.0


class RewardInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one env's reward for one step is computed from."""

    op: Op
    """The effective op: WAIT when the action was invalid or vetoed."""
    target_slot: str | None
    """The slot acted on; None for WAIT."""
    step: int
    num_steps: int
    """Length of the episode."""
    val_accuracy_pct: float
    val_loss: float
    loss_delta: float | None
    """Previous minus current loss: positive is better."""
    accuracy_since_start_pp: float
    stable_accuracy_pct: float
    """Lowest accuracy of the last steps of the escrow window."""
    committed_accuracy_pct: float | None
    """Accuracy with only the fossils on."""
    host_params: int
    total_params: int
    fossil_params: int
    effective_seed_params: float
    """Parameters that pay rent, weighted by alpha."""
    alpha_delta_sq_sum: float
    seeds: tuple[SeedRewardInputs, ...]
    """All occupied slots, in action order."""
    num_active_seeds: int
    num_fossilized: int
    num_contributing_fossils: int
    drips: tuple[DripState, ...] = ()
    pending_auto_prunes: int = 0
    """Prunes that the governor made since the last step."""
    pending_hindsight_credit: float = 0.0

    @property
    def is_last_step(self) -> bool:
        """Tell whether the episode ends with this step."""
        return self.step == self.num_steps - 1

    def target(self) -> SeedRewardInputs | None:
        """Return the seed in the target slot, if there is one."""
        matches = (seed for seed in self.seeds if seed.slot_id == self.target_slot)
        return next(matches, None)


class RewardComponents(msgspec.Struct, frozen=True, kw_only=True):
    """The terms whose sum is a step's raw reward; a term that its mode lacks is 0."""

    attribution: float = 0.0
    ratio_penalty: float = 0.0
    escrow_delta: float = 0.0
    escrow_forfeit: float = 0.0
    blending_warning: float = 0.0
    holding_warning: float = 0.0
    pbrs: float = 0.0
    synergy: float = 0.0
    rent: float = 0.0
    alpha_shock: float = 0.0
    occupancy_rent: float = 0.0
    fossil_rent: float = 0.0
    action_shaping: float = 0.0
    fossilize_bonus: float = 0.0
    drip: float = 0.0
    terminal: float = 0.0
    loss_delta: float = 0.0
    auto_prune_penalty: float = 0.0
    hindsight_credit: float = 0.0

    def total(self) -> float:
        """Return the sum of all terms, in the order they are declared."""
        return float(sum(getattr(self, name) for name in self.__struct_fields__))
