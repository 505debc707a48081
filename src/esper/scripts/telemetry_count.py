"""`esper-telemetry count`."""

import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

import msgspec

from esper.leyline.errors import ExitCode, UsageError
from esper.leyline.printable import printable
from esper.nissa.analysis.counting import BadLine, CountBy, Tally, count_logs
from esper.nissa.reading.run_lookup import find_logs
from esper.scripts.terminal import Colour, print_json, print_table

__all__ = ["run_count"]


class FileCount(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one file in the JSON output."""

    file: str
    num_events: int
    num_bad_lines: int
    bad_lines: list[BadLine]


class CountReport(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON output of `count`."""

    by: CountBy
    num_events: int
    num_bad_lines: int
    counts: dict[str, int]
    files: list[FileCount]
    is_verified: bool
    """Whether every byte was parsed or compared with its checksum."""
    baseline: dict[str, int] | None = None


def run_count(arguments: Namespace) -> int:
    """Count events and print the table."""
    by = CountBy(arguments.by)
    if arguments.baseline is not None and by is not CountBy.TYPE:
        raise UsageError(f"--baseline compares event types; leave out --by {by}")
    baseline = None if arguments.baseline is None else _baseline_counts(arguments.baseline)
    report = _report(by, _tallies(arguments, by), baseline, is_verified=not arguments.trust)
    if arguments.json:
        print_json(report)
    else:
        _print_report(report)
    _print_bad_lines(report)
    if report.num_bad_lines and not arguments.lenient:
        return ExitCode.USAGE
    return ExitCode.FAILED if baseline is not None and _differs(report) else ExitCode.OK


def _tallies(arguments: Namespace, by: CountBy) -> dict[Path, Tally]:
    logs = find_logs(arguments.paths)
    if not arguments.trust:
        return count_logs(logs, by)
    # Imported here because most counts are verified.
    from esper.nissa.analysis.trusted_counts import count_trusted

    return count_trusted(logs, by)


def _baseline_counts(path: Path) -> dict[str, int]:
    # Imported here because most counts are not compared with a baseline.
    from esper.nissa.analysis.baseline_store import read_baseline

    return read_baseline(path).profile.counts


def _report(
    by: CountBy,
    tallies: Mapping[Path, Tally],
    baseline: dict[str, int] | None,
    *,
    is_verified: bool,
) -> CountReport:
    counts: dict[str, int] = {}
    for tally in tallies.values():
        for key, number in tally.counts.items():
            counts[key] = counts.get(key, 0) + number
    return CountReport(
        by=by,
        num_events=sum(counts.values()),
        num_bad_lines=sum(tally.num_bad for tally in tallies.values()),
        counts=dict(sorted(counts.items(), key=lambda item: _order(item, by))),
        files=[
            FileCount(
                file=str(path).encode("utf-8", "backslashreplace").decode(),
                num_events=tally.num_events,
                num_bad_lines=tally.num_bad,
                bad_lines=tally.bad_lines,
            )
            for path, tally in tallies.items()
        ],
        is_verified=is_verified,
        baseline=baseline,
    )


def _order(item: tuple[str, int], by: CountBy) -> tuple[int, int, str]:
    """Return the sort key: most frequent first, envs and rounds by their number."""
    key, number = item
    if by in (CountBy.ENV, CountBy.ROUND) and key.isdecimal():
        return (0, int(key), key)
    return (1, -number, key)


def _print_report(report: CountReport) -> None:
    if report.baseline is None:
        rows = [[key, str(number)] for key, number in report.counts.items()]
        print_table([report.by, "count"], rows)
    else:
        _print_comparison(report.counts, report.baseline)
    files = f" in {len(report.files)} files" if len(report.files) > 1 else ""
    doubt = "" if report.is_verified else ", as events.crc states; not verified"
    print(f"{report.num_events} events{files}{doubt}")


def _print_comparison(counts: Mapping[str, int], baseline: Mapping[str, int]) -> None:
    keys = dict.fromkeys((*counts, *baseline))
    deltas = [counts.get(key, 0) - baseline.get(key, 0) for key in keys]
    rows = [
        [key, str(counts.get(key, 0)), str(baseline.get(key, 0)), f"{delta:+d}" if delta else ""]
        for key, delta in zip(keys, deltas, strict=True)
    ]
    print_table(
        ["type", "count", "baseline", "delta"],
        rows,
        colours=[Colour.RED if delta else None for delta in deltas],
    )


def _differs(report: CountReport) -> bool:
    # Imported here because only a comparison needs the event table.
    from esper.leyline.telemetry import EVENT_SPECS, CountClass

    ignored = {
        spec.event_type.value
        for spec in EVENT_SPECS.values()
        if spec.count_class is CountClass.ENVIRONMENT
    }
    baseline = report.baseline or {}
    keys = {*report.counts, *baseline} - ignored
    return any(report.counts.get(key, 0) != baseline.get(key, 0) for key in keys)


def _print_bad_lines(report: CountReport) -> None:
    if not report.num_bad_lines:
        return
    for item in report.files:
        for bad in item.bad_lines:
            print(printable(f"{item.file}:{bad.line}: {bad.reason}"), file=sys.stderr)
    print(
        f"{report.num_bad_lines} bad lines were not counted (--lenient accepts them)",
        file=sys.stderr,
    )
