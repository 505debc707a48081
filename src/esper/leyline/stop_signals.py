"""The signals that ask a process to stop, and what a repeated one means."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from esper.leyline.errors import ExitCode

__all__ = ["STOP_SIGNALS", "handled_signals", "on_stop_signal"]

_NAMES: Final = ("SIGINT", "SIGTERM", "SIGHUP")
STOP_SIGNALS: Final[tuple[signal.Signals, ...]] = tuple(
    getattr(signal, name) for name in _NAMES if hasattr(signal, name)
)
"""Windows has no SIGHUP."""
SAME_REQUEST_S: Final = 0.2
"""A signal within this time after the first one repeats it: shells and terminals send several."""


@dataclass(eq=False, slots=True)
class _Handler:
    """Reports the first signal; a later one ends the process at once."""

    on_first: Callable[[signal.Signals], None]
    _first_s: float | None = None

    def __call__(self, number: int, _: object) -> None:
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
            self.on_first(signal.Signals(number))
        elif now_s - self._first_s > SAME_REQUEST_S:
            os._exit(ExitCode.INTERRUPTED)


@contextlib.contextmanager
def on_stop_signal(on_first: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call `on_first` for the first stop signal inside the block; a second one exits at once.

    Outside the main thread, which alone receives signals, the block runs unchanged.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = _Handler(on_first)
    previous = {number: signal.signal(number, handler) for number in handled_signals()}
    try:
        yield
    finally:
        for number, former in previous.items():
            signal.signal(number, former)


def handled_signals() -> tuple[signal.Signals, ...]:
    """Return the stop signals, without a hang-up that `nohup` has made the process ignore."""
    return tuple(
        item
        for item in STOP_SIGNALS
        if item.name != "SIGHUP" or signal.getsignal(item) is not signal.SIG_IGN
    )
