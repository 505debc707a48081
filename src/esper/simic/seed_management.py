"""Seeds advanced, targets resolved, updates run and their anomalies dealt with."""

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from esper.kasmina.lifecycle import Transition
from esper.leyline.actions import ActionSpec
from esper.leyline.config import TelemetryConfig
from esper.leyline.errors import ContractError
from esper.leyline.payloads import LayerGradient, NumericalInstabilityDetected, Payload
from esper.leyline.telemetry import Draft, EventScope, Severity, TelemetryLevel
from esper.nissa.hub import Hub
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


def advance_active_seed(action: ActionSpec, context: HandlerContext) -> Transition:
    """Try the gate to the next stage of the seed in the action's slot; the handler of ADVANCE."""
    return context.model.slot(action.slot_id).advance()


def resolve_target_slot(slot_index: int, slot_ids: Sequence[str]) -> str:
    """Return the slot that an index of the slot head names, in action order."""
    if not 0 <= slot_index < len(slot_ids):
        raise ContractError(f"slot index {slot_index}: slots are 0 to {len(slot_ids) - 1}")
    return slot_ids[slot_index]


def calculate_entropy_anneal_steps(anneal_episodes: int, num_envs: int) -> int:
    """Return over how many updates exploration is annealed; a round is one update of all envs."""
    return math.ceil(anneal_episodes / num_envs)


def run_ppo_updates(
    update: Callable[[int], PPOMetrics], num_updates: int
) -> tuple[PPOMetrics, ...]:
    """Run the updates of a round, each called with its index.

    An update that took no optimizer step, or that the KL stop ended, is the last one: the policy
    has moved as far from its rollout as it may.
    """
    done: list[PPOMetrics] = []
    for index in range(num_updates):
        metrics = update(index)
        done.append(metrics)
        if not metrics.has_learned or metrics.kl_stop_epoch is not None:
            break
    return tuple(done)


def aggregate_ppo_metrics(updates: Sequence[PPOMetrics]) -> PPOMetrics:
    """Reduce the updates of a round, each figure by its declared reducer."""
    return reduced(updates)


class Escalation(msgspec.Struct, frozen=True, kw_only=True):
    """For how long more is told than was asked for; part of a checkpoint."""

    steps_left: int = 0

    def after_step(self) -> "Escalation":
        """Return what is left after a step."""
        return Escalation(steps_left=max(self.steps_left - 1, 0))


def handle_telemetry_escalation(
    hub: Hub, escalation: Escalation, *, has_anomaly: bool, config: TelemetryConfig
) -> Escalation:
    """Tell everything for a few steps after an anomaly; go back when they are over."""
    if has_anomaly and config.auto_escalate:
        escalation = Escalation(steps_left=config.escalation_steps)
    hub.escalate_to(TelemetryLevel.DEBUG if escalation.steps_left else None)
    return escalation


def emit_anomaly_diagnostics(
    emit: Emit,
    alarms: Iterable[Payload],
    layers: Sequence[LayerGradient],
    round_index: int,
) -> None:
    """Tell what is wrong with an update and, where somebody asked for it, layer by layer."""
    scope = EventScope(round=round_index)
    for alarm in alarms:
        is_halting = isinstance(alarm, NumericalInstabilityDetected) and alarm.is_halting
        emit(Draft(alarm, scope, Severity.ERROR if is_halting else None))
    if layers:
        emit(Draft(aggregate_layer_gradient_health(layers), scope))
