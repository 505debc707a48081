"""A web server on the loopback that serves one file, with faults on demand."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast


@dataclass(eq=False)
class ServedFile:
    """What the server answers, and what it was asked."""

    content: bytes
    supports_range: bool = True
    break_after: list[int] = field(default_factory=list)
    """Bytes sent by each of the first answers before the connection is closed."""
    stalls: bool = False
    """Whether an answer that breaks off hangs instead."""
    status: int = 200
    name: str = "the-file.bin"
    url: str = ""
    ranges: list[str | None] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        file = cast("_Server", self.server).file
        asked = self.headers.get("Range")
        file.ranges.append(asked)
        if file.status != 200:
            self.send_error(file.status)
            return
        start = 0
        if asked is not None and file.supports_range:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        if start >= len(file.content):
            self.send_error(416)
            return
        body = file.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if file.break_after:
            self.wfile.write(body[: file.break_after.pop(0)])
            self.wfile.flush()
            if file.stalls:
                file.release.wait(10)
            self.close_connection = True
            return
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    file: ServedFile


@contextmanager
def serving(file: ServedFile) -> Iterator[ServedFile]:
    """Serve a file while the block runs."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.file = file
        file.url = f"http://127.0.0.1:{server.server_address[1]}/{file.name}"
        # A short poll: shutting down waits for it.
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield file
        finally:
            file.release.set()
            server.shutdown()
            thread.join(10)
