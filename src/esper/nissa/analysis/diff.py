"""Comparing two runs, or a run with a baseline: by class of count, keys, order and event."""

from collections.abc import Collection, Iterator, Mapping
from itertools import islice, zip_longest
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from esper.leyline.baselines import Provenance, RunProfile
from esper.leyline.payloads import TrainingStarted
from esper.leyline.telemetry import EVENT_SPECS, CountClass, EventType, volatile_paths
from esper.leyline.untyped_json import compact_json
from esper.nissa.analysis.baseline_store import Side, read_sides
from esper.nissa.analysis.identities import Check, check_profile
from esper.nissa.analysis.normalizing import differing_paths, differing_values, normal_form
from esper.nissa.analysis.run_outcome import RunOutcome, read_outcome
from esper.nissa.analysis.run_profile import BLOCK_LINES
from esper.nissa.reading.lines import read_lines
from esper.nissa.reading.rendering import describe_line, place_of

__all__ = [
    "CheckChange",
    "CountChange",
    "Difference",
    "Divergence",
    "KeyChange",
    "KeyValues",
    "OrderChange",
    "config_leaves",
    "config_text",
    "diff_paths",
    "diff_sides",
]

MAX_LINE_SHOWN: Final = 2000
MAX_VALUES_SHOWN: Final = 5


class CountChange(msgspec.Struct, frozen=True, kw_only=True):
    """One event type on both sides."""

    event_type: str
    count_class: CountClass
    left: int
    right: int

    @property
    def delta(self) -> int:
        """Return the count of the right side minus the count of the left side."""
        return self.right - self.left


class KeyChange(msgspec.Struct, frozen=True, kw_only=True):
    """Payload keys of one type that only one side has."""

    event_type: str
    missing: list[str]
    added: list[str]


class OrderChange(msgspec.Struct, frozen=True, kw_only=True):
    """An order rule that at least one side violates; None on the side that does not."""

    rule: str
    left_line: int | None
    right_line: int | None


class CheckChange(msgspec.Struct, frozen=True, kw_only=True):
    """An equation that does not hold on at least one side."""

    name: str
    count_class: CountClass
    left: str
    """Both sides of the equation as numbers, such as `5 / 6`; `-` where it does not apply."""
    right: str
    holds_left: bool
    holds_right: bool


