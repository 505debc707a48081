"""The table of what sinks store names fields that exist, and numbers arrive unchanged."""

import msgspec
import pytest
from tests.nissa.fake_run import FakeRun
from tools.generate_sink_docs import PATH, page

from esper.leyline.payloads import BatchEpochCompleted, EpochCompleted, TrainingStarted
from esper.leyline.telemetry import EVENT_SPECS, Event
from esper.nissa.sinks.fields import FIELDS, FieldRow, Measurer, Shape

SHAPE = FakeRun(num_rounds=2, num_envs=2, num_steps=4)


def events_of(kind: type) -> list[Event]:
    return [event for event in SHAPE.events() if isinstance(event.data, kind)]


@pytest.mark.parametrize("row", FIELDS, ids=lambda row: row.name)
def test_every_row_names_a_field_of_its_event_type(row: FieldRow) -> None:
    fields = {
        field.name: str(field.type)
        for field in msgspec.structs.fields(EVENT_SPECS[row.event_type].payload)
    }
    kind = fields[row.field.partition(".")[0]]
    assert "." not in row.field or "HeadUpdate" in kind
    assert (row.shape is Shape.SCALAR) != kind.startswith("tuple")


def test_names_are_unique() -> None:
    assert len({row.name for row in FIELDS}) == len(FIELDS)


def test_a_round_has_the_numbers_of_its_events_and_counts_from_1() -> None:
    event = events_of(BatchEpochCompleted)[1]
    assert isinstance(event.data, BatchEpochCompleted)
    found = {item.name: item for item in Measurer(None).measure(event)}
    accuracy = found["round/mean_accuracy_pct"]
    assert accuracy.place == 2
    assert accuracy.value == event.data.mean_accuracy_pct
    assert found["round/env_rewards"].value == event.data.env_rewards


def test_steps_of_an_env_count_on_from_round_to_round() -> None:
    (start,) = events_of(TrainingStarted)
    measurer = Measurer(None)
    assert list(measurer.measure(start)) == []
    places = [
        item.place
        for event in events_of(EpochCompleted)
        if event.env_id == 1
        for item in measurer.measure(event)
        if item.name == "host/val_loss/env_1"
    ]
    assert places == list(range(1, 9))


def test_numbers_that_were_not_measured_are_left_out() -> None:
    event = events_of(EpochCompleted)[0]
    assert isinstance(event.data, EpochCompleted)
    blank = msgspec.structs.replace(
        event, data=msgspec.structs.replace(event.data, val_loss=None, train_loss=0.0)
    )
    names = [item.name for item in Measurer(None).measure(blank)]
    assert "host/train_loss/env_0" in names
    assert "host/val_loss/env_0" not in names


def test_committed_page_is_what_the_table_says() -> None:
    assert PATH.read_text(encoding="utf-8") == page(), "run 'python -m tools.generate_sink_docs'"
