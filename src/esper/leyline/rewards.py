"""Rewards as data: modes, every constant, what a reward is computed from, and what it returns."""

from enum import StrEnum
from typing import Self

import msgspec

from esper.leyline.actions import Op
from esper.leyline.episodes import is_last_step
from esper.leyline.ranges import Fraction, PositiveFloat, PositiveInt
from esper.leyline.stages import COOLDOWN_STAGES, Stage

__all__ = [
    "AttributionFormula",
    "EpisodeEnd",
    "HackingPattern",
    "HackingSuspicion",
    "LossRewardConfig",
    "Potential",
    "RewardComponents",
    "RewardConfig",
    "RewardFamily",
    "RewardInputs",
    "RewardMemory",
    "RewardMode",
    "RewardResult",
    "SeedRewardInputs",
    "SlotMemory",
    "SlotStage",
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


class EpisodeEnd(StrEnum):
    """What the last step of an episode is to the learner."""

    TERMINATE = "terminate"
    """The end of the task: nothing follows, and the last state has value and potential 0."""
    BOOTSTRAP = "bootstrap"
    """A cut in a task that goes on: the critic's value of the last state stands for the rest."""


class Potential(StrEnum):
    """What the potential of reward shaping depends on, in the contribution family."""

    STAGES = "stages"
    """How far each seed has come on its way to a fossil."""
    ACCURACY = "accuracy"
    """What the network and its fossils achieve."""


class AttributionFormula(StrEnum):
    """How contribution and progress are joined when contribution is the larger."""

    HARMONIC = "harmonic"
    MINIMUM = "minimum"


class RewardConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every constant of the contribution family. Accuracies are in percentage points."""

    # Attribution
    contribution_weight: float = 1.0
    proxy_confidence_factor: float = 0.3
    unknown_progress_share: float = 0.5
    attribution_formula: AttributionFormula = AttributionFormula.HARMONIC
    attribution_sigmoid_steepness: float = 3.0
    germination_warmup_steps: int = 10
    germination_discount_floor: float = 0.4
    disable_timing_discount: bool = False
    # Escrow
    escrow_stable_window: PositiveInt = 3
    escrow_delta_clip: float = 2.0
    # Potential-based shaping
    pbrs_weight: float = 0.3
    pbrs_potential: Potential = Potential.STAGES
    pbrs_committed_share: Fraction = 0.5
    """Share of the accuracy with the fossils alone in the potential `accuracy`; the rest is the
    accuracy of the whole network."""
    step_progress_bonus: float = 0.3
    max_progress_bonus: float = 2.0
    # Synergy
    synergy_weight: float = 0.1
    synergy_scale: float = 0.5
    # Rent and shock
    rent_weight: float = 0.5
    max_rent: float = 1.5
    rent_host_params_floor: PositiveInt = 200
    base_slot_rent_ratio: float = 0.0039
    alpha_shock_coef: float = 0.1958
    alpha_shock_cap: float = 1.0
    # Capacity
    seed_occupancy_cost: float = 0.01
    free_slots: int = 1
    fossilized_maintenance_cost: float = 0.002
    # Warnings
    blending_warning: float = -0.1
    blending_warning_per_step: float = -0.05
    blending_warning_floor: float = -0.3
    holding_grace_steps: int = 2
    holding_warning: float = -0.1
    holding_warning_per_step: float = -0.05
    holding_warning_floor: float = -0.3
    # Action costs
    germinate_cost: float = -0.15
    fossilize_cost: float = -0.01
    prune_cost: float = -0.005
    set_alpha_target_cost: float = -0.005
    advance_from_training_penalty: float = -0.1
    auto_prune_penalty: float = -0.2
    # Fossilizing
    refused_fossilize_penalty: float = -1.0
    fossilize_base_bonus: float = 0.5
    fossilize_contribution_scale: float = 0.1
    fossilize_noncontributing_penalty: float = -0.2
    fossilize_harmful_penalty: float = -0.5
    fossilize_harm_scale: float = -0.2
    fossilize_harm_floor: float = -1.0
    fossilize_ransomware_penalty: float = -0.3
    fossilize_terminal_scale: float = 3.0
    fossilize_quality_ceiling: PositiveFloat = 3.0
    # Pruning
    prune_hurting_threshold: float = -0.5
    prune_hurting_bonus: float = 0.15
    prune_acceptable_bonus: float = 0.1
    prune_good_seed_penalty: float = -0.3
    prune_good_seed_scale: float = -0.05
    prune_good_seed_floor: float = -0.9
    early_prune_steps: int = 10
    """A prune below this age is early; it lies above the age at which pruning becomes legal."""
    early_prune_penalty: float = -0.1
    # Against gaming
    hacking_min_contribution: float = 1.0
    hacking_ratio_threshold: PositiveFloat = 5.0
    improvement_safe_threshold: float = 0.1
    ratio_penalty_slope: float = 0.1
    ratio_penalty_floor: float = -0.3
    unbacked_contribution_scale: PositiveFloat = 10.0
    ransomware_contribution: float = 0.1
    ransomware_attributed: float = -0.2
    # Terminal and sparse
    terminal_acc_weight: float = 0.05
    param_budget: PositiveInt = 500_000
    param_penalty_weight: float = 0.1
    sparse_reward_scale: float = 1.0
    sparse_reward_clip: float = 1.0
    # Simplified
    simplified_action_cost: float = -0.01
    simplified_accuracy_weight: float = 3.0
    simplified_fossil_bonus: float = 2.0
    simplified_committed_weight: float = 0.0
    """Pays for the accuracy with the fossils alone, so that a fossil earns what it adds."""
    # Basic
    basic_acc_delta_weight: float = 5.0
    basic_fossilize_base_bonus: float = 0.3
    basic_contribution_scale: float = 0.5
    basic_fossilize_invalid_penalty: float = -0.5
    basic_fossilize_noncontributing_penalty: float = -0.2
    # Drip (basic_plus)
    drip_fraction: Fraction = 0.7
    max_drip_per_step: PositiveFloat = 0.1
    min_drip_steps: PositiveInt = 5
    negative_drip_ratio: Fraction = 0.5
    # Scaffolds
    hindsight_credit_weight: float = 0.1
    hindsight_credit_scale: float = 0.1
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
    loss_delta_std: PositiveFloat | None = None
    rent_weight: float | None = None
    max_rent: float = 5.0
    rent_grace_steps: int = 3
    pbrs_weight: float = 0.1
    terminal_weight: float = 1.0


class SlotStage(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of an occupied slot that reward shaping uses."""

    stage: Stage
    steps_in_stage: int


class SlotMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Per-slot state carried from one step's reward to the next."""

    slot_id: str
    seed_id: str
    """State is never carried over to another seed in the same slot."""
    alpha: float
    num_params: int
    escrow_credit: float = 0.0
    """Paid for this seed so far, and lost again unless it is fossilized."""
    drip_scale: float = 0.0
    """Reward per percentage point of a fossil's contribution and step."""


class RewardMemory(msgspec.Struct, frozen=True, kw_only=True):
    """State carried from one step's reward to the next; reward functions are stateless."""

    potential: float = 0.0
    """The shaping potential of the state that the step starts from; an empty network's is 0."""
    slots: tuple[SlotMemory, ...] = ()

    def of(self, slot_id: str, seed_id: str) -> SlotMemory | None:
        """Return the state of this seed in this slot."""
        key = (slot_id, seed_id)
        matches = (slot for slot in self.slots if (slot.slot_id, slot.seed_id) == key)
        return next(matches, None)


class SeedRewardInputs(msgspec.Struct, frozen=True, kw_only=True):
    """One occupied slot as the reward sees it, before the action."""

    slot_id: str
    seed_id: str
    stage: Stage
    steps_in_stage: int
    age_steps: int
    alpha: float
    num_params: int
    contribution_pp: float | None = None
    """Accuracy with all on minus accuracy with this seed off, measured this step."""
    attributed_pp: float | None = None
    """This seed's own share of the gain of all seeds over the bare host, measured this step."""
    stage_improvement_pp: float | None = None
    progress_since_germination_pp: float | None = None
    interaction_sum_pp: float | None = None

    @property
    def is_fossil(self) -> bool:
        """Return whether the seed is fossilized."""
        return self.stage is Stage.FOSSILIZED

    @property
    def is_alive(self) -> bool:
        """Return whether the slot contains a seed that is neither a fossil nor in cooldown."""
        return not self.is_fossil and self.stage not in COOLDOWN_STAGES


class RewardInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one env's reward for one step is computed from."""

    op: Op
    """The effective op: WAIT when the action was invalid or vetoed."""
    has_succeeded: bool = True
    """False when a gate refused the op."""
    target_slot: str | None = None
    """The slot acted on; None for WAIT."""
    step: int
    num_steps: int
    """Length of the episode."""
    val_accuracy_pct: float
    val_loss: float
    loss_delta: float | None = None
    """Previous minus current loss: positive is better."""
    accuracy_since_start_pp: float = 0.0
    stable_accuracy_pct: float
    """Lowest accuracy of the last steps of the escrow window."""
    committed_accuracy_pct: float | None = None
    """Accuracy with only the fossils on."""
    host_params: int
    seeds: tuple[SeedRewardInputs, ...] = ()
    """All occupied slots before the action, in action order."""
    slots_after: tuple[SlotStage, ...] = ()
    """All occupied slots after the action and the tick."""
    memory: RewardMemory = RewardMemory()
    """What the previous step's result returned."""
    pending_auto_prunes: int = 0
    """Prunes that the governor made since the last step."""
    pending_hindsight_credit: float = 0.0

    @property
    def is_last_step(self) -> bool:
        """Return whether the episode ends with this step."""
        return is_last_step(self.step, self.num_steps)

    @property
    def living(self) -> tuple[SeedRewardInputs, ...]:
        """Return the seeds that may still become fossils."""
        return tuple(seed for seed in self.seeds if seed.is_alive)

    @property
    def fossils(self) -> tuple[SeedRewardInputs, ...]:
        """Return the fossilized seeds."""
        return tuple(seed for seed in self.seeds if seed.is_fossil)

    def target(self) -> SeedRewardInputs | None:
        """Return the seed in the target slot, if there is one."""
        matches = (seed for seed in self.seeds if seed.slot_id == self.target_slot)
        return next(matches, None)

    def op_on(self, seed: SeedRewardInputs) -> Op:
        """Return what is done to a seed: WAIT unless it is the target."""
        return self.op if seed.slot_id == self.target_slot else Op.WAIT


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

    @classmethod
    def sum_of(cls, *parts: Self) -> Self:
        """Return the sum of at least one, term by term."""
        columns = zip(*map(msgspec.structs.astuple, parts), strict=True)
        return cls(**dict(zip(cls.__struct_fields__, map(sum, columns), strict=True)))

    def total(self) -> float:
        """Return the sum of all terms, in the order they are declared."""
        return float(sum(msgspec.structs.astuple(self)))

    def task_total(self) -> float:
        """Return the sum of all terms but shaping, which only moves reward in time."""
        return float(sum(msgspec.structs.astuple(msgspec.structs.replace(self, pbrs=0.0))))


class HackingPattern(StrEnum):
    """A pattern in which a seed is rewarded for more than its own share of the gain."""

    ATTRIBUTION_RATIO = "attribution_ratio"
    """Removing the seed costs far more than its own share of the gain."""
    RANSOMWARE = "ransomware"
    """Removing the seed costs something although its own share of the gain is a loss."""


class HackingSuspicion(msgspec.Struct, frozen=True, kw_only=True):
    """A seed that shows one of the patterns."""

    pattern: HackingPattern
    slot_id: str
    seed_id: str
    contribution_pp: float
    attributed_pp: float
    threshold: float


class RewardResult(msgspec.Struct, frozen=True, kw_only=True):
    """A step's raw reward, what it is made of, and what the next step needs to know."""

    total: float
    components: RewardComponents
    memory: RewardMemory
    suspicions: tuple[HackingSuspicion, ...] = ()
