"""Advancing seeds, resolving target slots, running PPO updates and handling their anomalies."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from esper.kasmina.lifecycle import Transition
from esper.leyline.actions import ActionSpec
from esper.leyline.config import TelemetryConfig
from esper.leyline.errors import ContractError
from esper.leyline.payloads import LayerGradient, NumericalInstabilityDetected, Payload
from esper.leyline.telemetry import Draft, EventScope, Severity, TelemetryLevel
from esper.nissa.bus.hub import Hub
from esper.simic.agent.ppo_metrics import PPOMetrics, reduced
from esper.simic.control.context import HandlerContext
from esper.simic.telemetry.emitters import Emit, aggregate_layer_gradient_health

__all__ = [
    "Escalation",
    "advance_active_seed",
    "aggregate_ppo_metrics",
    "calculate_entropy_anneal_steps",
    "emit_anomaly_diagnostics",
    "handle_telemetry_escalation",
    "resolve_target_slot",
    "run_ppo_updates",
]


def advance_active_seed(action: ActionSpec, context: HandlerContext[Any]) -> Transition:
    """Advance the seed in the action's slot if its gate passes; the handler of ADVANCE."""
    return context.model.slot(action.slot_id).advance()


def resolve_target_slot(slot_index: int, slot_ids: Sequence[str]) -> str:
    """Return the slot that an index of the slot head names, in action order."""
    if not 0 <= slot_index < len(slot_ids):
        raise ContractError(f"slot index {slot_index}: slots are 0 to {len(slot_ids) - 1}")
    return slot_ids[slot_index]


def calculate_entropy_anneal_steps(anneal_episodes: int, num_envs: int) -> int:
    """Return the number of updates over which entropy is annealed; a round counts as one update."""
    return math.ceil(anneal_episodes / num_envs)


def run_ppo_updates(
    update: Callable[[int], PPOMetrics], num_updates: int
) -> tuple[PPOMetrics, ...]:
    """Run the updates of a round, each called with its index.

    An update without an optimizer step, or ended by the KL early stop, is the last one: the policy
    must not move further from the one that sampled the rollout.
    """
    done: list[PPOMetrics] = []
    for index in range(num_updates):
        metrics = update(index)
        done.append(metrics)
        if not metrics.has_learned or metrics.kl_stop_epoch is not None:
            break
    return tuple(done)


def aggregate_ppo_metrics(updates: Sequence[PPOMetrics]) -> PPOMetrics:
    """Reduce the metrics of a round's updates, each by its declared reducer."""
    return reduced(updates)


class Escalation(msgspec.Struct, frozen=True, kw_only=True):
    """Remaining steps of raised event verbosity; part of a checkpoint."""

    steps_left: int = 0

    def after_step(self) -> "Escalation":
        """Return the escalation after one more step."""
        return Escalation(steps_left=max(self.steps_left - 1, 0))


def handle_telemetry_escalation(
    hub: Hub, escalation: Escalation, *, has_anomaly: bool, config: TelemetryConfig
) -> Escalation:
    """Raise the event verbosity for a few steps after an anomaly, then restore it."""
    if has_anomaly and config.auto_escalate:
        escalation = Escalation(steps_left=config.escalation_steps)
    # Called every step, so that the level falls back by itself when the count has run out.
    hub.escalate_to(TelemetryLevel.DEBUG if escalation.steps_left else None)
    return escalation


def emit_anomaly_diagnostics(
    emit: Emit,
    alarms: Iterable[Payload],
    layers: Sequence[LayerGradient],
    round_index: int,
) -> None:
    """Emit the anomalies of an update, with per-layer gradients if requested."""
    scope = EventScope(round=round_index)
    for alarm in alarms:
        is_halting = isinstance(alarm, NumericalInstabilityDetected) and alarm.is_halting
        emit(Draft(alarm, scope, Severity.ERROR if is_halting else None))
    if layers:
        emit(Draft(aggregate_layer_gradient_health(layers), scope))
