"""`esper-train --serve` in a process of its own, and clients that the project did not write."""

import http.client
import json
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.sync.client import connect
from websockets.uri import parse_uri

NUM_BEGUN = 20
"""Events of a run that has begun."""
WAIT_S = 60.0
SMALL = ("--rounds", "1", "--envs", "2", "--episode-length", "4", "--lanes", "1")
ENDLESS = ("--rounds", "100000", "--envs", "2", "--episode-length", "4", "--lanes", "1")


class ServedRun:
    """A run that was started by the command and serves its telemetry on loopback."""

    def __init__(self, telemetry_dir: Path, *flags: str, command: str = "ppo") -> None:
        self._telemetry_dir = telemetry_dir
        arguments = ["--telemetry-dir", str(telemetry_dir), "--serve", "127.0.0.1:0", *flags]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "esper.scripts.train", command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[-1]
        self.netloc = self.address.split("/")[2]
        self.port = int(self.netloc.rpartition(":")[2])

    @property
    def run_dir(self) -> Path:
        (found,) = self._telemetry_dir.iterdir()
        return found

    def num_logged(self) -> int:
        """Count the lines of the log, which may not exist yet."""
        logs = self._telemetry_dir.glob("*/events.jsonl")
        return sum(log.read_bytes().count(b"\n") for log in logs)

    def log_lines(self) -> list[str]:
        return (self.run_dir / "events.jsonl").read_text().splitlines()

    def wait(self) -> "EndedRun":
        assert self.process.stdout is not None
        # Not by `communicate`: it would miss what the first line's reading has buffered.
        output = self.process.stdout.read()
        _, errors = self.process.communicate(timeout=WAIT_S)
        return EndedRun(self.process.returncode, output, errors)


@dataclass(frozen=True)
class EndedRun:
    """How a process ended."""

    code: int
    output: str
    errors: str


@contextmanager
def served_run(telemetry_dir: Path, *flags: str, command: str = "ppo") -> Iterator[ServedRun]:
    run = ServedRun(telemetry_dir, *flags, command=command)
    try:
        yield run
    finally:
        run.process.kill()
        run.process.communicate(timeout=WAIT_S)


@dataclass(eq=False)
class Received:
    """What a websocket client got until its connection was closed."""

    lines: list[str] = field(default_factory=list)
    close_code: int | None = None
    close_reason: str | None = None

    @property
    def types(self) -> list[str]:
        return [json.loads(line)["event_type"] for line in self.lines]


def receive_all(run: ServedRun, received: Received, has_events: threading.Event) -> None:
    """Read the live tail of a run to its end with the websockets library's own client."""
    with connect(f"ws://{run.netloc}/ws", open_timeout=WAIT_S) as connection:
        connection.send(json.dumps({"since": 0}))
        is_subscribed = False
        try:
            while True:
                message = str(connection.recv(timeout=WAIT_S))
                if "event_type" not in json.loads(message):
                    is_subscribed = json.loads(message)["is_subscribed"]
                elif is_subscribed:
                    received.lines.append(message)
                    has_events.set()
        except ConnectionClosed as closed:
            assert closed.rcvd is not None, "the connection was lost without a close frame"
            received.close_code, received.close_reason = closed.rcvd.code, closed.rcvd.reason


def suspend(run: ServedRun) -> None:
    """Suspend a run that has begun, so that it cannot end before its visitors are connected.

    Its server, which is a process of its own, goes on.
    """
    deadline_s = time.monotonic() + WAIT_S
    # More than the first block, so that the server knows of some events.
    while run.num_logged() < NUM_BEGUN:
        assert time.monotonic() < deadline_s, "the run has not begun"
        time.sleep(0.01)
    run.process.send_signal(signal.SIGSTOP)


def resume(run: ServedRun) -> None:
    """Let a suspended run continue."""
    run.process.send_signal(signal.SIGCONT)


