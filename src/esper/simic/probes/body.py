"""The body of a probe: slots with the real lifecycle, and seeds without modules."""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

from esper.kasmina import lifecycle
from esper.kasmina.lifecycle import Transition
from esper.kasmina.seed import GerminationRequest, PruneCause, SeedState
from esper.kasmina.slot_operations import Emit, SlotOperations, reports_of, tick_slots
from esper.leyline.errors import UnknownNameError
from esper.leyline.messages import Panic
from esper.leyline.payloads import Payload
from esper.leyline.probes import ProbeHostSpec
from esper.leyline.reports import GradientReading, SeedReport
from esper.leyline.stages import COOLDOWN_STAGES, LifecycleRules
from esper.simic.probes.growth import (
    Fate,
    accuracy_pct,
    num_params_of,
    visible_effect,
    worth_of,
)

__all__ = ["ProbeBody", "ProbeSlot"]

GRADIENT_SCALE_PP: Final = 10.0
"""A seed's gradient norm rises by 1 for so many points that it adds."""
NOISY_NORM_MU: Final = -0.9
NOISY_NORM_SIGMA: Final = 0.7
NOISY_HEALTHS: Final = (0.75, 0.875, 1.0)
"""Norms and healths of gradients as those of seeds in `digits_lottery` are distributed."""


@dataclass(eq=False, slots=True)
class ProbeSlot(SlotOperations):
    """A slot whose seed is a number: what it is worth."""

    slot_id: str
    rules: LifecycleRules
    emit: Emit
    state: SeedState | None = None
    num_params: int = 0
    worth: float = 0.0

    def apply_outcome(self, outcome: Transition) -> tuple[Payload, ...]:
        """Apply a lifecycle outcome; a seed that is pruned has no parameters from then on."""
        payloads = SlotOperations.apply_outcome(self, outcome)
        if self.state is None or self.state.stage in COOLDOWN_STAGES:
            self.num_params, self.worth = 0, 0.0
        return payloads


@dataclass(eq=False, kw_only=True, slots=True)
class ProbeBody:
    """An analytic host with its slots."""

    spec: ProbeHostSpec
    fate: Fate
    slots: dict[str, ProbeSlot]
    noise: Random
    """Of measurements; used only if the spec has noise."""
    num_seeds: int = 0
    """Seeds that have germinated."""

    def slot(self, slot_id: str) -> ProbeSlot:
        """Return a slot by its id."""
        if slot_id not in self.slots:
            raise UnknownNameError("slot", slot_id, self.slots)
        return self.slots[slot_id]

    def germinate(self, slot_id: str, request: GerminationRequest, _: None, /) -> Transition:
        """Germinate a seed; its worth is decided by the env's fate."""
        slot = self.slot(slot_id)
        outcome = lifecycle.germinate(slot.state, request, slot.rules)
        if outcome.state is not None and outcome.succeeded:
            place = tuple(self.slots).index(slot_id)
            slot.num_params = num_params_of(self.spec, outcome.state.blueprint, place)
            slot.worth = worth_of(
                self.spec, self.fate, outcome.state, seed_index=self.num_seeds, slot_index=place
            )
            self.num_seeds += 1
        return slot.commit(outcome)

    def tick(self) -> None:
        """Advance every slot by one step."""
        tick_slots(self.slots.values())

    def reports(self) -> tuple[SeedReport, ...]:
        """Return a report of every occupied slot, in action order."""
        return tuple(reports_of(self.slots.values(), tuple(self.slots)).values())

    def roll_back(self, panic: Panic) -> tuple[str, ...]:
        """Prune all seeds that are not fossilized, and return their slots."""
        cause = PruneCause(reason=f"governor_{panic.reason}", initiator="governor")
        return tuple(slot.slot_id for slot in self.slots.values() if slot.prune(cause).succeeded)

    def record_gradients(self) -> None:
        """Record a gradient for every seed: healthy, and larger where it adds more, or noise."""
        for slot in self.slots.values():
            state = slot.state
            if state is not None and state.stage not in COOLDOWN_STAGES:
                slot.record_gradient(self._gradient(slot, state))

    def accuracy_pct(self, step: int, off: Iterable[str] = ()) -> float:
        """Return the accuracy at a step with the seeds of some slots switched off."""
        effects, alphas = [], []
        for slot in self.slots.values():
            state = slot.state
            if state is not None and state.is_blended and slot.slot_id not in off:
                effects.append(visible_effect(self.spec, state, slot.worth))
                alphas.append(state.alpha.alpha)
        return accuracy_pct(self.spec, self.fate, step, effects, alphas)

    def measured_pct(self, step: int, off: Iterable[str] = ()) -> float:
        """Return the accuracy as validation measures it."""
        noise = self.noise.gauss(0.0, self.spec.noise_pp) if self.spec.noise_pp else 0.0
        return min(max(self.accuracy_pct(step, off) + noise, 0.0), 100.0)

    def _gradient(self, slot: ProbeSlot, state: SeedState) -> GradientReading:
        if self.spec.noise_pp:
            norm = self.noise.lognormvariate(NOISY_NORM_MU, NOISY_NORM_SIGMA)
            health = self.noise.choice(NOISY_HEALTHS)
        else:
            shown = visible_effect(self.spec, state, slot.worth)
            effect = max(shown, 0.0)
            norm, health = 1.0 + effect / GRADIENT_SCALE_PP, 1.0
        return GradientReading(
            norm=norm, ratio=norm, health=health, has_vanishing=False, has_exploding=False
        )

    @property
    def num_seed_params(self) -> int:
        """Return the number of parameters of all seeds."""
        return sum(slot.num_params for slot in self.slots.values())
