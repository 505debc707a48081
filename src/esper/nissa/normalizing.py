"""What is left of a line when everything that may differ between two equal runs is taken out."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Final, NamedTuple

import msgspec

from esper.leyline.errors import EventDecodeError
from esper.leyline.telemetry import (
    EVENT_SPECS,
    CountClass,
    EventType,
    decode_event,
    encode_event,
    volatile_paths,
)

__all__ = [
    "ENVELOPE",
    "ENVIRONMENT_TYPES",
    "ForeignHead",
    "canonical_line",
    "differing_paths",
    "foreign_head",
    "normal_form",
    "volatile_mask",
]

ENVELOPE: Final = re.compile(
    rb'\{"event_type":"([A-Z_]+)","seq":\d+,"ts":[-+.0-9e]+,"run_id":"[^"\\]*"(?=,"group":)'
)
"""The start of a line as our writer writes it: the type, then what every comparison ignores.

The seq goes too: it follows from the order, and events of the environment would shift it.
"""

ENVIRONMENT_TYPES: Final = frozenset(
    spec.event_type.value
    for spec in EVENT_SPECS.values()
    if spec.count_class is CountClass.ENVIRONMENT
)

_FOREIGN_VOLATILE: Final = frozenset({"event_id", "timestamp", "ts", "run_id", "seq"})
_ENVELOPE_VOLATILE: Final = frozenset({"seq", "ts", "run_id"})

# A value after a key: a string, a flat list, or a number, true, false, null.
_VALUE: Final = rb':(?:"(?:[^"\\]|\\.)*"|\[(?:"(?:[^"\\]|\\.)*"|[^"\]])*\]|[^,}\]]*)'


@cache
def volatile_mask(event_type: str) -> Callable[[bytes], bytes] | None:
    """Return what cuts the volatile payload fields of a type out of a canonical line.

    A quote inside a JSON string is always escaped, so that `"name":` is a key wherever it stands.
    """
    names = sorted(_volatile_names(event_type))
    if not names:
        return None
    keys = "|".join(map(re.escape, names)).encode()
    pattern = re.compile(b'"(?:' + keys + b')"' + _VALUE)
    return _Mask(pattern)


class _Mask:
    """Removes every match of a pattern."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self._pattern = pattern

    def __call__(self, line: bytes) -> bytes:
        return self._pattern.sub(b"", line)


def _volatile_names(event_type: str) -> set[str]:
    if event_type not in EventType.__members__:
        return set()
    paths = volatile_paths(EventType(event_type)) - _ENVELOPE_VOLATILE
    return {path.rpartition(".")[2] for path in paths}


def canonical_line(line: bytes) -> bytes | None:
    """Return an event of ours as our writer would have written it, or None for anything else."""
    try:
        return encode_event(decode_event(line))
    except (EventDecodeError, RecursionError, ValueError):
        return None


class ForeignHead(NamedTuple):
    """What can be said about an object that is not one of our events."""

    event_type: str
    keys: tuple[str, ...]
    """Keys of its payload."""


def foreign_head(line: bytes) -> ForeignHead | None:
    """Read a line leniently, NaN tokens included; None when it has no event type."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("event_type"), str):
        return None
    data = value.get("data")
    return ForeignHead(value["event_type"], tuple(data) if isinstance(data, dict) else ())


def normal_form(line: bytes) -> bytes | None:
    """Return what two equal runs have in common here; None for events that are not compared."""
    match = ENVELOPE.match(line)
    if match is None:
        line = canonical_line(line) or _foreign_form(line)
        match = ENVELOPE.match(line)
        if match is None:
            return line
    event_type = match[1].decode()
    if event_type in ENVIRONMENT_TYPES:
        return None
    mask = volatile_mask(event_type)
    rest = line[match.end() :]
    return match[1] + (rest if mask is None else mask(rest))


def _foreign_form(line: bytes) -> bytes:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(value, dict):
        return line
    kept = {key: item for key, item in value.items() if key not in _FOREIGN_VOLATILE}
    return json.dumps(kept, sort_keys=True).encode()


def differing_paths(left: bytes, right: bytes) -> list[str]:
    """Return the paths at which two lines differ, volatile ones aside."""
    try:
        sides = [dict(_leaves(json.loads(line), "")) for line in (left, right)]
    except (ValueError, RecursionError):
        return []
    volatile = {*_FOREIGN_VOLATILE, *_volatile_leaf_paths(str(sides[0].get("event_type")))}
    return [
        path
        for path in dict.fromkeys((*sides[0], *sides[1]))
        if sides[0].get(path, msgspec.UNSET) != sides[1].get(path, msgspec.UNSET)
        and re.sub(r"\.\d+(?=\.|$)", ".*", path) not in volatile
    ]


def _volatile_leaf_paths(event_type: str) -> frozenset[str]:
    known = event_type in EventType.__members__
    return volatile_paths(EventType(event_type)) if known else frozenset()


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}.{index}")
    else:
        yield path, value
