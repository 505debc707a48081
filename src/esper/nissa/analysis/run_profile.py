"""Profiling a log in one pass: counts, equation terms, order, key sets and a stream digest."""

import hashlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Final, cast

import msgspec

from esper.leyline.baselines import RunProfile
from esper.leyline.errors import EventDecodeError
from esper.leyline.payloads import TrainingStarted
from esper.leyline.telemetry import decode_event
from esper.nissa.analysis.content import MASKS
from esper.nissa.analysis.facts import FACT_TYPES, LINK_TYPE, add_link, add_terms, read_fact
from esper.nissa.analysis.normalizing import ENVELOPE, canonical_line, normal_form
from esper.nissa.analysis.ordering import OrderWatch
from esper.nissa.reading.foreign import read_foreign
from esper.nissa.reading.lines import read_chunks, split_lines

__all__ = ["BLOCK_LINES", "Scan", "ScanTask", "read_started", "scan_log"]

BLOCK_LINES: Final = 4096
"""Lines per digest; a comparison finds the first differing block, then the line within it."""

_STEP_TYPES: Final = frozenset({b"EPOCH_COMPLETED", b"LAST_ACTION"})
_CLOSE_TYPES: Final = frozenset(name.encode() for name in (*FACT_TYPES, "TRAINING_STARTED"))
_match_envelope: Final = ENVELOPE.match
_LAST_BYTE: Final = itemgetter(-1)
_BRACE: Final = {ord("}")}
_SEVERITY: Final = b',"severity"'

_MAX_KEY_SETS: Final = 64
"""Limit per type, which bounds memory for foreign logs whose keys never repeat."""


class ScanTask(msgspec.Struct, frozen=True, kw_only=True, tag="scan"):
    """A log to scan; collecting key sets requires parsing every line completely."""

    path: str
    with_keys: bool = True
    with_digest: bool = True


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """A profile and the digests of its blocks."""

    profile: RunProfile
    """Its digest is empty if none was wanted."""
    blocks: list[str]


class _KeyHead(msgspec.Struct, gc=False):
    event_type: str
    data: dict[str, msgspec.Raw] | None = None


_REFUSALS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_KEY_DECODER: Final = msgspec.json.Decoder(_KeyHead)


def scan_log(task: ScanTask) -> Scan:
    """Scan one log in this process."""
    scanner = _Scanner(with_keys=task.with_keys, with_digest=task.with_digest)
    for chunk in read_chunks(Path(task.path)):
        scanner.feed(split_lines(chunk))
    return scanner.finish()


