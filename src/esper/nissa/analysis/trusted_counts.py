"""Counting by the checksum file alone: the log itself is not read, so nothing is verified."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from esper.leyline.errors import UnreadableFileError, UsageError
from esper.nissa.analysis.counting import FACTS_BY, CountBy, Tally, add_up
from esper.nissa.reading.lines import LOG_NAME
from esper.nissa.storage.blocks import checksum_path, iterate_records

__all__ = ["count_trusted"]


def count_trusted(paths: Sequence[Path], by: CountBy) -> dict[Path, Tally]:
    """Return the counts that the checksum file of every log states."""
    if by not in FACTS_BY:
        raise UsageError(f"--trust has no counts by {by}; leave it out to read the log")
    return {path: _tally(path, by) for path in paths}


def _tally(path: Path, by: CountBy) -> Tally:
    checksums = checksum_path(path)
    if path.name != LOG_NAME or not checksums.is_file():
        raise UnreadableFileError(
            path, "has no checksum file that --trust could read; leave it out"
        )
    log_bytes = path.stat().st_size
    facts_of, pairs, end, num_events = FACTS_BY[by], Counter[str](), 0, 0
    for record in iterate_records(checksums, log_bytes):
        if record.facts is None:
            raise UnreadableFileError(
                checksums, "has no counts, as Esper 0.1 wrote none; leave out --trust"
            )
        pairs.update(facts_of(record.facts).split(","))
        end, num_events = record.end, record.last_seq + 1
    if end < log_bytes:
        raise UnreadableFileError(
            checksums,
            f"covers {end:,} of {log_bytes:,} bytes: the run is still going, was killed, or is "
            "damaged; leave out --trust to read the log",
        )
    return Tally(counts=dict(add_up(pairs)), num_lines=num_events)
