"""Alarms: events of severity warning or higher, grouped by type and env."""

from collections.abc import Mapping
from typing import Final

import msgspec

from esper.karn.view.snapshot import AlarmView
from esper.karn.view.thresholds import LIMITS
from esper.leyline import engine_payloads, payloads
from esper.leyline.payloads import Payload
from esper.leyline.telemetry import Event, Severity

__all__ = ["AlarmBoard", "alarm_text", "is_alarm", "plain_text"]

_ALARMING: Final = frozenset(item for item in Severity if item.rank >= Severity.WARNING.rank)


class AlarmBoard:
    """Holds one row per event type and env; evicts the oldest of the least severe rows."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int | None], AlarmView] = {}
        self.counts: dict[str, int] = {}
        """Occurrences by type, including those of evicted rows."""

    def note(self, event: Event) -> None:
        """Add an alarm, or update the row of the same type and env."""
        event_type = event.event_type.value
        self.counts[event_type] = self.counts.get(event_type, 0) + 1
        key = (event_type, event.env_id)
        earlier = self._rows.pop(key, None)
        self._rows[key] = AlarmView(
            event_type=event_type,
            severity=_graver(event.severity, earlier),
            env_id=event.env_id,
            text=alarm_text(event.data),
            count=earlier.count + 1 if earlier else 1,
            first_ts=earlier.first_ts if earlier else event.ts,
            last_ts=event.ts,
            round=event.round,
            step=event.step,
            seq=event.seq,
        )
        if len(self._rows) > LIMITS.max_alarms:
            # Rows are ordered by last occurrence and min() returns the first of equals, so this
            # is the oldest of the least severe rows.
            mildest = min(self._rows, key=lambda item: Severity(self._rows[item].severity).rank)
            del self._rows[mildest]

    def view(self) -> tuple[AlarmView, ...]:
        """Return the rows, newest first."""
        return tuple(reversed(self._rows.values()))


def _graver(severity: Severity, earlier: AlarmView | None) -> str:
    if earlier is None:
        return severity.value
    return max(severity, Severity(earlier.severity), key=lambda item: item.rank).value


def is_alarm(event: Event) -> bool:
    """Check whether an event is an alarm; depends on its severity only, not on its type."""
    return event.severity in _ALARMING


def alarm_text(data: Payload) -> str:
    """Describe an alarm in one line."""
    return _env_alarm_text(data) or _policy_alarm_text(data) or plain_text(data)


def _env_alarm_text(data: Payload) -> str | None:
    match data:
        case payloads.GovernorRollback():
            slots = f", pruned {', '.join(data.pruned_slots)}" if data.pruned_slots else ""
            return f"host rolled back ({data.reason}), penalty {data.penalty:g}{slots}"
        case payloads.EnvFailed():
            where = f" in {data.layer}" if data.layer else ""
            return f"env failed in {data.phase}{where}: {data.error_type}: {data.message}"
        case payloads.GradientAnomaly():
            return f"{data.kind} gradient in {data.slot_id or 'the host'} (norm {_num(data.norm)})"
        case payloads.RewardHackingSuspected():
            return (
                f"{data.slot_id}: reward may exceed the contribution ({data.pattern}): attributed "
                f"{_num(data.attributed_pp)} pp, contribution {_num(data.contribution_pp)} pp"
            )
        case payloads.CounterfactualUnavailable():
            return f"contribution of {', '.join(data.slot_ids)} not measured: {data.reason}"
        case engine_payloads.LaneStalled():
            return f"lane {data.lane}: no heartbeat for {data.silent_s:.0f} s"
        case engine_payloads.WorkerRestarted():
            return f"worker {data.worker} {data.reason}; replaced within {data.duration_s:.1f} s"
        case payloads.SubscriberLagged():
            return f"slow subscriber {data.subscriber} lost {data.num_dropped} events"
        case payloads.LiveServerStopped():
            return f"the live server stopped ({data.reason}); the run goes on"
        case engine_payloads.SinkStopped():
            return (
                f"the sink {data.sink} stopped at event {data.next_seq} ({data.reason}); the run "
                "goes on"
            )
        case payloads.MemoryWarning():
            return f"{data.device} is {data.used_fraction:.0%} full"
    return None


def _policy_alarm_text(data: Payload) -> str | None:
    match data:
        case payloads.RatioAnomaly():
            head = f" in head {data.worst_head}" if data.worst_head else ""
            return f"probability ratio {_num(data.ratio)}{head} (limit {data.threshold:g})"
        case payloads.ValueCollapseDetected():
            return (
                f"value function collapsed: value loss {_num(data.value_loss)}, "
                f"Bellman error {_num(data.bellman_error)} (limit {data.threshold:g})"
            )
        case payloads.NumericalInstabilityDetected():
            end = "; the run halts" if data.is_halting else f"; skip {data.consecutive_skips}"
            return f"not finite: {', '.join(data.where)}{end}"
        case payloads.GradientPathologyDetected():
            return (
                f"policy gradient {data.quantity} {_num(data.value)}, "
                f"usually {_num(data.running_mean)}"
            )
        case payloads.EntropyCollapseDetected():
            return (
                f"head {data.head} stopped exploring: entropy {_num(data.entropy)} "
                f"(limit {data.threshold:g}) for {data.consecutive_updates} updates"
            )
        case payloads.KlSpikeDetected():
            return f"KL divergence {_num(data.kl_divergence)} (limit {data.threshold:g})"
        case payloads.LstmAnomalyDetected():
            return f"recurrent state {data.state} {data.kind} (rms {_num(data.rms)})"
        case payloads.PerformanceDegradation():
            return (
                f"round accuracy {data.accuracy_pct:.1f} %, {data.drop_fraction:.0%} below the "
                f"rolling {data.rolling_accuracy_pct:.1f} %"
            )
        case payloads.TrendDetected():
            return (
                f"rolling accuracy {data.rolling_accuracy_pct:.1f} % ({data.rolling_delta_pp:+.1f})"
            )
    return None


def plain_text(data: Payload) -> str:
    """List the first string and integer fields of a payload without a specific text."""
    fields: Mapping[str, object] = msgspec.structs.asdict(data)
    shown = [f"{name} {value}" for name, value in fields.items() if isinstance(value, str | int)]
    return ", ".join(shown[:4])


def _num(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"
