"""The round's tally: how often each op was legal, chosen and successful, and mean rewards."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from esper.leyline.actions import Op
from esper.leyline.messages import EnvOutcome
from esper.leyline.payloads import ActionDistribution, MaskHitRates, SlotActivity
from esper.leyline.rewards import RewardComponents
from esper.tamiyo.mask_types import ActionMasks

__all__ = ["RoundTally", "materialize_legality", "summed_activity"]


@dataclass(eq=False, slots=True)
class RoundTally:
    """Counts over all envs and steps of one round."""

    num_decisions: int = 0
    """Number of decisions, including those preempted by a rollback or a failure."""
    legal_counts: Counter[str] = field(default_factory=Counter)
    forced_count: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    successes: Counter[str] = field(default_factory=Counter)
    components: RewardComponents = field(default_factory=RewardComponents)
    num_rewards: int = 0
    total_reward: float = 0.0

    def add_legality(self, legality: Sequence[Sequence[bool]], is_live: Sequence[bool]) -> None:
        """Count the legal ops of the envs that have not failed."""
        for row in (row for row, live in zip(legality, is_live, strict=True) if live):
            self.num_decisions += 1
            self.legal_counts.update(op.name for op in Op if row[op])
            self.forced_count += sum(row) == 1

    def add_outcome(self, outcome: EnvOutcome) -> None:
        """Count an executed decision and whether it succeeded."""
        self.counts[outcome.outcome.action.op.name] += 1
        self.successes[outcome.outcome.action.op.name] += outcome.outcome.succeeded

    def add_reward(self, components: RewardComponents) -> None:
        """Add the reward components of a step."""
        self.components = RewardComponents.sum_of(self.components, components)
        self.num_rewards += 1
        self.total_reward += components.total()

    def mean_components(self) -> RewardComponents:
        """Return the mean of each component."""
        share = 1.0 / max(self.num_rewards, 1)
        fields = self.components.__struct_fields__
        return RewardComponents(**{name: share * getattr(self.components, name) for name in fields})

    def action_distribution(self, slots: tuple[SlotActivity, ...]) -> ActionDistribution:
        """Return how often each op was executed and succeeded, with the activity of each slot."""
        return ActionDistribution(
            counts={op.name: self.counts[op.name] for op in Op},
            successes={op.name: self.successes[op.name] for op in Op},
            slots=slots,
        )

    def mask_hit_rates(self) -> MaskHitRates:
        """Return how often each op was legal."""
        return MaskHitRates(
            num_decisions=self.num_decisions,
            legal_counts={op.name: self.legal_counts[op.name] for op in Op},
            forced_count=self.forced_count,
        )


def summed_activity(
    envs: Iterable[Iterable[SlotActivity]], slot_ids: Sequence[str]
) -> tuple[SlotActivity, ...]:
    """Sum the activity of each slot over all envs, in action order."""
    found = [slot for env in envs for slot in env]
    return tuple(
        SlotActivity(
            slot_id=slot_id,
            num_decided=sum(slot.num_decided for slot in found if slot.slot_id == slot_id),
            num_succeeded=sum(slot.num_succeeded for slot in found if slot.slot_id == slot_id),
            reward=sum((slot.reward or 0.0) for slot in found if slot.slot_id == slot_id),
        )
        for slot_id in slot_ids
    )


def materialize_legality(masks: ActionMasks) -> list[list[bool]]:
    """Return which ops are legal for each env; masks are on the CPU, so nothing is transferred."""
    rows: list[list[bool]] = masks.op.numpy().tolist()
    return rows
