"""Shared by both commands: error reporting, exit codes, signals and closed pipes."""

import contextlib
import os
import signal
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from esper.leyline.errors import EsperError, ExitCode, InterruptedRunError
from esper.leyline.stop_signals import on_stop_signal
from esper.version import __version__

__all__ = ["Command", "add_version", "explain_interruption", "interruptible", "run_command"]

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
        code = command(arguments)
        sys.stdout.flush()
    except EsperError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        _leave_stdout_in_order()
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reading end of the pipe was closed (`| head`), which is not a failure.
        _leave_stdout_in_order()
        return int(ExitCode.OK)
    except Exception:
        # A bug in Esper: print the traceback for the bug report.
        traceback.print_exc()
        return int(ExitCode.INTERNAL)
    return code


def _leave_stdout_in_order() -> None:
    """Redirect stdout to devnull if its pipe is closed, since Python flushes it again at exit."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt at a signal, for a command that has something to clean up.

    Everything that the command imports must be loaded by then: see `startup.prepare_process`.
    """
    with on_stop_signal(_raise_interrupt):
        yield


def _raise_interrupt(_: signal.Signals) -> NoReturn:
    raise KeyboardInterrupt


@contextlib.contextmanager
def explain_interruption(sentence: str) -> Iterator[None]:
    """Report `sentence` if the command is interrupted: what was saved and how to continue."""
    try:
        with interruptible():
            yield
    except KeyboardInterrupt:
        raise InterruptedRunError(sentence) from None
