"""Reads the network topologies that a run has recorded in its log."""

from pathlib import Path
from typing import Final

from esper.leyline.errors import EventDecodeError, UnreadableFileError
from esper.leyline.payloads import TopologyManifestRecorded
from esper.leyline.telemetry import EventType, decode_event
from esper.nissa.reading.lines import read_lines
from esper.nissa.reading.run_lookup import find_log

__all__ = ["last_recorded"]

_MARK: Final = EventType.TOPOLOGY_MANIFEST_RECORDED.encode()


def last_recorded(run: Path) -> tuple[TopologyManifestRecorded, ...]:
    """Return the topologies of the last recorded round of a run, in env order."""
    log = find_log(run)
    found: dict[int | None, TopologyManifestRecorded] = {}
    last_round: int | None = None
    for line in read_lines(log):
        # Searching bytes is much faster than decoding, and nearly all lines are of other types.
        if _MARK not in line:
            continue
        try:
            event = decode_event(line)
        except EventDecodeError as error:
            raise UnreadableFileError(log, str(error)) from None
        if isinstance(event.data, TopologyManifestRecorded):
            if event.round != last_round:
                found, last_round = {}, event.round
            found[event.env_id] = event.data
    if not found:
        raise UnreadableFileError(
            log, f"has no {_MARK.decode()}; runs at telemetry level off record no networks"
        )
    return tuple(found.values())
