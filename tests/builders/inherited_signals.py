"""Signals that a process may have inherited as ignored, and would hand on to what it starts."""

import signal

__all__ = ["heed_signals"]


def heed_signals() -> None:
    """End on SIGINT and SIGHUP again, where a shell or nohup has let them be ignored."""
    # A shell lets its background jobs ignore SIGINT.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # So does nohup with SIGHUP.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
