"""Scanning a log once: counts, terms of equations, order, key sets and a digest of the stream."""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from esper.leyline.baselines import RunProfile
from esper.leyline.errors import EventDecodeError
from esper.leyline.payloads import TrainingStarted
from esper.leyline.telemetry import EventType, decode_event
from esper.nissa.facts import FACT_TYPES, add_terms, read_fact
from esper.nissa.lines import read_chunks, split_lines
from esper.nissa.normalizing import (
    ENVELOPE,
    ENVIRONMENT_TYPES,
    canonical_line,
    foreign_head,
    normal_form,
    volatile_mask,
)
from esper.nissa.ordering import OrderWatch

__all__ = ["BLOCK_LINES", "Scan", "ScanTask", "scan_log"]

BLOCK_LINES: Final = 4096
"""Lines per digest: where two logs part is found by digests first, then within one block."""

_STEP_TYPES: Final = frozenset({"EPOCH_COMPLETED", "LAST_ACTION"})
_CLOSE_TYPES: Final = FACT_TYPES | {"TRAINING_STARTED"}
_MAX_KEY_SETS: Final = 64
"""Per type; a foreign log whose keys never repeat must not fill the memory."""


class ScanTask(msgspec.Struct, frozen=True, kw_only=True, tag="scan"):
    """A log to be scanned; key sets cost a full parse of every line."""

    path: str
    with_keys: bool = True


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """A profile and the digests of its blocks."""

    profile: RunProfile
    blocks: list[str]


class _KeyHead(msgspec.Struct, gc=False):
    event_type: str
    data: dict[str, msgspec.Raw] | None = None


_REFUSALS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_KEY_DECODER: Final = msgspec.json.Decoder(_KeyHead)


def scan_log(task: ScanTask) -> Scan:
    """Scan one log in this process."""
    scanner = _Scanner(with_keys=task.with_keys)
    for chunk in read_chunks(Path(task.path)):
        scanner.feed(split_lines(chunk))
    return scanner.finish()


class _Treatment(NamedTuple):
    """What the scan does with events of one type besides counting them."""

    event_type: str
    is_step: bool
    is_close: bool
    is_environment: bool
    mask: Callable[[bytes], bytes] | None


_TREATMENTS: Final = {
    name.encode(): _Treatment(
        event_type=name,
        is_step=name in _STEP_TYPES,
        is_close=name in _CLOSE_TYPES,
        is_environment=name in ENVIRONMENT_TYPES,
        mask=volatile_mask(name),
    )
    for name in EventType
}


