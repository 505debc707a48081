"""Every event type is complete: a payload, a row, a round trip, a producer."""

import ast
from collections.abc import Iterator
from enum import Enum
from itertools import count
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
import pytest
from tools.source_modules import source_modules

from esper.leyline.payloads import Payload
from esper.leyline.telemetry import (
    EVENT_SPECS,
    CountClass,
    Draft,
    EventScope,
    EventSpec,
    EventType,
    Severity,
    build_event,
    decode_event,
    encode_event,
    nonfinite_paths,
)

specs = pytest.mark.parametrize("spec", EVENT_SPECS.values(), ids=lambda spec: spec.event_type)


def sample(annotation: Any, numbers: Iterator[int]) -> Any:
    """Make a value of a type that differs from every other one made from `numbers`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return sample(arguments[0], numbers)
    if origin in (Union, UnionType):
        return sample(next(item for item in arguments if item is not type(None)), numbers)
    if origin is tuple:
        return (sample(arguments[0], numbers), sample(arguments[0], numbers))
    if origin is dict:
        return {sample(arguments[0], numbers): sample(arguments[1], numbers)}
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        fields = msgspec.structs.fields(annotation)
        return annotation(**{field.name: sample(field.type, numbers) for field in fields})
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        members = list(annotation)
        return members[next(numbers) % len(members)]
    number = next(numbers)
    return {bool: True, int: number, float: number + 0.5, str: f"text {number}"}[annotation]


def sample_payload(spec: EventSpec) -> Payload:
    payload = sample(spec.payload, count(1))
    assert isinstance(payload, Payload)
    return payload


@specs
def test_event_survives_the_wire_with_every_field_set(spec: EventSpec) -> None:
    draft = Draft(sample_payload(spec), EventScope(3, 5, 7, 11), Severity.CRITICAL)
    event = build_event(draft, seq=13, ts=17.25, run_id="a run", group="a group")

    line = encode_event(event)

    assert decode_event(line) == event
    assert line.startswith(b'{"event_type":"%s","seq":13,' % spec.event_type.encode())


@specs
def test_every_float_may_be_missing_or_is_listed_when_not_finite(spec: EventSpec) -> None:
    payload = sample_payload(spec)
    for field in msgspec.structs.fields(spec.payload):
        if float in get_args(field.type) and type(None) in get_args(field.type):
            broken = msgspec.structs.replace(payload, **{field.name: float("nan")})
            event = build_event(Draft(broken), seq=0, ts=0.0, run_id="r", group="g")

            read = decode_event(encode_event(event))

            assert nonfinite_paths(broken) == (field.name,)
            assert read.nonfinite == (field.name,)
            assert getattr(read.data, field.name) is None


@specs
def test_line_without_a_required_field_is_refused(spec: EventSpec) -> None:
    event = build_event(Draft(sample_payload(spec)), seq=0, ts=0.0, run_id="r", group="g")
    whole = msgspec.json.decode(encode_event(event))
    for field in msgspec.structs.fields(spec.payload):
        if field.required:
            data = {name: value for name, value in whole["data"].items() if name != field.name}
            line = msgspec.json.encode(whole | {"data": data})
            with pytest.raises(Exception, match=field.name):
                decode_event(line)


def test_every_event_type_has_exactly_one_row_and_payload() -> None:
    assert set(EVENT_SPECS) == set(EventType)
    assert len({spec.payload for spec in EVENT_SPECS.values()}) == len(EventType)


def test_types_with_a_closed_form_and_only_they_name_their_unit() -> None:
    for spec in EVENT_SPECS.values():
        # Its closed form counts rollbacks too, so that it is bound to another count.
        is_bound = spec.event_type is EventType.LAST_ACTION
        assert (spec.per is not None) == (spec.count_class is CountClass.STRUCTURAL or is_bound)


def test_every_event_type_has_a_producer() -> None:
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        for module in source_modules()
        if module.package != "leyline"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)
    }
    produced = {
        event_type for event_type, spec in EVENT_SPECS.items() if spec.payload.__name__ in called
    }

    assert produced == set(EventType)
