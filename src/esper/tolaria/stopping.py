"""One flag that asks every thread to stop at its next cancellation point."""

import threading

from esper.leyline.errors import InterruptedRunError

__all__ = ["StopFlag"]


class StopFlag:
    """Set once, by a signal or by the caller; looked at between batches and minibatches."""

    def __init__(self, event: threading.Event | None = None) -> None:
        self._event = threading.Event() if event is None else event
        self.reason = "told to stop"

    def set(self, reason: str) -> None:
        """Ask for a stop; the first reason given is the one that is told."""
        if not self._event.is_set():
            self.reason = reason
            self._event.set()

    def is_set(self) -> bool:
        """Tell whether a stop was asked for."""
        return self._event.is_set()

    def checkpoint(self) -> None:
        """Raise InterruptedRunError if a stop was asked for: a cancellation point."""
        if self._event.is_set():
            raise InterruptedRunError(self.reason)
