"""Normal forms: lines without the fields that may differ between two equal runs."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Final

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
from esper.leyline.untyped_json import decode_python_json
from esper.nissa.reading.foreign import VOLATILE_KEYS, read_foreign

__all__ = [
    "ENVELOPE",
    "ENVIRONMENT_TYPES",
    "canonical_line",
    "differing_paths",
    "differing_values",
    "normal_form",
    "volatile_mask",
]

ENVELOPE: Final = re.compile(
    rb'\{"event_type":"([A-Z_]+)","seq":\d+,"ts":[-+.0-9e]+,"run_id":"[^"\\]*"(?=,"group":)'
)
"""The start of a canonical line: the type, then the fields that every comparison ignores.

The seq is ignored too: it follows from the order, and environment events would shift it.
"""

ENVIRONMENT_TYPES: Final = frozenset(
    spec.event_type.value
    for spec in EVENT_SPECS.values()
    if spec.count_class is CountClass.ENVIRONMENT
)

_ENVELOPE_VOLATILE: Final = frozenset({"seq", "ts", "run_id"})

# A value after a key: a string, a flat list, or a number, true, false, null.
_VALUE: Final = rb':(?:"(?:[^"\\]|\\.)*"|\[(?:"(?:[^"\\]|\\.)*"|[^"\]])*\]|[^,}\]]*)'


@cache
def volatile_mask(event_type: str) -> Callable[[bytes], bytes] | None:
    """Return a function that removes a type's volatile payload fields from a canonical line.

    A quote inside a JSON string is always escaped, so every match of `"name":` is a key.
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
    """Re-encode one of our events as the writer encodes it; return None for any other line."""
    try:
        return encode_event(decode_event(line))
    except (EventDecodeError, RecursionError, ValueError):
        return None


def normal_form(line: bytes) -> bytes | None:
    """Return the part of a line that must be equal in equal runs; None if it is not compared."""
    match = ENVELOPE.match(line)
    if match is None:
        line = canonical_line(line) or read_foreign(line).form
        match = ENVELOPE.match(line)
        if match is None:
            return line
    event_type = match[1].decode()
    if event_type in ENVIRONMENT_TYPES:
        return None
    mask = volatile_mask(event_type)
    rest = line[match.end() :]
    return match[1] + (rest if mask is None else mask(rest))


def differing_paths(left: bytes, right: bytes) -> list[str]:
    """Return the paths at which two lines differ, volatile ones aside."""
    return [path for path, _, _ in differing_values(left, right)]


def differing_values(left: bytes, right: bytes) -> Iterator[tuple[str, object, object]]:
    """Yield each path at which two lines differ with both values; None where there is none."""
    try:
        sides = [dict(_leaves(decode_python_json(line), "")) for line in (left, right)]
    except (ValueError, RecursionError):  # not JSON, or nested too deeply for `_leaves`
        return
    volatile = {*VOLATILE_KEYS, *_volatile_leaf_paths(str(sides[0].get("event_type")))}
    for path in dict.fromkeys((*sides[0], *sides[1])):
        # Compared by repr: NaN is not equal to itself, and 1 is equal to True.
        values = [repr(side.get(path, msgspec.UNSET)) for side in sides]
        if values[0] != values[1] and re.sub(r"\.\d+(?=\.|$)", ".*", path) not in volatile:
            yield path, sides[0].get(path), sides[1].get(path)


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