@contextmanager
def listening(run: ServedRun) -> Iterator[Received]:
    """Receive in a thread, from before the body is entered; the body ends the run."""
    received, has_events = Received(), threading.Event()
    thread = threading.Thread(target=receive_all, args=(run, received, has_events), daemon=True)
    thread.start()
    assert has_events.wait(WAIT_S), "no event came"
    yield received
    thread.join(WAIT_S)
    assert not thread.is_alive(), "the server never closed the connection"


@contextmanager
def tailing(run: ServedRun) -> Iterator["subprocess.Popen[str]"]:
    """Follow a run with `esper-telemetry tail`, in a process of its own."""
    command = [sys.executable, "-m", "esper.scripts.telemetry", "tail"]
    process = subprocess.Popen(
        [*command, f"ws://{run.netloc}/ws", "--since", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], WAIT_S)[0], "no event came"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)


class HeldClient:
    """A client that answers the server's close frame only when it is asked to.

    The protocol is the websockets library's, without its input and output.
    """

    def __init__(self, run: ServedRun) -> None:
        self._protocol = ClientProtocol(parse_uri(f"ws://{run.netloc}/ws"))
        self._socket = socket.create_connection(("127.0.0.1", run.port), timeout=WAIT_S)
        self._protocol.send_request(self._protocol.connect())
        self._flush()
        self._is_subscribed = False
        self.lines: list[str] = []

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._socket.sendall(data)

    def subscribe(self) -> None:
        self._receive()
        self._protocol.send_text(json.dumps({"since": 0}).encode())
        self._flush()

    def _receive(self) -> list[Any]:
        data = self._socket.recv(65536)
        assert data, "the server closed the connection before its close frame"
        self._protocol.receive_data(data)
        return self._protocol.events_received()

    def receive_until(self, event_type: str) -> None:
        """Read events; what the protocol wants to answer stays unsent."""
        while not self.lines or json.loads(self.lines[-1])["event_type"] != event_type:
            for event in self._receive():
                if isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                    text = bytes(event.data).decode()
                    if "event_type" not in json.loads(text):
                        self._is_subscribed = json.loads(text)["is_subscribed"]
                    elif self._is_subscribed:
                        self.lines.append(text)

    def close(self) -> tuple[int, str]:
        """Answer the close frame and return its code and reason."""
        while self._protocol.close_rcvd is None:
            self._receive()
        self._flush()
        self._socket.close()
        return self._protocol.close_rcvd.code, self._protocol.close_rcvd.reason


def events_over_http(run: ServedRun) -> list[str]:
    """Read the whole log of a run from its server."""
    connection = http.client.HTTPConnection("127.0.0.1", run.port, timeout=WAIT_S)
    connection.request("GET", "/api/events?since=0&limit=10000")
    text = connection.getresponse().read().decode()
    connection.close()
    return text.splitlines()


def let_be(run: ServedRun) -> None:
    """Let the run come to its own end."""


def interrupt(run: ServedRun) -> None:
    run.process.send_signal(signal.SIGINT)


def terminate(run: ServedRun) -> None:
    run.process.send_signal(signal.SIGTERM)


def close_reading_end(run: ServedRun) -> None:
    """Leave a run's output unread, as `| head` does."""
    assert run.process.stdout is not None
    run.process.stdout.close()


def unread_connection(run: ServedRun) -> socket.socket:
    """Subscribe to everything and never read any of it."""
    protocol = ClientProtocol(parse_uri(f"ws://{run.netloc}/ws"))
    connection = socket.socket()
    # Little room in the kernel, so that what is not read soon waits in the server.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", run.port))
    protocol.send_request(protocol.connect())
    connection.sendall(b"".join(protocol.data_to_send()))
    protocol.receive_data(connection.recv(65536))
    protocol.events_received()
    protocol.send_text(json.dumps({"since": 0}).encode())
    connection.sendall(b"".join(protocol.data_to_send()))
    return connection


def is_gone(port: int) -> bool:
    """Return whether nothing listens on a port any more."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0
