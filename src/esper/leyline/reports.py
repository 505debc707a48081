"""What the body reports: seeds slot by slot, and what became of an episode or a round."""

from enum import StrEnum

import msgspec

from esper.leyline.actions import Style
from esper.leyline.alpha import AlphaAlgorithm, AlphaState
from esper.leyline.stages import Stage

__all__ = [
    "BatchSummary",
    "EpisodeRecord",
    "EpisodeStatus",
    "GradientReading",
    "SeedReport",
]


class GradientReading(msgspec.Struct, frozen=True, kw_only=True):
    """A seed's gradient as last measured."""

    norm: float
    """Global L2 norm before clipping; may be non-finite."""
    ratio: float
    """Seed norm per parameter over host norm per parameter, smoothed."""
    health: float
    """1 is healthy, 0 is unusable."""
    has_vanishing: bool
    has_exploding: bool


class SeedReport(msgspec.Struct, frozen=True, kw_only=True):
    """One occupied slot, cooldown included; an empty slot has no report.

    None means never measured, everywhere.
    """

    slot_id: str
    seed_id: str
    blueprint: str
    stage: Stage
    previous_stage: Stage
    previous_stage_steps: int
    """Steps spent in the previous stage."""
    steps_in_stage: int
    age_steps: int
    """Steps since germination."""
    germinated_at_step: int
    """Step of the episode in which it was planted."""
    fossilized_at_step: int | None
    """Step of the episode in which it became permanent; None before."""
    alpha: AlphaState
    style: Style
    tempo_steps: int
    num_params: int
    """Parameters of the seed, gate network included, trainable or not."""
    accuracy_at_germination_pct: float | None
    accuracy_at_stage_start_pct: float | None
    accuracy_at_blending_start_pct: float | None
    current_accuracy_pct: float | None
    contribution_pp: float | None
    """Accuracy with everything on minus accuracy with this seed off."""
    contribution_velocity_pp: float | None
    steps_since_contribution: int | None
    interaction_sum_pp: float | None
    boost_received_pp: float | None
    upstream_alpha_sum: float
    downstream_alpha_sum: float
    gradient: GradientReading | None
    previous_gradient_health: float | None

    @property
    def algorithm(self) -> AlphaAlgorithm:
        """Return how seed and host are composed."""
        return self.style.algorithm

    @property
    def improvement_pp(self) -> float | None:
        """Return the host's change since germination, drift included."""
        return _difference(self.current_accuracy_pct, self.accuracy_at_germination_pct)

    @property
    def stage_improvement_pp(self) -> float | None:
        """Return the host's change since the stage began, drift included."""
        return _difference(self.current_accuracy_pct, self.accuracy_at_stage_start_pct)


def _difference(current: float | None, earlier: float | None) -> float | None:
    return None if current is None or earlier is None else current - earlier


class EpisodeStatus(StrEnum):
    """How an episode ended."""

    SUCCESS = "success"
    """Final accuracy reached the task's threshold."""
    TIMEOUT = "timeout"
    FAILED = "failed"
    """The env was quarantined before its last step."""


class EpisodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One env's life within a round."""

    round: int
    env_id: int
    episode_id: int
    status: EpisodeStatus
    num_steps: int
    final_accuracy_pct: float | None
    best_accuracy_pct: float | None
    final_loss: float | None
    total_reward: float
    """Sum of the raw rewards after penalties."""
    task_return: float
    """The same without shaping: what claims are made on."""
    stability: float
    """1 / (1 + variance of the last rewards)."""
    param_ratio: float
    """Parameters at the end over parameters of the host alone."""
    num_germinated: int
    num_pruned: int
    num_fossilized: int
    num_contributing_fossils: int
    """Fossils whose counterfactual contribution at the end reached the threshold."""
    num_rollbacks: int


class BatchSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One round: what `history` holds."""

    round: int
    episodes: tuple[EpisodeRecord, ...]
    mean_accuracy_pct: float | None
    """Mean of the final accuracies of the envs that reached their last step."""
    rolling_accuracy_pct: float | None
    mean_reward: float
    mean_task_return: float
    """Mean of the episodes' returns without shaping."""
    update_performed: bool
    policy_loss: float | None
    value_loss: float | None
    entropy: float | None
    kl_divergence: float | None
    duration_s: float
