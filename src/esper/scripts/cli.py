"""Shared by both commands: error reporting, exit codes, signals and closed pipes."""

import contextlib
import signal
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NoReturn

from esper.leyline.errors import EsperError, ExitCode, InterruptedRunError, nearest_name
from esper.leyline.platforms import check_platform
from esper.leyline.printable import printable
from esper.leyline.stop_signals import on_stop_signal
from esper.scripts.terminal import discard_output, dispensable_output
from esper.version import __version__

__all__ = [
    "Command",
    "CommandParser",
    "add_version",
    "explain_interruption",
    "interruptible",
    "run_command",
]

_SYNONYMS: Final = {
    "--epochs": ("--rounds", "--episode-length"),
    "--steps": ("--episode-length",),
    "--episodes": ("--rounds",),
    "--learning-rate": ("--lr",),
    "--num-envs": ("--envs",),
    "--output": ("--telemetry-dir",),
    "--log-dir": ("--telemetry-dir",),
    "--checkpoint": ("--resume",),
}
"""What others call these flags."""

Command = Callable[[Namespace], int]


class CommandParser(ArgumentParser):
    """A parser whose messages contain what was typed, or a file's name, escaped."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Parse, and report unknown arguments here: this parser knows what could be meant."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._hint(unknown[0])}")
        return known, unknown

    def _hint(self, unknown: str) -> str:
        name = unknown.partition("=")[0]
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        meant = [flag for flag in _SYNONYMS.get(name, ()) if flag in flags]
        nearest = nearest_name(name, flags) if name.startswith("--") else None
        guesses = meant or ([] if nearest is None else [nearest])
        return f"; did you mean {' or '.join(guesses)}?" if guesses else ""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and exit."""
        super().error(printable(message))


def add_version(parser: ArgumentParser) -> None:
    """Add `--version`."""
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")


def run_command(parser: ArgumentParser, argv: Sequence[str] | None) -> int:
    """Parse and run; a failure is reported as one line on stderr and as the exit code.

    Every subcommand stores its function as `command` in the parsed arguments.
    """
    try:
        arguments = parser.parse_args(argv)
    # `main` returns its code, so that tests and other programs can call it.
    except SystemExit as stop:  # argparse has already printed its error or its help
        return int(stop.code or 0)
    command: Command = arguments.command
    try:
        check_platform()
        code = command(arguments)
        sys.stdout.flush()
    except EsperError as error:
        _complain(f"{parser.prog}: {error}")
        _leave_stdout_in_order()
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reading end of the pipe was closed (`| head`), which is not a failure.
        discard_output()
        return int(ExitCode.OK)
    except OSError as error:
        return _explain(error, parser.prog)
    except Exception:
        return _report_bug()
    return code


def _explain(error: OSError, program: str) -> int:
    """Report a path that the system refuses, or a standard output that fails."""
    if error.filename is not None:  # such as a name that is too long, or forbidden
        _complain(f"{program}: {error.filename}: {error.strerror}")
        _leave_stdout_in_order()
        return int(ExitCode.USAGE)
    _complain(f"{program}: cannot write to standard output: {error.strerror}")
    discard_output()
    return int(ExitCode.FAILED)


def _complain(sentence: str) -> None:
    with contextlib.suppress(OSError):  # a full disk behind stderr changes no exit code
        print(printable(sentence), file=sys.stderr)


def _report_bug() -> int:
    """Print the traceback of a bug in Esper for the bug report."""
    with contextlib.suppress(OSError):
        traceback.print_exc()
    return int(ExitCode.INTERNAL)


def _leave_stdout_in_order() -> None:
    with dispensable_output():
        pass


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
