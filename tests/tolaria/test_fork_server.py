"""Processes forked from one that has imported what they need."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from esper.leyline.errors import RunFailedError
from esper.tolaria import fork_server
from esper.tolaria.fork_server import ForkServer

WAIT_S = 30.0


def echo(descriptors: Sequence[int]) -> int:
    """Send back what arrives with the process id, then end with the number of messages."""
    with socket.socket(fileno=descriptors[0]) as end:
        num_messages = 0
        while data := end.recv(100):
            end.sendall(data + b" %d" % os.getpid())
            num_messages += 1
    return num_messages


def sleep_for_ever(descriptors: Sequence[int]) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)


@pytest.fixture
def server() -> Iterator[ForkServer]:
    server = ForkServer(f"{__name__}:echo")
    yield server
    server.close()


def forked(server: ForkServer) -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair()
    ours.settimeout(WAIT_S)
    with theirs:
        return ours, server.fork([theirs.fileno()])


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pid: int) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while is_alive(pid):
        assert time.monotonic() < deadline_s, f"process {pid} is still there"
        time.sleep(0.01)


def test_forks_are_separate_processes_that_inherit_their_descriptors(server: ForkServer) -> None:
    first, first_pid = forked(server)
    second, second_pid = forked(server)
    with first, second:
        for end, pid in ((first, first_pid), (second, second_pid)):
            end.sendall(b"hello")
            assert end.recv(100) == b"hello %d" % pid
    assert len({first_pid, second_pid, os.getpid()}) == 3
    assert server.reap(first_pid) == "exited with code 1"
    assert server.reap(second_pid) == "exited with code 1"


def test_a_killed_fork_is_told_from_one_that_ended(server: ForkServer) -> None:
    end, pid = forked(server)
    with end:
        os.kill(pid, signal.SIGKILL)
        assert end.recv(100) == b""
    assert server.reap(pid) == "was killed by SIGKILL"


def test_closing_the_server_ends_it_and_its_forks(server: ForkServer) -> None:
    end, pid = forked(server)
    with end:
        server.close()
        wait_until_gone(pid)
    # It starts again when it is needed.
    end, pid = forked(server)
    end.close()
    assert server.reap(pid) == "exited with code 0"


def test_a_server_that_hangs_in_its_imports_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(fork_server, "START_TIMEOUT_S", 0.5)
    server = ForkServer("hanging:run")
    server.start()
    assert server._process is not None
    pid = server._process.pid
    with pytest.raises(RunFailedError, match="importing what they need takes more than"):
        server.fork([])
    assert not is_alive(pid)


_DRIVER = f"""
import os, signal, socket, sys, time
from esper.leyline.errors import RunFailedError
from esper.tolaria import fork_server
from esper.tolaria.fork_server import ForkServer

server = ForkServer("{__name__}:sleep_for_ever")
ours, theirs = socket.socketpair()
print(server.fork([theirs.fileno()]), server._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_forks_end_with_a_driver_that_was_killed() -> None:
    driver = subprocess.Popen([sys.executable, "-c", _DRIVER], stdout=subprocess.PIPE)
    assert driver.stdout is not None
    with driver.stdout:
        pids = [int(text) for text in driver.stdout.readline().split()]
    assert driver.wait(WAIT_S) == -signal.SIGKILL

    for pid in pids:
        wait_until_gone(pid)
