"""`esper-telemetry tail`."""

import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import msgspec

from esper.leyline.errors import ExitCode, UnknownNameError
from esper.leyline.live import Gap, Subscription
from esper.leyline.printable import printable
from esper.leyline.telemetry import EventType
from esper.nissa.live.token import resolve_token
from esper.nissa.reading.rendering import is_worrying, render_line
from esper.nissa.reading.run_lookup import find_log
from esper.nissa.reading.tailing import LineFilter, follow_file
from esper.scripts.terminal import Colour, paint, print_table, text_for_output

__all__ = ["run_tail"]

_Item: TypeAlias = "bytes | Gap | str"
"""An event's line, a gap, or a status message of the connection."""


class _TypeHead(msgspec.Struct, gc=False):
    event_type: str


@dataclass(eq=False, slots=True)
class _Stats:
    """Counts of the events shown so far."""

    started_s: float = field(default_factory=time.monotonic)
    counts: Counter[str] = field(default_factory=Counter)
    num_lost: int = 0

    def add(self, line: bytes) -> None:
        try:
            self.counts[msgspec.json.decode(line, type=_TypeHead).event_type] += 1
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.counts["(bad line)"] += 1

    def show(self) -> None:
        elapsed_s = max(time.monotonic() - self.started_s, 1e-9)
        total = self.counts.total()
        print_table(["type", "count"], [[k, str(n)] for k, n in self.counts.most_common()])
        print(
            f"{total} events in {elapsed_s:.1f} s, {total / elapsed_s:.0f}/s, {self.num_lost} lost"
        )


def run_tail(arguments: Namespace) -> int:
    """Show events of a file or a server until they end or the user interrupts."""
    # A pipe gets the events as they are: `| jq` needs no flag.
    is_raw = arguments.json or not sys.stdout.isatty()
    stats = _Stats()
    try:
        for item in _items(arguments):
            _show(item, stats, is_raw=is_raw, is_quiet=arguments.stats)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    finally:
        if arguments.stats:
            stats.show()
    return ExitCode.OK


def _show(item: _Item, stats: _Stats, *, is_raw: bool, is_quiet: bool) -> None:
    """Print an event; gaps and notices go to stderr, so that a pipe carries only events."""
    if isinstance(item, Gap):
        stats.num_lost += item.num_dropped
        lost = f"{item.num_dropped} events lost (seq {item.first_seq} to {item.last_seq})"
        print(f"... {lost}; the log has them", file=sys.stderr)
    elif isinstance(item, str):
        print(f"... {printable(item)}", file=sys.stderr)
    else:
        stats.add(item)
        if not is_quiet:
            print(_text(item, is_raw=is_raw), flush=True)


def _text(line: bytes, *, is_raw: bool) -> str:
    if is_raw:
        return text_for_output(line.decode(errors="replace"))
    return paint(render_line(line), Colour.RED if is_worrying(line) else None)


def _items(arguments: Namespace) -> Iterator[_Item]:
    types = [_known_type(name) for name in arguments.type] or None
    if "://" in arguments.source:
        return _live_items(arguments, types)
    wanted = LineFilter(
        types=None if types is None else frozenset(types),
        env_ids=frozenset(arguments.env) or None,
        since=arguments.since,
    )
    lines = follow_file(find_log(Path(arguments.source)), is_following=arguments.follow)
    return (line for line in lines if wanted.accepts(line))


def _known_type(name: str) -> str:
    if name.upper() not in EventType.__members__:
        raise UnknownNameError("event type", name.upper(), EventType.__members__)
    return name.upper()


def _live_items(arguments: Namespace, types: list[str] | None) -> Iterator[_Item]:
    # Imported here so that tailing a file does not load the websocket client.
    from esper.nissa.live.client import LiveTail, Notice

    subscription = Subscription(
        types=types, env_ids=arguments.env or None, since=arguments.since, batch=True
    )
    tail = LiveTail(arguments.source, subscription, token=resolve_token(arguments.token))
    for item in tail.items():
        yield item.text if isinstance(item, Notice) else item
