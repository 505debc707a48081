"""A flag that makes every thread stop at its next cancellation point."""

import threading
from collections.abc import Callable
from typing import TypeAlias

from esper.leyline.errors import InterruptedRunError

__all__ = ["CallerEvent", "StopFlag", "beat_at_checkpoints"]

CallerEvent: TypeAlias = threading.Event
"""An event between a run and the thread that called for it: a request to stop, or readiness."""

_LIFE = threading.local()


def beat_at_checkpoints(beat: Callable[[], None]) -> None:
    """Call `beat` at every cancellation point that the current thread passes."""
    _LIFE.beat = beat


class StopFlag:
    """Set once, by a signal or by the caller; checked between batches and minibatches.

    `set` takes no lock, so it is safe to call from a signal handler.
    """

    def __init__(
        self, event: CallerEvent | None = None, *, parent: "StopFlag | None" = None
    ) -> None:
        """Start unset.

        Args:
            event: an event with which the caller can request a stop.
            parent: a flag that sets this one too.
        """
        self._event = threading.Event() if event is None else event
        self._parent = parent
        self._is_asked = False
        self._reason = "a stop was requested"

    @property
    def reason(self) -> str:
        """Return why a stop was requested."""
        if self._parent is not None and self._parent.is_set():
            return self._parent.reason
        return self._reason

    def set(self, reason: str) -> None:
        """Request a stop; only the first reason is reported."""
        if not self.is_set():
            self._reason = reason
            self._is_asked = True

    def is_set(self) -> bool:
        """Return whether a stop was requested."""
        if self._parent is not None and self._parent.is_set():
            return True
        return self._is_asked or self._event.is_set()

    def checkpoint(self) -> None:
        """Raise InterruptedRunError if a stop was requested: a cancellation point.

        A thread blocked on another one calls this repeatedly and so records heartbeats; the
        watchdog then reports the thread that hangs, not the ones waiting for it.
        """
        beat: Callable[[], None] | None = getattr(_LIFE, "beat", None)
        if beat is not None:
            beat()
        if self.is_set():
            raise InterruptedRunError(self.reason)
