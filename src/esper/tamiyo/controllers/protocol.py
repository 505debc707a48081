"""The controller interface, its input and its output."""

from dataclasses import dataclass
from typing import Protocol

from esper.leyline.actions import ActionSpec
from esper.leyline.messages import DecisionDetail, EnvEvidence
from esper.tamiyo.features import ObservationBatch
from esper.tamiyo.mask_types import ActionMasks

__all__ = ["Choice", "Controller", "Situation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """A controller's input: the envs to decide.

    Others keep their row in the tensors, and their entry in `envs` is None: they are quarantined,
    or belong to another worker, whose envs are decided in a call of their own.
    """

    round: int
    step: int
    observations: ObservationBatch
    """Not normalised."""
    masks: ActionMasks
    envs: tuple[EnvEvidence | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A controller's output: one action per env, in env order; None for an env not decided."""

    actions: tuple[ActionSpec | None, ...]
    details: tuple[DecisionDetail | None, ...]


class Controller(Protocol):
    """Chooses the actions of all envs.

    What it chooses for an env must not depend on which others are decided in the same call.
    """

    @property
    def name(self) -> str:
        """Return the name that identifies the controller in a run's events and reports."""

    def begin_round(self, round_index: int) -> None:
        """Reset any state kept from the previous round."""

    def choose(self, situation: Situation) -> Choice:
        """Choose one action for each env of the situation."""
