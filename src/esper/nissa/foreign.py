"""Lines of logs that are not ours: any object in JSON that has an event type."""

from typing import Any, Final, NamedTuple

import orjson

from esper.leyline.untyped_json import MarkedJson, decode_marked

__all__ = ["VOLATILE_KEYS", "ForeignLine", "foreign_event", "read_foreign"]

VOLATILE_KEYS: Final = frozenset({"event_id", "timestamp", "ts", "run_id", "seq"})
"""What may differ between two equal runs."""


class ForeignLine(NamedTuple):
    """What can be said about a line that is not one of our events."""

    event_type: str | None
    """None for a line that is no event at all."""
    keys: tuple[str, ...]
    """Keys of its payload."""
    form: bytes
    """What two equal runs have in common here, whatever the order of keys."""


def read_foreign(line: bytes) -> ForeignLine:
    """Decode a line leniently; one that cannot be decoded is compared as it is written."""
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
    # A marked number must not equal an array that happens to look like one.
    is_marked = marked.mark is not None and orjson.dumps(marked.mark) in form
    return b"marked " + form if is_marked else form


def foreign_event(line: bytes) -> dict[str, Any] | None:
    """Decode a line leniently; None unless it is an object with an event type.

    Numbers that JSON cannot hold are arrays, as `decode_marked` leaves them.
    """
    try:
        value = decode_marked(line).value
    except ValueError:
        return None
    is_event = isinstance(value, dict) and isinstance(value.get("event_type"), str)
    return value if is_event else None
