"""The state of a seed as immutable data, and how measurements update it."""

from typing import Final

import msgspec

from esper.leyline.actions import Style
from esper.leyline.alpha import DEFAULT_STEEPNESS, AlphaCurve, AlphaState
from esper.leyline.reports import GradientReading, SeedReport
from esper.leyline.stages import COOLDOWN_STAGES, Stage

__all__ = [
    "BLENDED_STAGES",
    "GerminationRequest",
    "Measurements",
    "PruneCause",
    "Ramp",
    "SeedState",
    "difference",
    "report_of",
    "with_accuracy",
    "with_contribution",
    "with_gradient",
    "with_interaction",
]

VELOCITY_MEMORY: Final = 0.7
"""Weight of the previous value in the exponentially smoothed change of a contribution."""

BLENDED_STAGES: Final = frozenset({Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED})
"""Stages whose seed changes the host's output."""


class PruneCause(msgspec.Struct, frozen=True, kw_only=True):
    """The reason of a prune, and its initiator."""

    reason: str = "policy_prune"
    initiator: str = "policy"


class GerminationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to germinate a seed."""

    seed_id: str
    blueprint: str
    style: Style = Style.SIGMOID_ADD
    tempo_steps: int = 5
    """Length of the first ramp."""
    alpha_target: float = 1.0
    """Alpha at the end of the first ramp."""
    accuracy_pct: float | None = None
    """The host's current accuracy, if measured."""
    is_sterile: bool = False
    """The seed is born with random weights, which never change."""
    step: int = 0
    """Step of the episode; 0 also for seeds present from its start."""


class Ramp(msgspec.Struct, frozen=True, kw_only=True):
    """How alpha changes; 0 steps means immediately."""

    num_steps: int
    curve: AlphaCurve = AlphaCurve.LINEAR
    steepness: float = DEFAULT_STEEPNESS


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of a seed; None means never measured."""

    accuracy_at_germination_pct: float | None = None
    accuracy_at_stage_start_pct: float | None = None
    accuracy_at_blending_start_pct: float | None = None
    current_accuracy_pct: float | None = None
    contribution_pp: float | None = None
    contribution_velocity_pp: float | None = None
    steps_since_contribution: int | None = None
    interaction_sum_pp: float | None = None
    boost_received_pp: float | None = None
    gradient: GradientReading | None = None
    previous_gradient_health: float | None = None

    @property
    def stage_improvement_pp(self) -> float | None:
        """Return the change of the host's accuracy since the start of the stage."""
        return difference(self.current_accuracy_pct, self.accuracy_at_stage_start_pct)


class SeedState(msgspec.Struct, frozen=True, kw_only=True):
    """The complete state of a seed; an empty slot has none."""

    seed_id: str
    blueprint: str
    style: Style
    tempo_steps: int
    alpha_target: float
    stage: Stage
    previous_stage: Stage
    previous_stage_steps: int = 0
    steps_in_stage: int = 0
    age_steps: int = 0
    germinated_at_step: int = 0
    fossilized_at_step: int | None = None
    is_sterile: bool = False
    alpha: AlphaState = AlphaState()
    pending_prune: PruneCause | None = None
    """Set while alpha ramps down to a scheduled prune."""
    measured: Measurements = Measurements()

    @property
    def is_blended(self) -> bool:
        """Return whether the seed changes the host's output."""
        return self.stage in BLENDED_STAGES and self.alpha.alpha > 0.0

    @property
    def is_incubating(self) -> bool:
        """Return whether the seed learns without changing the host's output."""
        is_idle = self.stage in COOLDOWN_STAGES or self.is_frozen
        return not (is_idle or self.is_blended)

    @property
    def is_frozen(self) -> bool:
        """Return whether the seed's parameters are frozen, as they are before a scheduled prune."""
        return self.pending_prune is not None


def with_accuracy(state: SeedState, accuracy_pct: float) -> SeedState:
    """Record the host's accuracy; a seed's first one is also its value at germination."""
    measured = state.measured
    start = measured.accuracy_at_stage_start_pct
    germination = measured.accuracy_at_germination_pct
    return _measured(
        state,
        current_accuracy_pct=accuracy_pct,
        accuracy_at_stage_start_pct=accuracy_pct if start is None else start,
        accuracy_at_germination_pct=accuracy_pct if germination is None else germination,
    )


def with_contribution(state: SeedState, contribution_pp: float) -> SeedState:
    """Record the seed's measured contribution."""
    # The first measurement has no change, which is None and not 0: the seed was not seen at rest.
    previous, velocity = state.measured.contribution_pp, None
    if previous is not None:
        past = state.measured.contribution_velocity_pp or 0.0
        change = contribution_pp - previous
        velocity = VELOCITY_MEMORY * past + (1.0 - VELOCITY_MEMORY) * change
    return _measured(
        state,
        contribution_pp=contribution_pp,
        contribution_velocity_pp=velocity,
        steps_since_contribution=0,
    )


def with_interaction(
    state: SeedState, interaction_sum_pp: float | None, boost_received_pp: float | None
) -> SeedState:
    """Record the seed's interactions with other seeds; None if not measured in this pass."""
    return _measured(
        state, interaction_sum_pp=interaction_sum_pp, boost_received_pp=boost_received_pp
    )


def with_gradient(state: SeedState, reading: GradientReading) -> SeedState:
    """Record a gradient reading, and the health of the previous one."""
    previous = state.measured.gradient
    health = None if previous is None else previous.health
    # Kept for one step, so that the policy observes whether a seed's gradients get better or worse.
    return _measured(state, gradient=reading, previous_gradient_health=health)


def report_of(
    state: SeedState,
    *,
    slot_id: str,
    num_params: int,
    upstream_alpha_sum: float,
    downstream_alpha_sum: float,
) -> SeedReport:
    """Build the report of a seed that the policy observes."""
    return SeedReport(
        slot_id=slot_id,
        seed_id=state.seed_id,
        blueprint=state.blueprint,
        stage=state.stage,
        previous_stage=state.previous_stage,
        previous_stage_steps=state.previous_stage_steps,
        steps_in_stage=state.steps_in_stage,
        age_steps=state.age_steps,
        germinated_at_step=state.germinated_at_step,
        fossilized_at_step=state.fossilized_at_step,
        alpha=state.alpha,
        style=state.style,
        tempo_steps=state.tempo_steps,
        num_params=num_params,
        upstream_alpha_sum=upstream_alpha_sum,
        downstream_alpha_sum=downstream_alpha_sum,
        **msgspec.structs.asdict(state.measured),
    )


def difference(current: float | None, earlier: float | None) -> float | None:
    """Return `current - earlier`, or None if either was not measured."""
    return None if current is None or earlier is None else current - earlier


def _measured(state: SeedState, **changes: object) -> SeedState:
    measured = msgspec.structs.replace(state.measured, **changes)
    return msgspec.structs.replace(state, measured=measured)
