"""Exit codes, one-line errors, closed pipes and SIGTERM, for any command."""

import subprocess
import sys
import threading
from argparse import ArgumentParser, Namespace

import pytest

from esper.leyline.errors import ExitCode, InterruptedRunError, UsageError
from esper.scripts.cli import Command, add_version, explain_interruption, run_command
from esper.version import __version__


def parser_of(command: Command) -> ArgumentParser:
    parser = ArgumentParser(prog="tool")
    add_version(parser)
    parser.add_argument("--number", type=int, default=0)
    parser.set_defaults(command=command)
    return parser


def failing(error: BaseException) -> Command:
    def command(_: Namespace) -> int:
        raise error

    return command


def number_of(arguments: Namespace) -> int:
    return arguments.number


def test_exit_code_is_that_of_the_command() -> None:
    assert run_command(parser_of(number_of), ["--number", "3"]) == 3


@pytest.mark.parametrize(
    ("argv", "code"), [(["--help"], 0), (["--version"], 0), (["--nonsense"], 2), (["--number"], 2)]
)
def test_parser_decides_before_the_command_runs(argv: list[str], code: int) -> None:
    assert run_command(parser_of(failing(AssertionError("must not run"))), argv) == code


def test_version_names_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    run_command(parser_of(number_of), ["--version"])
    assert capsys.readouterr().out == f"tool {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UsageError("no such thing; name another"), 2, "tool: no such thing; name another\n"),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, ""),
        (BrokenPipeError(), ExitCode.OK, ""),
        (PermissionError(13, "Permission denied", "/x"), 2, "tool: /x: Permission denied\n"),
        (OSError(36, "File name too long", "y"), 2, "tool: y: File name too long\n"),
    ],
)
def test_failure_is_one_line_and_a_code(
    error: BaseException, code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(parser_of(failing(error)), []) == code
    assert capsys.readouterr().err == text


def test_bug_is_reported_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(parser_of(failing(ZeroDivisionError("a bug"))), []) == ExitCode.INTERNAL
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "a bug" in shown


def test_interruption_is_explained_and_other_errors_pass() -> None:
    with (
        pytest.raises(InterruptedRunError, match="run it again"),
        explain_interruption("run it again"),
    ):
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="other"), explain_interruption("run it again"):
        raise ValueError("other")


_CLEANS_UP = """
import os, signal, sys
from argparse import ArgumentParser
from esper.scripts.cli import interruptible, run_command

def command(_):
    with interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            print("cleaned up")
    return 0

parser = ArgumentParser(prog="tool")
parser.set_defaults(command=command)
before = signal.getsignal(signal.SIGTERM)
code = run_command(parser, [])
print("restored" if signal.getsignal(signal.SIGTERM) is before else "not restored")
sys.exit(code)
"""


def test_sigterm_ends_a_command_like_ctrl_c_and_the_handler_is_restored() -> None:
    # In a process of its own: where no handler is set, the signal would end the test's.
    ended = subprocess.run(
        [sys.executable, "-c", _CLEANS_UP], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (ExitCode.INTERRUPTED, "")
    assert ended.stdout.splitlines() == ["cleaned up", "restored"]


def test_command_runs_outside_the_main_thread_too() -> None:
    codes: list[int] = []
    thread = threading.Thread(
        target=lambda: codes.append(run_command(parser_of(number_of), ["--number", "4"]))
    )
    thread.start()
    thread.join(20)
    assert codes == [4]


_PRINTS = """
import sys
from argparse import ArgumentParser
from esper.scripts.cli import run_command
parser = ArgumentParser(prog="tool")
parser.set_defaults(command=lambda _: print("x" * 1_000_000) or 0)
sys.exit(run_command(parser, []))
"""


def test_reader_that_leaves_early_gets_no_traceback() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _PRINTS], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.read(1) == b"x"
    child.stdout.close()
    assert child.stderr is not None
    with child.stderr:
        assert child.stderr.read() == b""
    assert child.wait(20) == 0
