"""The result of a reward mode, returned to the dispatcher."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from esper.leyline.rewards import HackingSuspicion, RewardComponents

__all__ = ["ModeTerms"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeTerms:
    """A mode's reward terms, and its memory by slot."""

    components: RewardComponents
    escrow_credits: Mapping[str, float] = field(default_factory=dict)
    drip_scales: Mapping[str, float] = field(default_factory=dict)
    suspicions: tuple[HackingSuspicion, ...] = ()
