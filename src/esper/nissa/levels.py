"""Levels: which event types a producer may emit at the moment."""

from typing import Final

from esper.leyline.config import TelemetryConfig
from esper.leyline.payloads import Payload
from esper.leyline.telemetry import EVENT_SPECS, EventType, TelemetryLevel

__all__ = ["PER_STEP_TYPES", "LevelGate"]

PER_STEP_TYPES: Final = frozenset(
    {
        EventType.EPOCH_COMPLETED,
        EventType.LAST_ACTION,
        EventType.COUNTERFACTUAL_MATRIX_COMPUTED,
        EventType.COUNTERFACTUAL_UNAVAILABLE,
        EventType.GRADIENT_ANOMALY,
        EventType.OBSERVATION_STATS,
        EventType.PHASE_PROFILE_COMPLETED,
        EventType.TAMIYO_INITIATED,
    }
)
"""What a step tells that is not about a seed's life; `lifecycle_only` leaves it out."""


class LevelGate:
    """The configured level, the one an anomaly escalated to, and what passes at them."""

    def __init__(self, config: TelemetryConfig) -> None:
        self._configured = TelemetryLevel.named(config.level)
        self._is_lifecycle_only = config.lifecycle_only
        self.level = self._configured
        """In force now."""
        self.wanted: frozenset[type[Payload]] = self._wanted_at(self.level)
        """Payloads that pass; replaced as a whole, so that reading it needs no lock."""

    def escalate_to(self, level: TelemetryLevel | None) -> None:
        """Let more through for now; None, or a level below the configured one, ends it."""
        self.level = max(self._configured, level or self._configured)
        self.wanted = self._wanted_at(self.level)

    def wants(self, event_type: EventType) -> bool:
        """Tell whether an event of this type would be emitted now."""
        return EVENT_SPECS[event_type].payload in self.wanted

    def _wanted_at(self, level: TelemetryLevel) -> frozenset[type[Payload]]:
        # An escalation is asked for to see everything, so it also lifts `lifecycle_only`.
        is_narrowed = self._is_lifecycle_only and level == self._configured
        return frozenset(
            spec.payload
            for spec in EVENT_SPECS.values()
            if spec.level <= level and not (is_narrowed and spec.event_type in PER_STEP_TYPES)
        )
