"""`python -m tools.soak.visitor KIND PORT`: a hostile visitor without pauses, until it is killed.

It imports nothing of Esper, so that a visitor starts fast and is a client that we did not write.
`busy` uses as much CPU as it can without a connection: the visitors are compared with it.
"""

import base64
import json
import os
import select
import socket
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from functools import partial

NUM_THREADS = 4
RETRY_S = 0.05
NUM_HELD = 300
PLOTLY = "/assets/plotly.js"
SCAN = "/api/events?types=RUN_FINISHED&limit=10000"
SEARCH = "/api/events?text=no%20event%20has%20this&before=999999999&limit=10000"
LIST = "/api/runs"
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


def ask(path: str, port: int) -> None:
    """Ask for the same thing over and over: the next time when an answer has begun to come."""
    request = get(port, path)
    with connect(port) as client:
        while True:
            client.sendall(request)
            received = _some(client)
            while b"\r\n\r\n" not in received:
                received += _some(client)


def overlay(port: int) -> None:
    """Ask for the curves of the newest runs, as many as can be overlaid."""
    ask(overlay_path(port), port)


def unread_overlays(port: int) -> None:
    """Send requests for curves and read nothing."""
    flood = get(port, overlay_path(port)) * 100
    with connect(port) as client:
        while True:
            client.sendall(flood)


def overlay_path(port: int) -> str:
    """Return the address of an overlay of the runs that are listed."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{LIST}", timeout=60.0) as answer:
        names = [row["directory"] for row in json.load(answer)["rows"]]
    return f"{LIST}/overlay?" + urllib.parse.urlencode({"run": names[:12]}, doseq=True)


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
    "scan": partial(ask, SCAN),
    "search": partial(ask, SEARCH),
    "list": partial(ask, LIST),
    "overlay": overlay,
    "unread-overlays": unread_overlays,
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
