"""The governor: guards one env, keeps its last good weights, and puts them back."""

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
    """Return why an op may not be carried out on this env now, or None; waiting always may."""
    if action.op is Op.WAIT:
        return None
    for name in ("val_loss", "val_accuracy_pct"):
        if not math.isfinite(getattr(signals, name)):
            return f"{name} is not finite"
    return illegality(action, reports, rules)


@dataclass(eq=False, slots=True)
class Governor:
    """Watches one env's validation loss and holds what a rollback goes back to.

    The snapshot has the host and its fossils. Seeds that are still on their way are pruned by a
    rollback, so their weights and stages have no place in it.
    """

    model: MorphogeneticModel
    config: GovernorConfig
    random_guess_loss: float
    signs: VitalSigns = field(default_factory=VitalSigns)
    _weights: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Bless the weights the env starts with."""
        self.take_snapshot()

    def check(self, loss: float) -> Panic | None:
        """Judge a validation loss of the real network."""
        self.signs, panic = check_vital_signs(
            self.signs, loss, random_guess_loss=self.random_guess_loss, config=self.config
        )
        return panic

    def is_snapshot_due(self, step: int) -> bool:
        """Tell whether a healthy step's weights are kept; those of a fossilization always are."""
        return step % self.config.snapshot_every == 0

    def take_snapshot(self) -> None:
        """Keep a copy of the host and its fossils as they are now.

        While losses are anomalous, what is kept already stays as it is: only fossils that are new
        join it, because a rollback must never meet one that it has no weights for.
        """
        is_suspect = self.signs.consecutive_anomalies > 0
        with torch.no_grad():
            for name, value in self._guarded_weights().items():
                if name not in self._weights:
                    self._weights[name] = value.clone()
                elif not is_suspect:
                    self._weights[name].copy_(value)

    def roll_back(self, panic: Panic) -> tuple[str, ...]:
        """Prune every seed on its way and restore the snapshot; return the slots that were pruned.

        Parameters stay the same objects. The caller clears the optimizers, whose moments belong to
        the weights that are gone.
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
