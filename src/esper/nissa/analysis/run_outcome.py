"""What a run reached: how it ended, and the accuracy and return of its last round."""

from pathlib import Path

import msgspec

from esper.leyline.errors import EventDecodeError
from esper.leyline.payloads import BatchEpochCompleted, RunFinished
from esper.leyline.telemetry import decode_event
from esper.nissa.reading.log_ends import read_ends

__all__ = ["RunOutcome", "read_outcome"]


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run reached; None where its log does not say."""

    status: str | None = None
    rounds_completed: int | None = None
    accuracy_pct: float | None = None
    """Mean validation accuracy of the last finished round."""
    best_accuracy_pct: float | None = None
    task_return: float | None = None
    """Mean task return of the last finished round."""


def read_outcome(log: Path) -> RunOutcome:
    """Read the outcome from the end of a log; a compressed one says nothing."""
    outcome = RunOutcome()
    for line in read_ends(log, 1):
        try:
            event = decode_event(line)
        except EventDecodeError:
            continue  # a foreign or damaged log is compared by its lines
        match event.data:
            case BatchEpochCompleted() as data:
                outcome = msgspec.structs.replace(
                    outcome,
                    rounds_completed=(event.round or 0) + 1,
                    accuracy_pct=data.mean_accuracy_pct,
                    task_return=data.mean_task_return,
                )
            case RunFinished() as data:
                outcome = msgspec.structs.replace(
                    outcome,
                    status=data.status,
                    rounds_completed=data.rounds_completed,
                    best_accuracy_pct=data.best_accuracy_pct,
                )
    return outcome
