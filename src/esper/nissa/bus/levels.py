"""Levels: which event types the level in force lets through."""

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
"""Per-step types unrelated to the seed lifecycle; `lifecycle_only` filters them out."""


class LevelGate:
    """The configured level, a temporary escalation, and the payload types that pass."""

    def __init__(self, config: TelemetryConfig) -> None:
        self._configured = TelemetryLevel.named(config.level)
        self._is_lifecycle_only = config.lifecycle_only
        self.level = self._configured
        """The level in force."""
        self.wanted: frozenset[type[Payload]] = self._wanted_at(self.level)
        """Payload types that pass; replaced as a whole, so other threads read it without a lock."""

    def escalate_to(self, level: TelemetryLevel | None) -> None:
        """Raise the level temporarily; None or a lower level restores the configured one."""
        self.level = max(self._configured, level or self._configured)
        self.wanted = self._wanted_at(self.level)

    def wants(self, event_type: EventType) -> bool:
        """Check whether the level in force lets events of this type through."""
        return EVENT_SPECS[event_type].payload in self.wanted

    def _wanted_at(self, level: TelemetryLevel) -> frozenset[type[Payload]]:
        # An escalation is meant to show everything, so it also overrides `lifecycle_only`.
        is_narrowed = self._is_lifecycle_only and level == self._configured
        return frozenset(
            spec.payload
            for spec in EVENT_SPECS.values()
            if spec.level <= level and not (is_narrowed and spec.event_type in PER_STEP_TYPES)
        )
