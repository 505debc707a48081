"""The governor: monitors one env, snapshots its last good weights, and restores them."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.seed import PruneCause
from esper.leyline.actions import ActionSpec, Op
from esper.leyline.config import GovernorConfig
from esper.leyline.errors import ContractError
from esper.leyline.legality import ActionRules, illegality
from esper.leyline.messages import Panic
from esper.leyline.reports import SeedReport
from esper.leyline.signals import TrainingSignals
from esper.leyline.stages import Stage
from esper.tolaria.vital_signs import VitalSigns, after_rollback, check_vital_signs

__all__ = ["Governor", "preflight"]

HOST_PREFIX = "host."


def preflight(
    action: ActionSpec,
    signals: TrainingSignals,
    reports: tuple[SeedReport, ...],
    rules: ActionRules,
) -> str | None:
    """Return why an op must not be applied to this env now, or None; WAIT is always allowed."""
    if action.op is Op.WAIT:
        return None
    for name in ("val_loss", "val_accuracy_pct"):
        if not math.isfinite(getattr(signals, name)):
            return f"{name} is not finite"
    return illegality(action, reports, rules)


@dataclass(eq=False, slots=True)
class Governor:
    """Monitors one env's validation loss and stores the snapshot that a rollback restores.

    The snapshot contains the host and its fossils. A rollback prunes all seeds that are not yet
    fossilized, so their weights and stages are not part of it.
    """

    model: MorphogeneticModel
    config: GovernorConfig
    random_guess_loss: float
    signs: VitalSigns = field(default_factory=VitalSigns)
    _weights: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Snapshot the env's initial weights."""
        self.take_snapshot()

    def check(self, loss: float) -> Panic | None:
        """Check a validation loss of the full network; return a panic if it must be rolled back."""
        self.signs, panic = check_vital_signs(
            self.signs, loss, random_guess_loss=self.random_guess_loss, config=self.config
        )
        return panic

    def is_snapshot_due(self, step: int) -> bool:
        """Return whether a snapshot is due after a healthy step; fossilizing always takes one."""
        return step % self.config.snapshot_every == 0

    def take_snapshot(self) -> None:
        """Copy the current weights of the host and its fossils into the snapshot.

        While losses are anomalous, existing entries are not overwritten; only new fossils are
        added, because a rollback needs weights for every fossil.
        """
        is_suspect = self.signs.consecutive_anomalies > 0
        with torch.no_grad():
            for name, value in self._guarded_weights().items():
                if name not in self._weights:
                    self._weights[name] = value.clone()
                # In place: a snapshot per step must not allocate, as its memory is as large as the
                # network's.
                elif not is_suspect:
                    self._weights[name].copy_(value)

    def roll_back(self, panic: Panic) -> tuple[str, ...]:
        """Prune all seeds that are not fossilized, restore the snapshot, return the pruned slots.

        Parameters are restored in place. The caller resets the optimizers, whose moments belong to
        the discarded weights.
        """
        cause = PruneCause(reason=f"governor_{panic.reason}", initiator="governor")
        pruned = tuple(
            slot.slot_id for slot in self.model.all_slots() if slot.prune(cause).succeeded
        )
        current = self._guarded_weights()
        if current.keys() != self._weights.keys():
            missing = sorted(current.keys() ^ self._weights.keys())
            raise ContractError(f"the snapshot and the model differ in {', '.join(missing)}")
        with torch.no_grad():
            for name, value in current.items():
                # In place, as optimizers hold on to the parameters themselves. Buffers, such as the
                # running statistics of batch norm, are restored with them.
                value.copy_(self._weights[name])
        self.signs = after_rollback(self.signs)
        return pruned

    def _guarded_weights(self) -> dict[str, Tensor]:
        fossils = tuple(
            f"slots.{slot.slot_id}."
            for slot in self.model.all_slots()
            if slot.state is not None and slot.state.stage is Stage.FOSSILIZED
        )
        return {
            name: value
            for name, value in self.model.state_dict().items()
            if name.startswith((HOST_PREFIX, *fossils))
        }
