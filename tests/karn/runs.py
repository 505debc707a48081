"""Run directories of synthetic runs, as the bus would have left them."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
from tests.karn.story import RUN_ID
from tests.nissa.fake_run import FakeRun

from esper.karn.view.view_feed import ViewFeed

MANIFEST = msgspec.structs.replace(FakeRun().manifest(), run_id=RUN_ID)


def write_run(directory: Path, lines: Iterable[bytes]) -> Path:
    """Write a run directory with its manifest."""
    directory.mkdir(parents=True, exist_ok=True)
    append_lines(directory, lines)
    (directory / "operational.jsonl").touch()
    (directory / "run.json").write_bytes(msgspec.json.encode(MANIFEST))
    return directory


def append_lines(directory: Path, lines: Iterable[bytes]) -> None:
    """Let a run go on."""
    with (directory / "events.jsonl").open("ab") as log:
        log.write(b"".join(line + b"\n" for line in lines))


def has_read(feed: ViewFeed, num_events: int) -> bool:
    """Return whether a feed has shown its view so many events."""
    return feed.snapshot().bus.num_events >= num_events
