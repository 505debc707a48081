"""The result of a reward mode, returned to the dispatcher; a reading that several modes share."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from esper.leyline.errors import ContractError
from esper.leyline.rewards import HackingSuspicion, RewardComponents, RewardInputs

__all__ = ["ModeTerms", "committed_share"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeTerms:
    """A mode's reward terms, and its memory by slot."""

    components: RewardComponents
    escrow_credits: Mapping[str, float] = field(default_factory=dict)
    drip_scales: Mapping[str, float] = field(default_factory=dict)
    suspicions: tuple[HackingSuspicion, ...] = ()


def committed_share(inputs: RewardInputs) -> float:
    """Return the accuracy with only the fossils enabled, from 0 to 1."""
    if inputs.committed_accuracy_pct is None:
        raise ContractError(
            f"step {inputs.step}: the accuracy with only the fossils enabled was not measured"
        )
    return inputs.committed_accuracy_pct / 100.0