@dataclass(eq=False, slots=True)
class _Scanner:
    """The state accumulated while scanning a log."""

    with_keys: bool
    with_digest: bool
    raw_counts: Counter[bytes] = field(default_factory=Counter)
    terms: Counter[str] = field(default_factory=Counter)
    key_sets: defaultdict[str, set[tuple[str, ...]]] = field(
        default_factory=lambda: defaultdict(set)
    )
    order: OrderWatch = field(default_factory=OrderWatch)
    started: TrainingStarted | None = None
    status: str | None = None
    num_lines: int = 0
    num_events: int = 0
    """Lines that are not blank."""
    num_bad_lines: int = 0
    blocks: list[str] = field(default_factory=list)
    forms: list[bytes] = field(default_factory=list)
    """Normal forms of the current block."""

    def feed(self, lines: list[bytes]) -> None:
        """Process the next lines."""
        first = self.num_lines + 1
        matches = list(map(_match_envelope, lines))
        if None in matches or set(map(_LAST_BYTE, lines)) != _BRACE:
            for number, (line, match) in enumerate(zip(lines, matches, strict=True), first):
                if match is None or not line.endswith(b"}"):
                    self._feed_odd(line, number)
                else:
                    self._feed_canonical([line], [match], number)
        else:
            self._feed_canonical(lines, cast(list[re.Match[bytes]], matches), first)
        self.num_lines += len(lines)
        if self.with_keys:
            self._add_keys(lines)
        while len(self.forms) >= BLOCK_LINES:
            self._close_block()

    def _feed_canonical(
        self, lines: list[bytes], matches: list[re.Match[bytes]], first: int
    ) -> None:
        """Process canonical lines: the hot path, in bulk where possible."""
        types = [match[1] for match in matches]
        ends = [match.end() for match in matches]
        see_step, terms = self.order.see_step, self.terms
        for index, raw_type in enumerate(types):
            if raw_type in _STEP_TYPES:
                line, start = lines[index], ends[index]
                see_step(raw_type, line[start : line.find(_SEVERITY, start)], first + index)
            elif raw_type == LINK_TYPE and add_link(terms, lines[index], ends[index]):
                continue
            elif raw_type in _CLOSE_TYPES:
                self._look_closely(lines[index], first + index, self.num_events + index + 1)
        self.raw_counts.update(types)
        self.num_events += len(types)
        if self.with_digest:
            self._add_forms(lines, types, ends)

    def _add_forms(self, lines: list[bytes], types: list[bytes], ends: list[int]) -> None:
        forms: list[bytes | None] = [
            raw_type + line[end:] for raw_type, line, end in zip(types, lines, ends, strict=True)
        ]
        for index, raw_type in enumerate(types):
            if raw_type in MASKS:
                mask, form = MASKS[raw_type], forms[index]
                forms[index] = None if mask is None or form is None else mask(form)
        self.forms += [form for form in forms if form is not None]

    def _feed_odd(self, line: bytes, number: int) -> None:
        """Process a line that is not in canonical form."""
        if not line.strip():
            return
        canonical = canonical_line(line)
        match = None if canonical is None else _match_envelope(canonical)
        if canonical is not None and match is not None:
            self._feed_canonical([canonical], [match], number)
            return
        self.num_events += 1
        foreign = read_foreign(line)
        if foreign.event_type is None:
            self.num_bad_lines += 1
        else:
            self.raw_counts[foreign.event_type.encode()] += 1
        is_ours = canonical is not None or _match_envelope(line) is not None
        form = normal_form(line) if is_ours else foreign.form
        if form is not None and self.with_digest:
            self.forms.append(form)

    def _look_closely(self, line: bytes, number: int, event_number: int) -> None:
        fact = read_fact(line)
        if fact is None:
            return
        if fact.event_type == "TRAINING_STARTED":
            self.started = self.started or read_started(line)
            self.order.see_start(number, event_number)
            return
        add_terms(self.terms, fact)
        self.order.see_fact(fact, number)
        if fact.event_type == "RUN_FINISHED":
            self.status = fact.data.status
            # A resumed run may have more rounds than its TRAINING_STARTED states.
            self.terms["rounds completed"] = fact.data.rounds_completed or 0
            self.order.see_finish(number, event_number)

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
            foreign = read_foreign(line)
            if foreign.event_type is None:
                # A non-canonical line has already been counted as bad; one that matched the
                # envelope and then failed to decode has not.
                self.num_bad_lines += _match_envelope(line) is not None and line.endswith(b"}")
                return None
            return _KeyHead(foreign.event_type, dict.fromkeys(foreign.keys, msgspec.Raw()))

    def _close_block(self) -> None:
        block, self.forms = self.forms[:BLOCK_LINES], self.forms[BLOCK_LINES:]
        self.blocks.append(hashlib.sha256(b"\n".join(block)).hexdigest())

    def finish(self) -> Scan:
        """Finish the log and return its profile and block digests."""
        self.order.end(self.num_events)
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
            digest=self._digest(),
        )
        return Scan(profile=profile, blocks=self.blocks)

    def _digest(self) -> str:
        text = "".join(self.blocks).encode()
        return hashlib.sha256(text).hexdigest() if self.with_digest else ""


def read_started(line: bytes) -> TrainingStarted | None:
    """Return what a line says about the start of a run; None if it is another event."""
    try:
        payload = decode_event(line).data
    except EventDecodeError:
        return None
    return payload if isinstance(payload, TrainingStarted) else None
