"""Descriptors, home, user, locale, terminal sizes and -OO: right exit code and a valid log."""

import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.builders.tiny_runs import short_run
from tests.builders.tiny_tasks import TINY
from tools.bench.rows import Row

from esper.leyline.errors import ExitCode
from esper.nissa.analysis.validation import validate_run

WAIT_S = 600.0
SMALL = ("--task", "digits", "--rounds", "1", "--envs", "1", "--episode-length", "1")
UNKNOWN_USER = ("unshare", "--user", "--map-user=54321")


@dataclass(frozen=True)
class Case:
    """What is unusual about the surroundings of a command."""

    name: str
    redirection: str = ""
    """Of the shell."""
    environment: dict[str, str | None] = field(default_factory=dict)
    """None removes a variable."""
    python_flags: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()
    """A command that runs the command."""
    terminal: tuple[int, int] | None = None
    """Lines and columns; None is no terminal."""
    reading_code: int = ExitCode.OK
    """How a reading command ends, whose output is its purpose."""


NO_HOME: dict[str, str | None] = {"HOME": None, "XDG_CACHE_HOME": None}
CASES = (
    Case("nothing unusual"),
    Case("stdin closed", "<&-"),
    Case("stdout closed", ">&-"),
    Case("stderr closed", "2>&-"),
    Case("all closed", "<&- >&- 2>&-"),
    Case("stdout full", ">/dev/full", reading_code=ExitCode.FAILED),
    Case("stderr full", "2>/dev/full"),
    Case("both full", ">/dev/full 2>/dev/full", reading_code=ExitCode.FAILED),
    Case("stdin full", "</dev/full"),
    Case("stdout is a pipe that nobody reads", "| true"),
    Case("no HOME", environment=NO_HOME),
    Case("unknown user without HOME", environment=NO_HOME, prefix=UNKNOWN_USER),
    Case("HOME that cannot be written", environment={"HOME": "/proc/1", "XDG_CACHE_HOME": None}),
    Case("locale C", environment={"LC_ALL": "C", "LANG": "C"}),
    Case("locale that does not exist", environment={"LC_ALL": "xx_YY.UTF-8"}),
    Case("ASCII streams", environment={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}),
    Case("no environment", environment=dict.fromkeys(os.environ)),
    Case("-O", python_flags=("-O",)),
    Case("-OO", python_flags=("-OO",)),
    Case("-OO, stderr closed", "2>&-", python_flags=("-OO",)),
    Case("terminal", terminal=(24, 80)),
    Case("terminal without a size", terminal=(0, 0)),
    Case("terminal of one place", terminal=(1, 1)),
    Case("small terminal", terminal=(5, 20)),
    Case("large terminal", terminal=(300, 1000)),
    Case("dumb terminal", environment={"TERM": "dumb"}, terminal=(24, 80)),
)


def is_possible(case: Case) -> bool:
    """Return whether this machine can make the surroundings of a case."""
    if case.prefix != UNKNOWN_USER:
        return True
    if shutil.which(UNKNOWN_USER[0]) is None:
        return False
    tried = subprocess.run([*UNKNOWN_USER, "true"], capture_output=True, check=False)
    return tried.returncode == 0


def check_training(folder: Path, case: Case) -> None:
    """Train in unusual surroundings; assert that it completes with a valid log."""
    telemetry_dir = folder / "runs"
    shutil.rmtree(telemetry_dir, ignore_errors=True)
    arguments = ("esper.scripts.train", "wait", *SMALL, "--telemetry-dir", str(telemetry_dir))
    code, output = _run(case, arguments)
    assert "Traceback" not in output, f"{case.name}: {output}"
    assert code == ExitCode.OK, f"{case.name}: exit code {code}: {output}"
    [run_dir] = telemetry_dir.glob("*_*")
    found = validate_run(run_dir)
    assert found.is_valid, f"{case.name}: {found.findings}"


def check_reading(run_dir: Path, case: Case) -> None:
    """Read a run in unusual surroundings; assert the right exit code."""
    for command in ("count", "validate", "tail"):
        code, output = _run(case, ("esper.scripts.telemetry", command, str(run_dir)))
        assert "Traceback" not in output, f"{case.name}: {command}: {output}"
        assert code == case.reading_code, f"{case.name}: {command}: exit code {code}: {output}"


def _run(case: Case, arguments: Sequence[str]) -> tuple[int, str]:
    changed = os.environ | {name: value for name, value in case.environment.items() if value}
    removed = {name for name, value in case.environment.items() if value is None}
    environment = {name: value for name, value in changed.items() if name not in removed}
    python = [*case.prefix, sys.executable, *case.python_flags, "-m", *arguments]
    # The exit code of a pipeline is that of its first command.
    script = f'set -o pipefail; "$@" {case.redirection}'
    command = ["bash", "-c", script, "bash", *python]
    if case.terminal is not None:
        return _run_on_terminal(command, environment, case.terminal)
    ended = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    return ended.returncode, ended.stdout


def _run_on_terminal(
    command: Sequence[str], environment: dict[str, str], size: tuple[int, int]
) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    for name in ("LINES", "COLUMNS"):
        environment.pop(name, None)
    process = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    output = bytearray()
    try:
        while piece := os.read(ours, 1 << 16):
            output += piece
    except OSError:  # how a terminal tells that its other side was closed
        pass
    finally:
        os.close(ours)
    return process.wait(WAIT_S), output.decode(errors="replace")


def rows(is_quick: bool) -> Iterator[Row]:
    """Run commands in unusual surroundings: row L12."""
    cases = [case for case in CASES[:: 5 if is_quick else 1] if is_possible(case)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_dir = short_run(folder / "read", TINY)
        for case in cases:
            check_training(folder, case)
            check_reading(run_dir, case)
    yield Row(
        name="L12 surroundings, right exit code and a valid log",
        measured=len(cases),
        target=len(cases),
        unit="cases",
        is_at_least=True,
        note="a run and three reading commands each: streams closed or full, no HOME, unknown "
        "user, locales, terminal sizes, -O, -OO",
    )
