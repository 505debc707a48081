"""`python -m tools.soak.visitor KIND PORT`: a hostile visitor without pauses, until it is killed.

It imports nothing of Esper, so that a visitor starts fast and is a client that we did not write.
`busy` uses as much CPU as it can without a connection: the visitors are compared with it.
"""

import base64
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

NUM_THREADS = 4
RETRY_S = 0.05
NUM_HELD = 300
PLOTLY = "/assets/plotly.js"
SCAN = "/api/events?types=RUN_FINISHED&limit=10000"
_MASK = bytes(4)
"""A mask of zeros is a valid mask, and leaves the payload as it is."""


def connect(port: int) -> socket.socket:
    """Return a connection."""
    return socket.create_connection(("127.0.0.1", port), timeout=10.0)


def get(port: int, path: str) -> bytes:
    """Return the bytes of a request."""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()


def frame(opcode: int, payload: bytes) -> bytes:
    """Return the bytes of a short masked frame."""
    return bytes([0x80 | opcode, 0x80 | len(payload)]) + _MASK + payload


def upgraded(port: int, path: str) -> socket.socket:
    """Return a connection after a websocket handshake."""
    client = connect(port)
    key = base64.b64encode(bytes(16)).decode()
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
    ]
    client.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
    received = b""
    while b"\r\n\r\n" not in received:
        received += _some(client)
    return client


def _some(client: socket.socket) -> bytes:
    data = client.recv(1 << 16)
    if not data:
        raise ConnectionError("the server has closed the connection")
    return data


def _send_and_drain(client: socket.socket, data: bytes) -> None:
    """Send while reading whatever comes, so that neither side's buffers fill up."""
    client.setblocking(False)
    left = memoryview(data)
    while left:
        readable, writable, _ = select.select([client], [client], [], 10.0)
        if readable:
            _some(client)
        if writable:
            left = left[client.send(left) :]


def scan(port: int) -> None:
    """Ask for events that are not there, one request after the other."""
    request = get(port, SCAN)
    with connect(port) as client:
        while True:
            client.sendall(request)
            received = _some(client)
            while b"\r\n\r\n" not in received:
                received += _some(client)


def choose(port: int) -> None:
    """Select an env in the dashboard's view, over and over."""
    message = frame(1, b'{"select":0}')
    with upgraded(port, "/ws/view") as client:
        while True:
            _send_and_drain(client, message)


def ping(port: int) -> None:
    """Send pings and read the pongs."""
    flood = frame(9, b"x" * 100) * 500
    with upgraded(port, "/ws") as client:
        while True:
            _send_and_drain(client, flood)


def unread_pongs(port: int) -> None:
    """Send pings and read nothing."""
    flood = frame(9, b"x" * 125) * 500
    with upgraded(port, "/ws") as client:
        while True:
            client.sendall(flood)


def pipeline(port: int) -> None:
    """Send requests for a large file without waiting for, or reading, an answer."""
    flood = get(port, PLOTLY) * 100
    with connect(port) as client:
        while True:
            client.sendall(flood)


def replay(port: int) -> None:
    """Read the whole log in a loop."""
    while True:
        with upgraded(port, "/ws") as client:
            client.sendall(frame(1, b'{"since":0,"batch":true}'))
            end_s = time.monotonic() + 0.5
            while time.monotonic() < end_s:
                _some(client)


def reconnect(port: int) -> None:
    """Connect and leave."""
    while True:
        connect(port).close()


def hold(port: int) -> None:
    """Hold connections that have asked for a large file and do not read it."""
    held: list[socket.socket] = []
    for _ in range(NUM_HELD // NUM_THREADS):
        with suppress(OSError):
            client = connect(port)
            client.sendall(get(port, PLOTLY))
            held.append(client)
    time.sleep(3600.0)


def busy(_: int) -> None:
    """Use CPU time."""
    while True:
        pass


KINDS: dict[str, Callable[[int], None]] = {
    "scan": scan,
    "select": choose,
    "ping": ping,
    "unread-pongs": unread_pongs,
    "pipeline": pipeline,
    "replay": replay,
    "reconnect": reconnect,
    "hold": hold,
    "busy": busy,
}


def visit(kind: str, port: int) -> None:
    """Do it again whenever the server has ended it."""
    while True:
        with suppress(OSError):
            KINDS[kind](port)
        time.sleep(RETRY_S)


def main() -> None:
    """Visit on several threads, until killed or orphaned."""
    kind, port = sys.argv[1], int(sys.argv[2])
    parent = os.getppid()
    num_threads = 1 if kind == "busy" else NUM_THREADS
    for _ in range(num_threads):
        threading.Thread(target=visit, args=(kind, port), daemon=True).start()
    while os.getppid() == parent:
        time.sleep(0.5)


if __name__ == "__main__":
    main()
