"""The round's tally: how often each op was legal, decided and successful, and what it earned."""

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from esper.leyline.actions import NUM_OPS, Op
from esper.leyline.messages import EnvOutcome
from esper.leyline.payloads import ActionDistribution, MaskHitRates
from esper.leyline.rewards import RewardComponents
from esper.tamiyo.mask_types import ActionMasks

__all__ = ["RoundTally"]


@dataclass(eq=False, slots=True)
class RoundTally:
    """Counts over all envs and steps of one round."""

    num_decisions: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    successes: Counter[str] = field(default_factory=Counter)
    components: RewardComponents = field(default_factory=RewardComponents)
    num_rewards: int = 0
    total_reward: float = 0.0
    _legal: Tensor = field(default_factory=lambda: torch.zeros(NUM_OPS, dtype=torch.long))
    _forced: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.long))

    def add_masks(self, masks: ActionMasks, is_live: Tensor) -> None:
        """Count what was legal, for the envs that are still there."""
        legal = masks.op & is_live.unsqueeze(-1)
        self._legal += legal.sum(0)
        self._forced += (legal.sum(-1) == 1).sum()

    def add_outcome(self, outcome: EnvOutcome) -> None:
        """Count a decision and whether it came to something."""
        self.num_decisions += 1
        self.counts[outcome.outcome.action.op.name] += 1
        self.successes[outcome.outcome.action.op.name] += outcome.outcome.succeeded

    def add_reward(self, components: RewardComponents) -> None:
        """Add up what a step has earned."""
        self.components = RewardComponents.sum_of(self.components, components)
        self.num_rewards += 1
        self.total_reward += components.total()

    def mean_components(self) -> RewardComponents:
        """Return the mean of each component."""
        share = 1.0 / max(self.num_rewards, 1)
        fields = self.components.__struct_fields__
        return RewardComponents(**{name: share * getattr(self.components, name) for name in fields})

    def action_distribution(self) -> ActionDistribution:
        """Return how often each op was decided and how often it succeeded."""
        return ActionDistribution(
            counts={op.name: self.counts[op.name] for op in Op},
            successes={op.name: self.successes[op.name] for op in Op},
        )

    def materialize_mask_hit_rates(self) -> MaskHitRates:
        """Return how often each op was legal."""
        numbers = torch.cat([self._legal, self._forced.unsqueeze(0)]).tolist()
        return MaskHitRates(
            num_decisions=self.num_decisions,
            legal_counts={op.name: numbers[op] for op in Op},
            forced_count=numbers[-1],
        )
