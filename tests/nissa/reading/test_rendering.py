"""Every event has a line of its own that a person can read."""

import time
from itertools import count
from typing import get_args

import msgspec
import pytest
from tests.builders.messages import topology_slot
from tests.meta.test_event_contracts import sample

from esper.leyline import payloads
from esper.leyline.telemetry import (
    EVENT_SPECS,
    Draft,
    EventScope,
    EventSpec,
    Severity,
    build_event,
    encode_event,
)
from esper.nissa.reading.rendering import is_worrying, render_line

specs = pytest.mark.parametrize("spec", EVENT_SPECS.values(), ids=lambda spec: spec.event_type)

MIDNIGHT = time.strftime("%H:%M:%S", time.localtime(0.0))
"""Of the epoch, in local time."""


def line_of(spec: EventSpec, severity: Severity = Severity.INFO) -> bytes:
    draft = Draft(sample(spec.payload, count(1)), EventScope(3, 5, 7, 11), severity)
    return encode_event(build_event(draft, seq=1, ts=0.0, run_id="r", group="g"))


@specs
def test_event_is_one_line_with_time_and_place(spec: EventSpec) -> None:
    text = render_line(line_of(spec))

    assert text.startswith(f"{MIDNIGHT} r3 s5 e7")
    assert "\n" not in text
    assert len(text) < 300


@specs
def test_numbers_that_were_never_measured_can_be_shown(spec: EventSpec) -> None:
    payload = sample(spec.payload, count(1))
    optional = {
        field.name: None
        for field in msgspec.structs.fields(spec.payload)
        if type(None) in get_args(field.type)
    }
    draft = Draft(msgspec.structs.replace(payload, **optional))

    text = render_line(encode_event(build_event(draft, seq=1, ts=0.0, run_id="r", group="g")))

    assert text.startswith(f"{MIDNIGHT} run")


def test_grown_network_is_shown_with_its_size_and_seeds() -> None:
    row = topology_slot(germinated_at_step=3, kept_at_step=20)
    grown = payloads.TopologyManifestRecorded(host_params=4874, total_params=5195, slots=(row,))
    bare = payloads.TopologyManifestRecorded(host_params=4874, total_params=4874, slots=())

    shown = [
        render_line(encode_event(build_event(Draft(data), seq=1, ts=0.0, run_id="r", group="g")))
        for data in (grown, bare)
    ]

    assert shown[0].endswith(
        "grown network: 4,874 -> 5,195 parameters  r0c1 fossilized conv_light 100%"
    )
    assert shown[1].endswith("grown network: 4,874 -> 4,874 parameters  no seeds")


def test_severity_is_marked() -> None:
    spec = next(iter(EVENT_SPECS.values()))

    assert "!!! " in render_line(line_of(spec, Severity.CRITICAL))
    assert is_worrying(line_of(spec, Severity.WARNING))
    assert not is_worrying(line_of(spec, Severity.INFO))


def test_foreign_events_and_nonsense_are_shown_shortened() -> None:
    assert render_line(b'{"event_type":"X","data":{"a":1}}') == "X  {'a': 1}"
    assert render_line(b"{" * 500).startswith("not an event: ")
    assert len(render_line(b"{" * 500)) < 120
