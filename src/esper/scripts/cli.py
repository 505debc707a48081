"""Shared by both commands: error reporting, exit codes, signals and closed pipes."""

import contextlib
import os
import signal
import sys
import threading
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence

from esper.leyline.errors import EsperError, ExitCode, InterruptedRunError
from esper.version import __version__

__all__ = ["Command", "add_version", "explain_interruption", "run_command"]

Command = Callable[[Namespace], int]


def add_version(parser: ArgumentParser) -> None:
    """Add `--version`."""
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")


def run_command(parser: ArgumentParser, argv: Sequence[str] | None) -> int:
    """Parse and run; a failure is reported as one line on stderr and as the exit code.

    Every subcommand stores its function as `command` in the parsed arguments.
    """
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has already printed its error or its help
        return int(stop.code or 0)
    command: Command = arguments.command
    try:
        with _sigterm_as_interrupt():
            code = command(arguments)
        sys.stdout.flush()
    except EsperError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        _redirect_closed_stdout()
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reading end of the pipe was closed (`| head`), which is not a failure.
        _redirect_closed_stdout()
        return int(ExitCode.OK)
    except Exception:
        # A bug in Esper: print the traceback for the bug report.
        traceback.print_exc()
        return int(ExitCode.INTERNAL)
    return code


def _redirect_closed_stdout() -> None:
    """Redirect stdout to devnull if its pipe is closed, since Python flushes it again at exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def explain_interruption(sentence: str) -> Iterator[None]:
    """Report `sentence` if the command is interrupted: what was saved and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedRunError(sentence) from None


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that both run the same cleanup and exit code."""
    # Signal handlers can be set from the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
