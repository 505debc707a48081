"""Small real runs, and what may be compared of two of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from tests.builders.fingerprints import digest_of, latest_checkpoint

from esper.leyline.telemetry import EventType, volatile_paths
from esper.nissa.storage.journal import EVENTS_FILE, OPERATIONAL_FILE
from esper.simic.training.checkpoints.checkpoint_store import read_checkpoint


def lines_of(run_dir: Path, *, without: frozenset[EventType] = frozenset()) -> list[bytes]:
    """Return the run's events without what may differ between two equal runs."""
    return [
        msgspec.json.encode(event)
        for event in _events(run_dir / EVENTS_FILE)
        if event["event_type"] not in without
    ]


def _events(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().splitlines():
        event = msgspec.json.decode(line)
        for volatile in volatile_paths(EventType(event["event_type"])):
            _blank(event, volatile.split("."))
        yield event


def _blank(node: Any, path: list[str]) -> None:
    name, *rest = path
    places = list(node) if name == "*" and isinstance(node, dict) else [name]
    if name == "*" and isinstance(node, list):
        places = list(range(len(node)))
    for place in places:
        if not rest:
            node[place] = None
        elif node[place] is not None:
            _blank(node[place], rest)


def operational_events(run_dir: Path) -> list[dict[str, Any]]:
    """Return the events of the operational log."""
    lines = (run_dir / OPERATIONAL_FILE).read_bytes().splitlines()
    return [msgspec.json.decode(line) for line in lines]


def last_checkpoint(run_dir: Path) -> Path:
    """Return the newest checkpoint of a run."""
    path = latest_checkpoint(run_dir)
    assert path is not None
    return path


def weights_digest(checkpoint: Path) -> str:
    """Return a hash over everything a checkpoint keeps of a controller."""
    state = read_checkpoint(checkpoint)
    del state["header"]
    return digest_of(state)
