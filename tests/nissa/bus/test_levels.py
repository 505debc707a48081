"""Which events a level lets through, and what an escalation changes."""

from itertools import pairwise

import pytest

from esper.leyline.config import TelemetryConfig
from esper.leyline.telemetry import EVENT_SPECS, EventType, TelemetryLevel
from esper.nissa.bus.levels import PER_STEP_TYPES, LevelGate


def gate(level: TelemetryLevel, *, lifecycle_only: bool = False) -> LevelGate:
    return LevelGate(TelemetryConfig(level=level.name.lower(), lifecycle_only=lifecycle_only))


def passing(one: LevelGate) -> set[EventType]:
    return {event_type for event_type in EventType if one.wants(event_type)}


@pytest.mark.parametrize("level", TelemetryLevel)
def test_level_lets_through_what_the_event_table_says(level: TelemetryLevel) -> None:
    assert passing(gate(level)) == {
        spec.event_type for spec in EVENT_SPECS.values() if spec.level <= level
    }


def test_higher_levels_only_add_types() -> None:
    levels = [passing(gate(level)) for level in sorted(TelemetryLevel)]
    assert all(lower < higher for lower, higher in pairwise(levels))
    assert levels[-1] == set(EventType)


@pytest.mark.parametrize("level", TelemetryLevel)
def test_lifecycle_only_removes_exactly_the_per_step_types(level: TelemetryLevel) -> None:
    assert passing(gate(level, lifecycle_only=True)) == passing(gate(level)) - PER_STEP_TYPES


def test_escalation_shows_everything_and_ends_where_it_began() -> None:
    narrowed = gate(TelemetryLevel.NORMAL, lifecycle_only=True)
    before = passing(narrowed)

    narrowed.escalate_to(TelemetryLevel.DEBUG)
    assert passing(narrowed) == set(EventType)

    narrowed.escalate_to(None)
    assert passing(narrowed) == before
    assert narrowed.level is TelemetryLevel.NORMAL


def test_escalation_never_lowers_the_level() -> None:
    debug = gate(TelemetryLevel.DEBUG)
    debug.escalate_to(TelemetryLevel.MINIMAL)
    assert debug.level is TelemetryLevel.DEBUG
    assert passing(debug) == set(EventType)
