"""Which seeds to switch off, and the tree of prefixes that several such choices share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from esper.kasmina.hosts.protocol import HostProtocol
from esper.kasmina.slot import SeedSlot
from esper.leyline.attribution import Ablation

__all__ = [
    "FusedOutput",
    "PrefixCounts",
    "PrefixWalk",
    "full_factorial",
    "prefix_counts",
]


class PrefixCounts(msgspec.Struct, frozen=True):
    """How often parts of a model run."""

    num_segments: int
    num_seeds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FusedOutput:
    """What a model says under each of several ablations."""

    logits: tuple[Tensor, ...]
    """One entry per ablation, in the order they were asked for; equal ones share a tensor."""
    evaluated: PrefixCounts


def full_factorial(slot_ids: Sequence[str]) -> tuple[Ablation, ...]:
    """Return all subsets of these seeds; ablation i switches seed j off where bit j of i is set."""
    return tuple(
        Ablation(frozenset(slot for bit, slot in enumerate(slot_ids) if index >> bit & 1))
        for index in range(1 << len(slot_ids))
    )


def prefix_counts(
    execution_order: Sequence[str], blended: Iterable[str], ablations: Sequence[Ablation]
) -> PrefixCounts:
    """Count, without running anything, what the shared evaluation must run.

    A segment runs once per distinct choice over the blended seeds before it, a seed once per
    distinct choice before it that keeps it on.
    """
    live = set(blended)
    choices = [
        [slot in live and slot in ablation.off for slot in execution_order]
        for ablation in ablations
    ]
    depths = range(len(execution_order) + 1)
    prefixes = [{tuple(choice[:depth]) for choice in choices} for depth in depths]
    num_seeds = sum(
        len({prefix for prefix in prefixes[depth + 1] if not prefix[-1]})
        for depth, slot in enumerate(execution_order)
        if slot in live
    )
    return PrefixCounts(sum(map(len, prefixes)), num_seeds)


@dataclass(eq=False, slots=True)
class PrefixWalk:
    """A walk over the tree, depth first, so that only one path's activations are held at a time."""

    host: HostProtocol
    slots: Sequence[SeedSlot]
    """In execution order."""
    ablations: Sequence[Ablation]
    _logits: dict[int, Tensor] = field(default_factory=dict)
    _num_segments: int = 0
    _num_seeds: int = 0

    def run(self, x: Tensor) -> FusedOutput:
        """Map inputs to logits under every ablation."""
        self._descend(x, 0, range(len(self.ablations)))
        return FusedOutput(
            logits=tuple(self._logits[index] for index in range(len(self.ablations))),
            evaluated=PrefixCounts(self._num_segments, self._num_seeds),
        )

    def _descend(self, x: Tensor, depth: int, members: Sequence[int]) -> None:
        """Run what follows on slot number `depth` for the ablations that agree so far."""
        if not members:
            return
        self._num_segments += 1
        previous = self.slots[depth - 1].slot_id if depth else None
        if depth == len(self.slots):
            assert previous is not None, "a model has at least one slot"
            logits = self.host.forward_from_segment(previous, x)
            self._logits.update(dict.fromkeys(members, logits))
            return
        slot = self.slots[depth]
        h = self.host.forward_to_segment(slot.slot_id, x, from_segment=previous)
        if not slot.is_blended:
            self._descend(slot(h), depth + 1, members)
            return
        on = [index for index in members if slot.slot_id not in self.ablations[index].off]
        if on:
            self._num_seeds += 1
            self._descend(slot(h), depth + 1, on)
        self._descend(h, depth + 1, [index for index in members if index not in on])
