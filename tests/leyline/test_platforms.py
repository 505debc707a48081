"""Systems that lack what POSIX has: everything can be imported, and commands say what is missing.

Such a system is imitated in a fresh interpreter, by hiding what Windows does not have.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import esper
from esper.leyline.errors import UsageError
from esper.leyline.platforms import check_platform, lock_file, optional_module

ROOT = Path(esper.__file__).parent
LIKE_WINDOWS = """
import os, signal, sys
sys.modules.update(dict.fromkeys(("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty")))
for name in ("SIGHUP", "SIGKILL", "SIGALRM", "pthread_sigmask"):
    delattr(signal, name)
for name in ("pread", "pwrite", "setsid", "nice", "fork", "O_NONBLOCK", "O_NOFOLLOW", "O_CLOEXEC"):
    delattr(os, name)
"""


def run_like_windows(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", LIKE_WINDOWS + code],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_every_module_can_be_imported() -> None:
    names = [
        ".".join(("esper", *path.relative_to(ROOT).with_suffix("").parts))
        for path in sorted(ROOT.rglob("*.py"))
        # A sink imports the library of its extra, which may have needs of its own.
        if path.name != "__init__.py" and not path.name.endswith("_sink.py")
    ]
    # torch itself uses some of what is hidden, so it is loaded first.
    code = f"import importlib\nfor name in {names!r}: importlib.import_module(name)\n"
    done = subprocess.run(
        [sys.executable, "-c", f"import torch, numpy, asyncio, uvicorn\n{LIKE_WINDOWS}{code}"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["train", "telemetry"])
def test_command_says_what_it_needs(module: str) -> None:
    code = f"import esper.scripts.{module} as command\nsys.exit(command.main(sys.argv[1:]))"
    arguments = {"train": ["tasks"], "telemetry": ["runs"]}[module]
    done = run_like_windows(code.replace("sys.argv[1:]", repr(arguments)))
    assert done.returncode == 2
    assert done.stderr.endswith("on Windows, use the Windows Subsystem for Linux\n")
    assert "Traceback" not in done.stderr


def test_help_works_everywhere() -> None:
    done = run_like_windows("import esper.scripts.train as c\nsys.exit(c.main(['ppo', '--help']))")
    assert done.returncode == 0, done.stderr
    assert "--rounds" in done.stdout


def test_lock_is_refused_without_a_module_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert optional_module("no_such_module") is None
    check_platform()
    monkeypatch.setattr("esper.leyline.platforms._fcntl", None)
    with pytest.raises(UsageError, match="needs Linux or macOS"):
        lock_file(0)
