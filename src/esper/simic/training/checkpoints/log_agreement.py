"""Whether a checkpoint and the log that it refers to describe the same point of a run."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from esper.leyline.errors import UnreadableFileError
from esper.leyline.telemetry import EVENT_SPECS, EventType, TelemetryLevel
from esper.nissa.storage.journal import LogCut
from esper.simic.training.checkpoints.checkpointer import CheckpointHeader

__all__ = ["check_agreement"]


class _Place(msgspec.Struct, gc=False):
    """Where in a run an event belongs."""

    event_type: str
    round: int | None = None


def check_agreement(path: Path, header: CheckpointHeader, log: Path, cut: LogCut) -> None:
    """Reject a checkpoint whose last round does not end with the event that it names.

    Args:
        path: the checkpoint.
        header: its header.
        log: the log of its run.
        cut: the log up to the event that the checkpoint names, and the rest.
    """
    level = TelemetryLevel.named(header.job.training.telemetry.level)
    if EVENT_SPECS[EventType.BATCH_EPOCH_COMPLETED].level > level:
        return  # this log does not contain the ends of rounds
    num_rounds = header.state.rounds_completed
    num_ended = _num_rounds_ended(log, cut)
    next_round = _place_of(log, cut.redone.partition(b"\n")[0]).round if cut.redone else None
    is_within = next_round is not None and next_round < num_rounds
    if num_ended != num_rounds or is_within:
        where = f"within round {num_rounds}" if is_within else f"after {num_ended} rounds"
        raise UnreadableFileError(
            path,
            f"was saved after {num_rounds} rounds, but its event {header.log_seq} is {where} in "
            f"{log}; resume another checkpoint",
        )


def _num_rounds_ended(log: Path, cut: LogCut) -> int:
    """Return the number of rounds up to the cut, from the last events before it."""
    for line in _lines_backwards(log, cut):
        place = _place_of(log, line)
        if place.event_type == EventType.BATCH_EPOCH_COMPLETED and place.round is not None:
            return place.round + 1
    return 0


def _lines_backwards(log: Path, cut: LogCut) -> Iterator[bytes]:
    with log.open("rb") as file:
        for record in reversed(cut.records):
            file.seek(record.start)
            yield from reversed(file.read(record.end - record.start).splitlines())


def _place_of(log: Path, line: bytes) -> _Place:
    try:
        return msgspec.json.decode(line, type=_Place)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableFileError(log, f"contains a line that is no event: {error}") from None
