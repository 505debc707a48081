"""The process of one sink of a run: follows the log, so that nothing of it can reach the run.

Started by `sink_process.py` with a connection to the run, the run's directory and the sink. The
run shuts its side down when the log is complete; the process then delivers the rest and ends. If
the run is killed, it delivers what is in the log.
"""

import contextlib
import os
import select
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from esper.leyline.errors import reason_of
from esper.leyline.helper_processes import yield_to_run
from esper.leyline.sink_reports import SinkDone, SinkFailure, SinkPosition, SinkReport
from esper.nissa.reading.lines import LOG_NAME
from esper.nissa.sinks.delivery import open_delivery
from esper.nissa.sinks.registry import parse_sink

__all__ = ["main"]

MAX_REASON_CHARS: Final = 500

_ENCODER: Final = msgspec.json.Encoder()


@dataclass(eq=False, slots=True)
class _Link:
    """The connection to the run."""

    connection: socket.socket
    parent: int
    _is_complete: bool = False

    def pause(self, seconds: float) -> bool:
        """Wait for the end of the run, or for a time; return whether the log was complete before.

        What was written between the last read and the end of the run is read once more.
        """
        if self._is_complete:
            return True
        readable, _, _ = select.select([self.connection], [], [], seconds)
        # Beside the end of the connection, whose other end a child of the run may have inherited.
        self._is_complete = bool(readable) or os.getppid() != self.parent
        return False

    def note(self, next_seq: int) -> None:
        """Report a position."""
        self.report(SinkPosition(next_seq=next_seq))

    def report(self, report: SinkReport) -> None:
        """Send a report; a run that is gone needs none."""
        with contextlib.suppress(OSError):
            self.connection.sendall(_ENCODER.encode(report) + b"\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Deliver the log of a run; arguments: descriptor, process of the run, directory, sink."""
    descriptor, parent, run_dir, sink = sys.argv[1:] if argv is None else argv
    link = _Link(socket.socket(fileno=int(descriptor)), int(parent))
    yield_to_run()
    try:
        delivery = open_delivery(Path(run_dir) / LOG_NAME, parse_sink(sink), is_continued=True)
        delivery.pause, delivery.note = link.pause, link.note
        link.note(delivery.next_seq)
        delivery.run()
        link.report(SinkDone())
    except Exception as error:  # a sink may raise anything; the run reports it
        link.report(SinkFailure(reason=reason_of(error)[:MAX_REASON_CHARS]))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
