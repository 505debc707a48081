"""Sending large answers in small parts: what an unread answer holds of the server's memory."""

from collections.abc import Iterator
from typing import Final

__all__ = ["PART_BYTES", "in_parts"]

PART_BYTES: Final = 8 * 1024
"""What a connection holds of an answer that its client does not read."""


def in_parts(data: bytes) -> Iterator[bytes]:
    """Yield bytes in parts, so that no connection holds all of them in its write buffer."""
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]
