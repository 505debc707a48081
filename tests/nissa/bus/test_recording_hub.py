"""The double behaves like the hub it stands for."""

from pathlib import Path

import pytest
from tests.nissa.making import RUN_ID, checkpoint_loaded, observation_stats, pruned, read_events

from esper.leyline.config import TelemetryConfig
from esper.leyline.errors import TelemetryLostError
from esper.leyline.telemetry import Draft, EventScope, EventType, TelemetryLevel
from esper.nissa.bus.hub import Hub, TelemetryHub, get_hub
from esper.nissa.bus.recording_hub import RecordingHub


def drive(hub: Hub) -> list[int | None]:
    """Use everything that a producer has."""
    returned = [hub.emit(pruned(), EventScope(0, 1, 2, 3)), hub.emit(observation_stats())]
    hub.escalate_to(TelemetryLevel.DEBUG)
    returned += [hub.emit(observation_stats()), hub.emit(checkpoint_loaded())]
    hub.publish([Draft(pruned("a")), Draft(pruned("b"))])
    hub.flush()
    return returned


@pytest.mark.parametrize("level", ["off", "minimal", "normal", "debug"])
def test_double_records_what_the_hub_writes(tmp_path: Path, level: str) -> None:
    config = TelemetryConfig(level=level)
    double = RecordingHub(config=config, run_id=RUN_ID, group="default")
    with TelemetryHub(tmp_path, run_id=RUN_ID, config=config) as hub:
        assert drive(hub) == drive(double)

    for file, events in (("events", double.events), ("operational", double.operational)):
        written = read_events(tmp_path / f"{file}.jsonl")
        assert [(event.seq, event.data, event.severity) for event in written] == [
            (event.seq, event.data, event.severity) for event in events
        ]


def test_double_is_the_current_hub_within_its_block() -> None:
    with RecordingHub() as hub:
        assert get_hub() is hub
        get_hub().emit(pruned())
    assert len(hub.of_type(EventType.SEED_PRUNED)) == 1


def test_double_can_play_a_lost_log() -> None:
    hub = RecordingHub()
    hub.failure = TelemetryLostError("events.jsonl", 28, "full", 3)
    with pytest.raises(TelemetryLostError):
        hub.flush()
