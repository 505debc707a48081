"""What a controller is shown and what it answers."""

from dataclasses import dataclass
from typing import Protocol

from esper.leyline.actions import ActionSpec
from esper.leyline.messages import DecisionDetail, EnvEvidence
from esper.tamiyo.features import ObservationBatch
from esper.tamiyo.mask_types import ActionMasks

__all__ = ["Choice", "Controller", "Situation"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """All envs before a decision; a quarantined one keeps its row and has no evidence."""

    round: int
    step: int
    observations: ObservationBatch
    """Raw."""
    masks: ActionMasks
    envs: tuple[EnvEvidence | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """One decision per env, in env order; None for a quarantined one."""

    actions: tuple[ActionSpec | None, ...]
    details: tuple[DecisionDetail | None, ...]


class Controller(Protocol):
    """Decides for all envs at once."""

    @property
    def name(self) -> str:
        """Return the name that runs are told by."""

    def begin_round(self, round_index: int) -> None:
        """Forget the envs of the round before."""

    def choose(self, situation: Situation) -> Choice:
        """Decide."""
