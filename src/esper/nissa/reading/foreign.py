"""Lenient reading of foreign logs: any JSON object with an event type counts as an event."""

from typing import Any, Final, NamedTuple

import orjson

from esper.leyline.untyped_json import MarkedJson, decode_marked

__all__ = ["VOLATILE_KEYS", "ForeignLine", "foreign_event", "read_foreign"]

VOLATILE_KEYS: Final = frozenset({"event_id", "timestamp", "ts", "run_id", "seq"})
"""Keys whose values may differ between two equal runs."""


class ForeignLine(NamedTuple):
    """What is known about a line that does not follow our schema."""

    event_type: str | None
    """None for a line that is not an event."""
    keys: tuple[str, ...]
    """Keys of its payload."""
    form: bytes
    """The normal form to compare: without volatile keys, independent of key order."""


def read_foreign(line: bytes) -> ForeignLine:
    """Decode a line leniently; the normal form of an undecodable line is the line itself."""
    try:
        marked = decode_marked(line)
    except ValueError:
        return ForeignLine(None, (), line)
    if not isinstance(marked.value, dict):
        return ForeignLine(None, (), line)
    event_type, data = marked.value.get("event_type"), marked.value.get("data")
    return ForeignLine(
        event_type if isinstance(event_type, str) else None,
        tuple(data) if isinstance(data, dict) else (),
        _form(marked) or line,
    )


def _form(marked: MarkedJson) -> bytes | None:
    kept = {key: item for key, item in marked.value.items() if key not in VOLATILE_KEYS}
    try:
        form = orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return None  # nested more deeply than orjson encodes: 254 levels
    # A marked number must not compare equal to an array with the same content.
    is_marked = marked.mark is not None and orjson.dumps(marked.mark) in form
    return b"marked " + form if is_marked else form


def foreign_event(line: bytes) -> dict[str, Any] | None:
    """Decode a line leniently; None unless it is an object with an event type.

    Numbers that JSON cannot represent are arrays, as returned by `decode_marked`.
    """
    try:
        value = decode_marked(line).value
    except ValueError:
        return None
    is_event = isinstance(value, dict) and isinstance(value.get("event_type"), str)
    return value if is_event else None
