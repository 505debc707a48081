"""Ablations of seeds, and the prefix tree over which several ablations share computation."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

import msgspec
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from esper.kasmina.hosts.protocol import HostProtocol
from esper.kasmina.hosts.statistics import batch_statistics
from esper.kasmina.slot import SeedSlot
from esper.leyline.attribution import Ablation

__all__ = [
    "NOTHING_OFF",
    "FusedOutput",
    "PrefixCounts",
    "PrefixWalk",
    "full_factorial",
]


NOTHING_OFF: Final = Ablation()
MIN_SAMPLES: Final = 2
"""Samples of a batch from which batch norms can be estimated."""


class PrefixCounts(msgspec.Struct, frozen=True):
    """How many host segments and seeds a forward pass over several ablations evaluates."""

    num_segments: int
    num_seeds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FusedOutput:
    """A model's logits under each of several ablations."""

    logits: tuple[Tensor, ...]
    """One entry per ablation, in the order requested; equal ablations share a tensor."""
    evaluated: PrefixCounts


def full_factorial(slot_ids: Sequence[str]) -> tuple[Ablation, ...]:
    """Return all subsets of these seeds; ablation i switches seed j off where bit j of i is set."""
    return tuple(
        Ablation(frozenset(slot for bit, slot in enumerate(slot_ids) if index >> bit & 1))
        for index in range(1 << len(slot_ids))
    )


@dataclass(eq=False, slots=True)
class PrefixWalk:
    """A depth-first walk over the tree, so that only one path's activations are in memory.

    Behind a seed that is off, batch norms use the statistics of the batch: their running statistics
    are those of the network with the seed, and would make an ablation measure the damage of wrong
    statistics beside the worth of the seed.
    """

    host: HostProtocol
    blended: Sequence[SeedSlot]
    """In execution order."""
    ablations: Sequence[Ablation]
    norms: Sequence[_BatchNorm] = ()
    """The host's batch norms."""
    _logits: dict[int, Tensor] = field(default_factory=dict)
    _num_segments: int = 0
    _num_seeds: int = 0
    _may_estimate: bool = True

    def run(self, x: Tensor) -> FusedOutput:
        """Map inputs to logits under every ablation."""
        # One sample has no statistics of its own.
        self._may_estimate = len(x) >= MIN_SAMPLES
        self._descend(x, 0, range(len(self.ablations)), is_ablated=False)
        return FusedOutput(
            logits=tuple(self._logits[index] for index in range(len(self.ablations))),
            evaluated=PrefixCounts(self._num_segments, self._num_seeds),
        )

    def _descend(self, x: Tensor, depth: int, members: Sequence[int], *, is_ablated: bool) -> None:
        """Run the model from seed number `depth` on, for ablations that are equal up to it."""
        if not members:
            return
        self._num_segments += 1
        previous = self.blended[depth - 1].slot_id if depth else None
        if depth == len(self.blended):
            with self._statistics(is_ablated=is_ablated):
                logits = self._finish(x, previous)
            self._logits.update(dict.fromkeys(members, logits))
            return
        slot = self.blended[depth]
        # Shared by all members, whether this seed is on or off for them: the tree branches after
        # it.
        with self._statistics(is_ablated=is_ablated):
            h = self.host.forward_to_segment(slot.slot_id, x, previous)
        on = [index for index in members if slot.slot_id not in self.ablations[index].off]
        if on:
            self._num_seeds += 1
            # At the plain batch size, not as one large batch of all branches: kernels choose their
            # algorithm by size, and each ablation must equal its own plain forward pass bit for
            # bit.
            self._descend(slot(h), depth + 1, on, is_ablated=is_ablated)
        off = [index for index in members if index not in on]
        self._descend(h, depth + 1, off, is_ablated=True)

    def _statistics(self, *, is_ablated: bool) -> AbstractContextManager[None]:
        if is_ablated and self._may_estimate:
            return batch_statistics(self.norms)
        return nullcontext()

    def _finish(self, x: Tensor, previous: str | None) -> Tensor:
        if previous is None:
            return self.host.forward(x)
        return self.host.forward_from_segment(previous, x)
