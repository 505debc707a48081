"""Commands of Esper in processes that are forked from one that has torch loaded already."""

import importlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Loaded here, so that every process forked from the first one has them.
import esper.karn.monitor
import esper.simic.training.vectorized  # noqa: F401

__all__ = ["CONTEXT", "run_esper"]

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__])
WAIT_S = 300.0
"""Generous: the machine may be busy."""


def run_esper(
    program: str, *arguments: str, cwd: Path | None = None, path: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run `esper-train` or `esper-telemetry` in a process of its own.

    Starting the interpreter takes most of a short command's time; tests of starting, such as
    `test_startup.py`, execute the command itself.

    Args:
        program: "train" or "telemetry".
        arguments: of the command.
        cwd: the working directory, by default that of this process.
        path: a directory with packages, as in PYTHONPATH.
    """
    with tempfile.TemporaryDirectory() as name:
        streams = Path(name, "stdout"), Path(name, "stderr")
        process = CONTEXT.Process(target=_run, args=(program, arguments, streams, cwd, path))
        process.start()
        process.join(WAIT_S)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired([program, *arguments], WAIT_S)
        assert process.exitcode is not None
        output, errors = (stream.read_text() for stream in streams)
        return subprocess.CompletedProcess([program, *arguments], process.exitcode, output, errors)


def _run(
    program: str,
    arguments: tuple[str, ...],
    streams: tuple[Path, Path],
    cwd: Path | None,
    path: Path | None,
) -> None:
    for number, stream in enumerate(streams, 1):
        with stream.open("wb") as opened:
            os.dup2(opened.fileno(), number)
    if cwd is not None:
        os.chdir(cwd)
    if path is not None:
        sys.path.insert(0, str(path))
        os.environ["PYTHONPATH"] = str(path)  # for the workers
    sys.exit(importlib.import_module(f"esper.scripts.{program}").main(arguments))
