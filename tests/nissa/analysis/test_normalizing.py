"""What may differ between equal runs is taken out of a line, and nothing else."""

import json
from itertools import count

import msgspec
import pytest
from tests.meta.test_event_contracts import sample

from esper.leyline.telemetry import (
    EVENT_SPECS,
    CountClass,
    Draft,
    EventSpec,
    build_event,
    encode_event,
    volatile_paths,
)
from esper.nissa.analysis.normalizing import differing_paths, normal_form

specs = pytest.mark.parametrize("spec", EVENT_SPECS.values(), ids=lambda spec: spec.event_type)


def line_of(spec: EventSpec, start: int = 1) -> bytes:
    payload = sample(spec.payload, count(start))
    return encode_event(build_event(Draft(payload), seq=start, ts=1.5, run_id="r", group="g"))


def changed(line: bytes, path: str) -> bytes:
    """Replace the value at a path; `*` takes the first element."""
    value = json.loads(line)
    *parents, last = path.split(".")
    node = value
    for part in parents:
        node = node[0] if part == "*" else node[part]
    old = node[last]
    node[last] = ['other, "value"]'] if isinstance(old, list) else 'other, "value}'
    return msgspec.json.encode(value)


@specs
def test_every_volatile_field_is_masked(spec: EventSpec) -> None:
    line = line_of(spec)
    for path in volatile_paths(spec.event_type) - {"ts", "run_id"}:
        assert normal_form(changed(line, path)) == normal_form(line), path


@specs
def test_every_other_field_is_compared(spec: EventSpec) -> None:
    line = line_of(spec)
    fields = {f"data.{field.name}" for field in msgspec.structs.fields(spec.payload)}
    for path in fields - volatile_paths(spec.event_type):
        is_mixed = any(item.startswith(f"{path}.") for item in volatile_paths(spec.event_type))
        if not is_mixed and spec.count_class is not CountClass.ENVIRONMENT:
            other = changed(line, path)
            assert normal_form(other) != normal_form(line), path
            assert [item for item in differing_paths(line, other) if item.startswith(path)]


@specs
def test_order_of_keys_does_not_matter(spec: EventSpec) -> None:
    line = line_of(spec)
    turned = json.dumps(dict(reversed(json.loads(line).items()))).encode()

    assert normal_form(turned) == normal_form(line)


def test_foreign_events_are_compared_without_their_ids_and_times() -> None:
    one = b'{"event_id":"1","event_type":"X","timestamp":"a","data":{"v":NaN}}'
    two = b'{"event_type":"X","data":{"v":NaN},"timestamp":"b","event_id":"2"}'

    assert normal_form(one) == normal_form(two)
    assert normal_form(one) != normal_form(two.replace(b"NaN", b"1"))


def test_events_of_the_environment_are_not_compared() -> None:
    environment = [
        spec for spec in EVENT_SPECS.values() if spec.count_class is CountClass.ENVIRONMENT
    ]

    assert environment
    assert all(normal_form(line_of(spec)) is None for spec in environment)
