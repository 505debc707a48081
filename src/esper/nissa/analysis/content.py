"""The content of a log: a digest of what equal runs have in common, and counts.

Reading it takes a fraction of a scan's time: a block that matches its checksum is what the journal
wrote, one event per line in one form, so that no line has to be parsed.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from esper.leyline.telemetry import EventType
from esper.nissa.analysis.counting import add_up
from esper.nissa.analysis.normalizing import ENVIRONMENT_TYPES, volatile_mask
from esper.nissa.reading.checksummed_blocks import log_parts
from esper.nissa.reading.lines import lines_of

__all__ = ["MASKS", "Content", "ContentTask", "read_content"]

_COMPARED: Final = b',"group":'
"""What follows the fields that every comparison ignores."""
_TYPE_START: Final = len(b'{"event_type":"')
_HEAD_QUOTES: Final = {12}
"""Quotes before that: of event_type, seq, ts and run_id, and of the texts among their values."""
MASKS: Final = {
    name.value.encode(): None if name in ENVIRONMENT_TYPES else mask
    for name in EventType
    if (mask := volatile_mask(name)) is not None or name in ENVIRONMENT_TYPES
}
"""Types whose payload is compared partly, or not at all (None)."""


class ContentTask(msgspec.Struct, frozen=True, kw_only=True, tag="content"):
    """A log whose content is wanted."""

    path: str


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What two logs of equal runs have in common."""

    digest: str
    """SHA-256 of the compared events; empty if a part of the log has to be parsed."""
    counts: dict[str, int]
    """Events by type, those that are not compared included."""

    @property
    def is_known(self) -> bool:
        """Check whether every byte of the log matched its checksum."""
        return bool(self.digest)


_UNKNOWN: Final = Content(digest="", counts={})


def read_content(task: ContentTask) -> Content:
    """Read the content of a log in this process."""
    path = Path(task.path)
    digest, pairs = hashlib.sha256(), Counter[str]()
    for part in log_parts(path, 0, None, with_data=True):
        if part.facts is None:
            # The part behind the last block, which is empty in a whole log.
            if part.end is None and part.start == path.stat().st_size:
                break
            return _UNKNOWN
        compared = _compared(part.data)
        if compared is None:
            return _UNKNOWN
        digest.update(b"".join(compared))
        pairs.update(part.facts.types.split(","))
    counts = dict(sorted(add_up(pairs).items()))
    return Content(digest=digest.hexdigest(), counts=counts) if counts else _UNKNOWN


def _compared(block: bytes) -> Iterable[bytes] | None:
    """Return the compared parts of a block's events; None if a line does not begin as they do."""
    halves = [line.partition(_COMPARED) for line in lines_of(block)]
    if {head.count(b'"') for head, _, _ in halves} != _HEAD_QUOTES:
        return None
    types = [head[_TYPE_START : head.find(b'"', _TYPE_START)] for head, _, _ in halves]
    rests = [rest for _, _, rest in halves]
    for index in [index for index, raw_type in enumerate(types) if raw_type in MASKS]:
        mask = MASKS[types[index]]
        if mask is None:
            types[index] = rests[index] = b""
        else:
            rests[index] = mask(rests[index])
    return chain.from_iterable(zip(types, rests, strict=True))
