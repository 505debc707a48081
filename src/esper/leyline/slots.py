"""Slots: the id grammar, where a host offers them, and the two orders they are listed in."""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Self

import msgspec

from esper.leyline.errors import InvalidValueError, SlotIdError, UnknownNameError

__all__ = [
    "DEFAULT_SLOT_IDS",
    "InjectionSpec",
    "SlotConfig",
    "SlotPosition",
    "Surface",
    "format_slot_id",
    "parse_slot_id",
]

SLOT_ID_PATTERN: Final = re.compile(r"r(0|[1-9][0-9]{0,5})c(0|[1-9][0-9]{0,5})")
DEFAULT_SLOT_IDS: Final = ("r0c0", "r0c1", "r0c2")


class SlotPosition(NamedTuple):
    """Row and column of a slot; sorts as the action order does (r0c10 after r0c9)."""

    row: int
    column: int


def parse_slot_id(value: object) -> SlotPosition:
    """Return row and column of a slot id; anything off the grammar raises SlotIdError."""
    match = SLOT_ID_PATTERN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise SlotIdError(value)
    return SlotPosition(int(match[1]), int(match[2]))


def format_slot_id(row: int, column: int) -> str:
    """Return the id of the slot in this row and column."""
    return f"r{row}c{column}"


class Surface(IntEnum):
    """Where in a block a slot sits."""

    BLOCK_END = 0
    PRE_POOL = 1
    POST_POOL = 2


class InjectionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a host where a seed can grow. Seeds do not depend on height or width."""

    slot_id: str
    channels: int
    order: int
    """Rank in action order."""
    surface: Surface
    layer_range: tuple[int, int]
    position: float
    """Depth from 0 to 1, for display only."""

    def __post_init__(self) -> None:
        """Raise for an invalid slot id or a value out of range."""
        parse_slot_id(self.slot_id)
        start, end = self.layer_range
        checks = (
            ("channels", self.channels, self.channels > 0, "must be positive"),
            ("order", self.order, self.order >= 0, "must not be negative"),
            ("position", self.position, 0.0 <= self.position <= 1.0, "must be from 0 to 1"),
            ("layer_range", self.layer_range, 0 <= start <= end, "must be 0 <= start <= end"),
        )
        for name, value, is_valid, constraint in checks:
            if not is_valid:
                raise InvalidValueError(name, value, constraint, f"slot {self.slot_id}")


class SlotConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The slots of a run, in both orders: by action index, and as the forward pass meets them."""

    slot_ids: tuple[str, ...]
    """Action order: index i of the slot head is slot_ids[i]."""
    execution_order: tuple[str, ...]
    channels: tuple[int, ...]
    """Channels of each slot, in action order."""

    def __post_init__(self) -> None:
        """Refuse a config whose two orders do not list the same slots once each."""
        for slot_id in self.slot_ids:
            parse_slot_id(slot_id)
        if not self.slot_ids or len(set(self.slot_ids)) != len(self.slot_ids):
            raise InvalidValueError(
                "slots", self.slot_ids, "must name at least one slot, each once"
            )
        if sorted(self.slot_ids) != sorted(self.execution_order):
            raise InvalidValueError(
                "execution_order", self.execution_order, f"must list exactly {self.slot_ids}"
            )
        if len(self.channels) != len(self.slot_ids):
            raise InvalidValueError("channels", self.channels, "must have one entry per slot")

    @classmethod
    def from_specs(
        cls,
        specs: Iterable[InjectionSpec],
        execution_order: Sequence[str],
        enabled: Iterable[str] | None = None,
    ) -> Self:
        """Build the config of the enabled slots (all of them by default) of a host."""
        by_id = {spec.slot_id: spec for spec in specs}
        chosen = tuple(by_id) if enabled is None else tuple(enabled)
        for slot_id in chosen:
            parse_slot_id(slot_id)
            if slot_id not in by_id:
                raise UnknownNameError("slot of this host", slot_id, by_id)
        ordered = sorted((by_id[slot_id] for slot_id in chosen), key=_order_of)
        if len({spec.order for spec in ordered}) != len(ordered):
            raise InvalidValueError("slots", chosen, "must have distinct orders, each slot once")
        return cls(
            slot_ids=tuple(spec.slot_id for spec in ordered),
            execution_order=tuple(slot_id for slot_id in execution_order if slot_id in chosen),
            channels=tuple(spec.channels for spec in ordered),
        )

    @property
    def num_slots(self) -> int:
        """Count the slots."""
        return len(self.slot_ids)

    def channels_by_id(self) -> Mapping[str, int]:
        """Return channels keyed by slot id."""
        return dict(zip(self.slot_ids, self.channels, strict=True))


def _order_of(spec: InjectionSpec) -> int:
    return spec.order
