"""The operations of a slot on its seed's state; what a seed consists of is left to subclasses."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from esper.kasmina import lifecycle
from esper.kasmina.lifecycle import Transition
from esper.kasmina.narration import payload_of
from esper.kasmina.seed import (
    PruneCause,
    Ramp,
    SeedState,
    report_of,
    with_accuracy,
    with_contribution,
    with_gradient,
    with_interaction,
)
from esper.leyline.errors import ContractError
from esper.leyline.payloads import Payload
from esper.leyline.reports import GradientReading, SeedReport
from esper.leyline.stages import LifecycleRules

__all__ = ["Emit", "SlotOperations", "discard", "reports_of", "tick_slots"]

Emit: TypeAlias = Callable[[Payload], None]
"""The event callback: called with the payloads of seed events."""


def discard(_payload: Payload) -> None:
    """Discard the payload."""


class SlotOperations:
    """Operations and measurements of one slot.

    Every operation consults the lifecycle, then applies its outcome, then emits events. The change
    is complete before the event callback is called, so it stands even if that raises.
    """

    slot_id: str
    rules: LifecycleRules
    emit: Emit
    state: SeedState | None
    num_params: int
    """Parameters of the seed; 0 for an empty slot."""

    def advance(self) -> Transition:
        """Evaluate the gate to the next stage and advance if it passes."""
        return self.commit(lifecycle.advance(self.state, self.rules))

    def fossilize(self) -> Transition:
        """Make a seed in HOLDING permanent if its gate passes."""
        return self.commit(lifecycle.fossilize(self.state, self.rules))

    def prune(self, cause: PruneCause) -> Transition:
        """Remove the seed immediately."""
        return self.commit(lifecycle.prune(self.state, cause))

    def schedule_prune(self, ramp: Ramp, cause: PruneCause) -> Transition:
        """Ramp alpha down, then remove the seed."""
        return self.commit(lifecycle.schedule_prune(self.state, ramp, cause))

    def set_alpha_target(self, target: float, ramp: Ramp) -> Transition:
        """Start a ramp of alpha to another target."""
        return self.commit(lifecycle.set_alpha_target(self.state, target, ramp))

    def tick(self) -> Transition:
        """Advance the slot by one step."""
        return self.commit(lifecycle.tick(self.state, self.rules))

    def apply_outcome(self, outcome: Transition) -> tuple[Payload, ...]:
        """Apply a lifecycle outcome; return the event payloads."""
        payloads = self.payloads_of(outcome)
        self.state = outcome.state
        return payloads

    def commit(self, outcome: Transition) -> Transition:
        """Apply a lifecycle outcome and emit its events."""
        for payload in self.apply_outcome(outcome):
            self.emit(payload)
        return outcome

    def payloads_of(self, outcome: Transition) -> tuple[Payload, ...]:
        """Return the event payloads of an outcome that has not been applied yet."""
        payloads = (payload_of(self.slot_id, self.num_params, effect) for effect in outcome.effects)
        return tuple(payload for payload in payloads if payload is not None)

    def occupant(self) -> SeedState:
        """Return the state of the seed; raise for an empty slot."""
        if self.state is None:
            raise ContractError(f"slot {self.slot_id!r} is empty")
        return self.state

    # --- Measurements ------------------------------------------------------------------------

    def record_accuracy(self, accuracy_pct: float) -> None:
        """Record the host's accuracy; a no-op for an empty slot."""
        if self.state is not None:
            self.state = with_accuracy(self.state, accuracy_pct)

    def record_contribution(self, contribution_pp: float) -> None:
        """Record the seed's measured contribution."""
        self.state = with_contribution(self.occupant(), contribution_pp)

    def record_interaction(
        self, interaction_sum_pp: float | None, boost_received_pp: float | None
    ) -> None:
        """Record the seed's interactions with other seeds, or that they were not measured."""
        self.state = with_interaction(self.occupant(), interaction_sum_pp, boost_received_pp)

    def record_gradient(self, reading: GradientReading) -> None:
        """Record the seed's gradient reading."""
        self.state = with_gradient(self.occupant(), reading)

    def report(
        self, *, upstream_alpha_sum: float = 0.0, downstream_alpha_sum: float = 0.0
    ) -> SeedReport | None:
        """Return the seed's report; None for an empty slot."""
        if self.state is None:
            return None
        return report_of(
            self.state,
            slot_id=self.slot_id,
            num_params=self.num_params,
            upstream_alpha_sum=upstream_alpha_sum,
            downstream_alpha_sum=downstream_alpha_sum,
        )


def tick_slots(slots: Iterable[SlotOperations]) -> None:
    """Advance slots by one step; emit the events after all of them have advanced."""
    # In two passes: a callback that raises must not leave half of the slots a step behind the
    # others.
    pending = [(slot, slot.apply_outcome(lifecycle.tick(slot.state, slot.rules))) for slot in slots]
    for slot, payloads in pending:
        for payload in payloads:
            slot.emit(payload)


def reports_of(
    slots: Iterable[SlotOperations], execution_order: Sequence[str]
) -> dict[str, SeedReport]:
    """Return a report of every occupied slot, in the order of the slots.

    Upstream and downstream mean before and after in the forward pass.
    """
    listed = tuple(slots)
    by_id = {slot.slot_id: _blended_alpha(slot.state) for slot in listed}
    # Action order and execution order differ where a host has several rows of slots.
    alphas = [by_id[slot_id] for slot_id in execution_order]
    reports: dict[str, SeedReport] = {}
    for slot in listed:
        index = execution_order.index(slot.slot_id)
        report = slot.report(
            upstream_alpha_sum=sum(alphas[:index], 0.0),
            downstream_alpha_sum=sum(alphas[index + 1 :], 0.0),
        )
        if report is not None:
            reports[slot.slot_id] = report
    return reports


def _blended_alpha(state: SeedState | None) -> float:
    return state.alpha.alpha if state is not None and state.is_blended else 0.0
