"""What both commands share: how a failure is told, and how a closed pipe ends quietly."""

import contextlib
import os
import signal
import sys
import threading
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence

from esper import __version__
from esper.leyline.errors import EsperError, ExitCode, InterruptedRunError

__all__ = ["Command", "add_version", "run_command", "told_when_interrupted"]

Command = Callable[[Namespace], int]


def add_version(parser: ArgumentParser) -> None:
    """Add `--version`."""
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")


def run_command(parser: ArgumentParser, argv: Sequence[str] | None) -> int:
    """Parse and run; a failure becomes one sentence on stderr and an exit code.

    Every subcommand stores the function that carries it out as `command`.
    """
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as stop:  # argparse has already said what is wrong, or printed its help
        return int(stop.code or 0)
    command: Command = arguments.command
    try:
        with _told_to_end_as_by_hand():
            code = command(arguments)
        sys.stdout.flush()
    except EsperError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        _leave_stdout_in_order()
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader left (`| head`), which is no failure.
        _leave_stdout_in_order()
        return int(ExitCode.OK)
    except Exception:
        # A bug of ours: whoever reports it needs to know where it is.
        traceback.print_exc()
        return int(ExitCode.INTERNAL)
    return code


def _leave_stdout_in_order() -> None:
    """Point stdout at nothing if its reader has left: Python flushes it at exit, and complains."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def told_when_interrupted(sentence: str) -> Iterator[None]:
    """Say what an interrupted command leaves behind and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedRunError(sentence) from None


@contextlib.contextmanager
def _told_to_end_as_by_hand() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, so that both put away what they find and exit alike."""
    # Signals reach the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
