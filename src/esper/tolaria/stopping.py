"""One flag that asks every thread to stop at its next cancellation point."""

import threading
from collections.abc import Callable

from esper.leyline.errors import InterruptedRunError

__all__ = ["StopFlag", "beat_at_checkpoints"]

_LIFE = threading.local()


def beat_at_checkpoints(beat: Callable[[], None]) -> None:
    """Let every cancellation point that this thread passes count as a sign of its life."""
    _LIFE.beat = beat


class StopFlag:
    """Set once, by a signal or by the caller; looked at between batches and minibatches.

    No lock is taken to set it, so that a signal handler may do so at any moment.
    """

    def __init__(self, event: threading.Event | None = None) -> None:
        """Start unset.

        Args:
            event: the caller's own way to ask for a stop.
        """
        self._event = threading.Event() if event is None else event
        self._is_asked = False
        self.reason = "told to stop"

    def set(self, reason: str) -> None:
        """Ask for a stop; the first reason given is the one that is told."""
        if not self.is_set():
            self.reason = reason
            self._is_asked = True

    def is_set(self) -> bool:
        """Tell whether a stop was asked for."""
        return self._is_asked or self._event.is_set()

    def checkpoint(self) -> None:
        """Raise InterruptedRunError if a stop was asked for: a cancellation point.

        A thread that waits for another one passes here again and again: it is alive, and whoever
        watches both finds the one that is not.
        """
        beat: Callable[[], None] | None = getattr(_LIFE, "beat", None)
        if beat is not None:
            beat()
        if self.is_set():
            raise InterruptedRunError(self.reason)
