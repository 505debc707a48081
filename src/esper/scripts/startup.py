"""The first code of both commands: standard streams and signal handlers, before anything loads.

Imports nothing that the interpreter has not loaded by itself, so that no signal arrives before
there is a handler for it.
"""

import _signal  # type: ignore[import-not-found]  # built in; `signal` takes milliseconds to load
import atexit
import os
import sys

__all__ = ["end_process", "prepare_process"]

_INTERRUPTED = 130
"""`ExitCode.INTERRUPTED`, which would have to be imported."""
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
"""Windows has no SIGHUP."""


def prepare_process() -> None:
    """Open closed standard streams, and let signals end the process at once.

    Nothing has been made that would need cleaning up, and an exception raised inside the import of
    an extension module would leave it half loaded. Code that has something to clean up sets
    handlers of its own.
    """
    try:
        _open_standard_streams()
        _handle_signals(_INTERRUPTED)
        # numpy would start a thread for linear algebra that Esper never does. A process with a
        # single thread can make signals wait (`tolaria/ray_cluster.py`).
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # Registered first, so called last.
        atexit.register(_ignore_signals)
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)


def end_process(code: int) -> int:
    """Return the exit code; from now on a signal ends the process with it, as all is done."""
    import gc  # built in; the others are loaded by now

    _handle_signals(code)
    _discard_unwritten()
    # Else the interpreter searches all modules for garbage before it ends: half a second of CPU
    # time with torch loaded. DuckDB complains of objects that are left.
    if "duckdb" not in sys.modules:
        gc.freeze()
    return code


def _discard_unwritten() -> None:
    """Discard what a full disk did not take; else Python would exit with code 120."""
    for stream, descriptor in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _handle_signals(code: int) -> None:
    for name in _SIGNALS:
        number = getattr(_signal, name, None)
        # `nohup` says with SIG_IGN that a hang-up ends nothing.
        is_detached = name == "SIGHUP" and number and _signal.getsignal(number) == _signal.SIG_IGN
        if number is not None and not is_detached:
            _signal.signal(number, _Exit(code))


class _Exit:
    """A signal handler that ends the process."""

    def __init__(self, code: int) -> None:
        self._code = code

    def __call__(self, number: int, frame: object) -> None:
        os._exit(self._code)


def _ignore_signals() -> None:
    """Ignore signals in the interpreter's last moments, when no handler is called any more."""
    for name in _SIGNALS:
        if hasattr(_signal, name):
            _signal.signal(getattr(_signal, name), _signal.SIG_IGN)


def _open_standard_streams() -> None:
    """Open the null device in place of closed streams; else a log would become descriptor 2."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free descriptor is this one, as those below it are open.
            os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY)
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 - for good