@dataclass(eq=False, slots=True)
class _Scanner:
    """Everything that is gathered while a log goes by."""

    with_keys: bool
    raw_counts: Counter[bytes] = field(default_factory=Counter)
    raw_types: list[bytes] = field(default_factory=list)
    """Types of the chunk under way, in order."""
    terms: Counter[str] = field(default_factory=Counter)
    key_sets: defaultdict[str, set[tuple[str, ...]]] = field(
        default_factory=lambda: defaultdict(set)
    )
    order: OrderWatch = field(default_factory=OrderWatch)
    started: TrainingStarted | None = None
    status: str | None = None
    num_lines: int = 0
    num_bad_lines: int = 0
    blocks: list[str] = field(default_factory=list)
    forms: list[bytes] = field(default_factory=list)
    """Normal forms of the block under way."""

    def feed(self, lines: list[bytes]) -> None:
        """Take in the next lines."""
        match_envelope = ENVELOPE.match
        for number, line in enumerate(lines, self.num_lines + 1):
            match = match_envelope(line)
            if match is None or not line.endswith(b"}"):
                self._feed_odd(line, number)
            else:
                self._feed_canonical(line, match, number)
        self.raw_counts.update(self.raw_types)
        self.raw_types.clear()
        self.num_lines += len(lines)
        if self.with_keys:
            self._add_keys(lines)
        while len(self.forms) >= BLOCK_LINES:
            self._close_block()

    def _feed_canonical(self, line: bytes, match: re.Match[bytes], number: int) -> None:
        """Take in a line as our writer writes it: the hot path, one call per event."""
        raw_type = match[1]
        rest = line[match.end() :]
        self.raw_types.append(raw_type)
        treatment = _TREATMENTS.get(raw_type)
        if treatment is not None:
            if treatment.is_step:
                scope = rest[: rest.find(b',"severity"')]
                self.order.see_step(treatment.event_type, scope, number)
            elif treatment.is_close:
                self._look_closely(treatment.event_type, line, number)
            if treatment.is_environment:
                return
            if treatment.mask is not None:
                rest = treatment.mask(rest)
        self.forms.append(raw_type + rest)

    def _feed_odd(self, line: bytes, number: int) -> None:
        """Take in a line that our writer would not have written like this."""
        if not line.strip():
            return
        canonical = canonical_line(line)
        match = None if canonical is None else ENVELOPE.match(canonical)
        if canonical is not None and match is not None:
            self._feed_canonical(canonical, match, number)
            return
        head = foreign_head(line)
        if head is None:
            self.num_bad_lines += 1
        else:
            self.raw_types.append(head.event_type.encode(errors="replace"))
        form = normal_form(line)
        if form is not None:
            self.forms.append(form)

    def _look_closely(self, event_type: str, line: bytes, number: int) -> None:
        if event_type == "TRAINING_STARTED":
            self.started = self.started or _read_started(line)
            self.order.see_start(number, self._num_events())
            return
        fact = read_fact(line)
        if fact is not None:
            add_terms(self.terms, fact)
            self.order.see_fact(fact, number)
            if event_type == "RUN_FINISHED":
                self.status = fact.data.status
                self.order.see_finish(number, self._num_events())

    def _num_events(self) -> int:
        return self.raw_counts.total() + len(self.raw_types) + self.num_bad_lines

    def _add_keys(self, lines: list[bytes]) -> None:
        try:
            heads = _KEY_DECODER.decode_lines(b"\n".join(lines))
        except _REFUSALS:
            heads = [head for line in lines if (head := self._read_keys(line)) is not None]
        for head in heads:
            known = self.key_sets[head.event_type]
            keys = tuple(head.data or ())
            if keys not in known and len(known) < _MAX_KEY_SETS:
                known.add(keys)

    def _read_keys(self, line: bytes) -> _KeyHead | None:
        try:
            return _KEY_DECODER.decode(line)
        except _REFUSALS:
            head = foreign_head(line)
            # An odd line has been counted as bad already; one that only looked well has not.
            looked_well = ENVELOPE.match(line) is not None and line.endswith(b"}")
            self.num_bad_lines += head is None and looked_well
            return head and _KeyHead(head.event_type, dict.fromkeys(head.keys, msgspec.Raw()))

    def _close_block(self) -> None:
        block, self.forms = self.forms[:BLOCK_LINES], self.forms[BLOCK_LINES:]
        self.blocks.append(hashlib.sha256(b"\n".join(block)).hexdigest())

    def finish(self) -> Scan:
        """Return what was gathered; the log ends here."""
        self.order.end(self._num_events())
        if self.forms:
            self._close_block()
        profile = RunProfile(
            counts={name.decode(): number for name, number in sorted(self.raw_counts.items())},
            terms={name: value for name, value in sorted(self.terms.items()) if value},
            key_sets={
                event_type: sorted(sorted(keys) for keys in sets)
                for event_type, sets in sorted(self.key_sets.items())
            },
            broken_orders=self.order.broken,
            started=self.started,
            status=self.status,
            num_lines=self.num_lines,
            num_bad_lines=self.num_bad_lines,
            digest=hashlib.sha256("".join(self.blocks).encode()).hexdigest(),
        )
        return Scan(profile=profile, blocks=self.blocks)


def _read_started(line: bytes) -> TrainingStarted | None:
    try:
        payload = decode_event(line).data
    except EventDecodeError:
        return None
    return payload if isinstance(payload, TrainingStarted) else None
