"""What is in a block, for the checksum file: known to the writer, or parsed from the lines."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from esper.nissa.storage.blocks import NO_ENV, Block, BlockFacts

__all__ = ["count_facts", "parse_facts"]


class _Head(msgspec.Struct, gc=False):
    event_type: str
    env_id: int | None
    severity: str


_DECODER: Final = msgspec.json.Decoder(_Head)


def count_facts(
    types: Iterable[str], env_ids: Iterable[int | None], severities: Iterable[str]
) -> BlockFacts:
    """Count the types, envs and severities of a block's events."""
    return BlockFacts(types=_counts(types), envs=_counts(env_ids), severities=_counts(severities))


def _counts(keys: Iterable[str | int | None]) -> str:
    numbers = Counter(keys).items()
    return ",".join([f"{NO_ENV if key is None else key}:{number}" for key, number in numbers])


def parse_facts(block: Block) -> BlockFacts | None:
    """Count what is in the lines of a block; return None if one of them is no event."""
    try:
        heads = _DECODER.decode_lines(block.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if len(heads) != block.num_events:
        return None
    return count_facts(
        [head.event_type for head in heads],
        [head.env_id for head in heads],
        [head.severity for head in heads],
    )