class KeyValues(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration key, or a field of an event, that has two values."""

    key: str
    left: str
    right: str


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first event in which two logs differ; None if one log has already ended."""

    left_line: int | None
    right_line: int | None
    place: str
    """Round and step, counted from 1, and env id of the event."""
    left_words: str | None
    """The event in words."""
    right_words: str | None
    paths: list[str]
    """Fields that differ; empty when the events are of different types or one is missing."""
    values: list[KeyValues]
    """Both values of the first fields that differ."""
    left: str | None
    right: str | None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The complete result of a comparison."""

    left: str
    right: str
    is_same: bool
    is_seeded_compared: bool
    """Whether configuration and machine kind match, so that seeded counts must match too."""
    is_stream_equal: bool
    provenance: list[str]
    """Differences in versions, data source, machine kind and what TRAINING_STARTED reports."""
    config: list[KeyValues]
    """Keys of the training configuration that differ."""
    left_outcome: RunOutcome | None
    """None for a baseline, which has counts only."""
    right_outcome: RunOutcome | None
    counts: list[CountChange]
    keys: list[KeyChange]
    orders: list[OrderChange]
    checks: list[CheckChange]
    divergence: Divergence | None
    bad_lines: list[int]
    """Number of bad lines on the left and on the right."""


def diff_paths(left: Path, right: Path) -> Difference:
    """Compare two paths, each of them a run, a log or a baseline."""
    return diff_sides(*read_sides(left, right))


def diff_sides(left: Side, right: Side) -> Difference:
    """Compare two sides that are already loaded."""
    first, second = left.baseline.profile, right.baseline.profile
    config = list(_config_changes(left.baseline.provenance, right.baseline.provenance))
    provenance = _provenance_changes(left, right, {change.key for change in config})
    is_compared = not config and not any(name in _SEEDED_NAMES for name, _ in provenance)
    # Logs that differ from the start have no digest.
    is_stream_equal = bool(first.digest) and first.digest == second.digest
    counts = list(_count_changes(first, second))
    keys = [] if is_stream_equal else list(_key_changes(first, second))
    # Equal events break the same rules, which `validate` shows.
    is_alike = is_stream_equal and first.counts == second.counts
    orders = [] if is_alike else list(_order_changes(first, second))
    checks = [] if is_alike else list(_check_changes(first, second))
    differs = (
        any(_counts_matter(change, is_compared) for change in counts)
        or bool(keys)
        or any((item.left_line is None) != (item.right_line is None) for item in orders)
        or any(item.holds_left != item.holds_right for item in checks)
        or (is_compared and not is_stream_equal)
        or first.num_bad_lines != second.num_bad_lines
    )
    return Difference(
        left=left.name,
        right=right.name,
        is_same=not differs,
        is_seeded_compared=is_compared,
        is_stream_equal=is_stream_equal,
        provenance=[text for _, text in provenance],
        config=config,
        left_outcome=None if left.log is None else read_outcome(left.log),
        right_outcome=None if right.log is None else read_outcome(right.log),
        counts=counts,
        keys=keys,
        orders=orders,
        checks=checks,
        divergence=None if is_stream_equal else _first_divergence(left, right),
        bad_lines=[first.num_bad_lines, second.num_bad_lines],
    )


_SEEDED_NAMES: Final = frozenset({"machine kind", "data source", "start"})
"""Provenance entries that seeded counts and values may depend on."""


_CONFIGURED: Final = {"num_rounds": "n_episodes", "num_envs": "n_envs", "num_steps": "max_epochs"}
"""Fields of TRAINING_STARTED that repeat a configuration key of another name."""


def _provenance_changes(
    left: Side, right: Side, reported: Collection[str]
) -> list[tuple[str, str]]:
    """Return name and description of provenance entries known on both sides that differ.

    Args:
        left: one side.
        right: the other side.
        reported: configuration keys that are known to differ, which the start of a run repeats.
    """
    changes: list[tuple[str, str]] = []
    before, after = left.baseline.provenance, right.baseline.provenance
    for name in ("schema_version", "esper_version", "commit", "data_source", "machine_kind"):
        values = getattr(before, name), getattr(after, name)
        if None not in values and values[0] != values[1]:
            label = name.replace("_", " ")
            changes.append((label, f"{label}: {values[0]} -> {values[1]}"))
    starts = left.baseline.profile.started, right.baseline.profile.started
    changes += [
        ("start", f"TRAINING_STARTED: {text}")
        for name, text in _start_changes(*starts)
        if _CONFIGURED.get(name, name) not in reported
    ]
    return changes


def _config_changes(before: Provenance, after: Provenance) -> Iterator[KeyValues]:
    """Yield the keys that differ, those of nested tables one by one."""
    if before.config is None or after.config is None:
        return
    left, right = (
        dict(config_leaves(msgspec.to_builtins(config))) for config in (before.config, after.config)
    )
    for key in dict.fromkeys((*left, *right)):
        if left.get(key) != right.get(key):
            yield KeyValues(
                key=key, left=config_text(left.get(key)), right=config_text(right.get(key))
            )


def config_leaves(table: Mapping[str, object], path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the keys of a configuration with their values, those of nested tables one by one."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from config_leaves(value, f"{path}{key}.")
        else:
            yield path + key, value


def config_text(value: object) -> str:
    """Write a value as `--set` reads it."""
    return str(value) if isinstance(value, str) else compact_json(value).decode()


def _start_changes(
    before: TrainingStarted | None, after: TrainingStarted | None
) -> Iterator[tuple[str, str]]:
    if before is not None and after is not None:
        volatile = volatile_paths(EventType.TRAINING_STARTED)
        ignored = frozenset(path.removeprefix("data.") for path in volatile)
        # Versions are compared above; a different version does not imply different events.
        ignored |= {"esper_version", "schema_version"}
        yield from _field_changes(msgspec.to_builtins(before), msgspec.to_builtins(after), ignored)


def _field_changes(
    before: Mapping[str, object], after: Mapping[str, object], ignored: frozenset[str]
) -> Iterator[tuple[str, str]]:
    for name, value in before.items():
        if name not in ignored and value != after[name]:
            yield name, f"{name}: {value} -> {after[name]}"


def _count_changes(first: RunProfile, second: RunProfile) -> Iterator[CountChange]:
    for event_type in sorted({*first.counts, *second.counts}):
        yield CountChange(
            event_type=event_type,
            count_class=_class_of(event_type),
            left=first.counts.get(event_type, 0),
            right=second.counts.get(event_type, 0),
        )


def _class_of(event_type: str) -> CountClass:
    """Return how counts of a type are compared; unknown types are treated as seeded."""
    if event_type in EventType.__members__:
        return EVENT_SPECS[EventType(event_type)].count_class
    return CountClass.SEEDED


def _counts_matter(change: CountChange, is_seeded_compared: bool) -> bool:
    if change.delta == 0 or change.count_class is CountClass.ENVIRONMENT:
        return False
    return change.count_class is CountClass.STRUCTURAL or is_seeded_compared


def _key_changes(first: RunProfile, second: RunProfile) -> Iterator[KeyChange]:
    """Compare the keys of types that both sides have; missing types show up in the counts."""
    for event_type in sorted(first.key_sets.keys() & second.key_sets.keys()):
        before, after = first.key_sets[event_type], second.key_sets[event_type]
        if before != after:
            left = {key for keys in before for key in keys}
            right = {key for keys in after for key in keys}
            yield KeyChange(
                event_type=event_type, missing=sorted(left - right), added=sorted(right - left)
            )


def _order_changes(first: RunProfile, second: RunProfile) -> Iterator[OrderChange]:
    for rule in sorted({*first.broken_orders, *second.broken_orders}):
        yield OrderChange(
            rule=rule,
            left_line=first.broken_orders.get(rule),
            right_line=second.broken_orders.get(rule),
        )


def _check_changes(first: RunProfile, second: RunProfile) -> Iterator[CheckChange]:
    """Compare equations; one that does not apply to a side counts as holding there."""
    before = {check.name: check for check in check_profile(first)}
    after = {check.name: check for check in check_profile(second)}
    for name in dict.fromkeys((*before, *after)):
        sides = before.get(name), after.get(name)
        holds = [side is None or side.holds for side in sides]
        known = next(side for side in sides if side is not None)
        if not all(holds):
            yield CheckChange(
                name=name,
                count_class=known.count_class,
                left=_shown(sides[0]),
                right=_shown(sides[1]),
                holds_left=holds[0],
                holds_right=holds[1],
            )


def _shown(check: Check | None) -> str:
    return "-" if check is None else f"{check.left} / {check.right}"


def _first_divergence(left: Side, right: Side) -> Divergence | None:
    """Find the first event that differs; return None for a baseline, which has no events."""
    if left.log is None or right.log is None:
        return None
    pairs = zip_longest(left.blocks, right.blocks)
    equal_blocks = next((index for index, (a, b) in enumerate(pairs) if a != b), 0)
    start = equal_blocks * BLOCK_LINES
    forms = zip_longest(_forms(left.log, start), _forms(right.log, start))
    differing = ((one, two) for one, two in forms if _form(one) != _form(two))
    first, second = next(differing, (None, None))
    pair = None if first is None or second is None else (first.line, second.line)
    return Divergence(
        left_line=None if first is None else first.number,
        right_line=None if second is None else second.number,
        place=next((place_of(side.line) for side in (first, second) if side is not None), ""),
        left_words=None if first is None else describe_line(first.line),
        right_words=None if second is None else describe_line(second.line),
        paths=[] if pair is None else differing_paths(*pair),
        values=[] if pair is None else _differing_values(*pair),
        left=None if first is None else _text(first.line),
        right=None if second is None else _text(second.line),
    )


def _differing_values(left: bytes, right: bytes) -> list[KeyValues]:
    """Return both values of the first differing fields that both events have."""
    pairs = islice(differing_values(left, right), MAX_VALUES_SHOWN)
    return [
        KeyValues(key=path.removeprefix("data."), left=config_text(one), right=config_text(two))
        for path, one, two in pairs
    ]


class _NumberedForm(NamedTuple):
    """A line, its line number and its normal form."""

    number: int
    line: bytes
    form: bytes


def _forms(log: Path, start: int) -> Iterator[_NumberedForm]:
    """Yield the compared events, starting with index `start`."""
    numbered = (
        _NumberedForm(number, line, form)
        for number, line in enumerate(read_lines(log), 1)
        if line.strip() and (form := normal_form(line)) is not None
    )
    return islice(numbered, start, None)


def _form(numbered: _NumberedForm | None) -> bytes | None:
    return None if numbered is None else numbered.form


def _text(line: bytes) -> str:
    return line[:MAX_LINE_SHOWN].decode(errors="replace")
