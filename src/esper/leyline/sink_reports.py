"""What the process of a sink reports to its run: one JSON object per line."""

import msgspec

__all__ = ["SinkDone", "SinkFailure", "SinkPosition", "SinkReport"]


class SinkPosition(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="position"):
    """The sink has confirmed every event before this one."""

    next_seq: int


class SinkDone(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="done"):
    """The sink has got the whole log and is closed; its process is about to end."""


class SinkFailure(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="failure"):
    """The last line of a sink that cannot go on."""

    reason: str


SinkReport = SinkPosition | SinkDone | SinkFailure
