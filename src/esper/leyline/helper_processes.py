"""Processes beside a run, such as its live server: how they start, yield to the run, and end."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from esper.leyline.stop_signals import STOP_SIGNALS

__all__ = ["ended", "ending_text", "shielded_from_signals", "yield_to_run"]

NICENESS: Final = 10
"""Under load, the run's threads get nine times the share of a core that a helper gets."""
OOM_SCORE: Final = "500"
"""The kernel ends a helper before the run if memory runs out."""
SHIELDED_SIGNALS: Final = STOP_SIGNALS
"""Sent to all processes of a terminal or a service; a helper still has to handle the end."""


@contextlib.contextmanager
def shielded_from_signals() -> Iterator[None]:
    """Block signals in this thread, and for good in a process that is started meanwhile."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, SHIELDED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def yield_to_run() -> None:
    """Leave processor and memory to the run and its workers, where they compete with this process.

    Threads inherit the priority of the one that starts them, so this comes before any is started.
    """
    # Where Linux groups processes automatically, it divides the processor between sessions first,
    # and niceness counts within one only. Worker processes have a session of their own: a helper
    # in the run's session could take half of the processor from them.
    os.setsid()
    os.nice(NICENESS)
    for name, value in (("autogroup", str(NICENESS)), ("oom_score_adj", OOM_SCORE)):
        with contextlib.suppress(OSError):
            Path("/proc/self", name).write_text(value)


def ended(process: "subprocess.Popen[bytes]", limit_s: float) -> int:
    """Return the exit code of a process, which is killed after a time."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def ending_text(code: int) -> str:
    """Say how a process ended."""
    return f"ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
