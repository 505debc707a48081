"""The routes of the live server: the websocket tail and the log over HTTP."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import anyio
import anyio.lowlevel
import anyio.to_thread
import orjson
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from esper.leyline.errors import UnreadableFileError, UsageError
from esper.leyline.live import CloseCode, Subscription
from esper.nissa.bus.event_filter import EventFilter
from esper.nissa.bus.log_reader import LogReader
from esper.nissa.bus.subscribers import LiveSource
from esper.nissa.live.guard import Guard, budget_of
from esper.nissa.live.security import Security
from esper.nissa.live.sending import in_parts
from esper.nissa.live.session import Session, Stop
from esper.nissa.live.visitors import Visitors
from esper.nissa.storage.run_directory import manifest_bytes

__all__ = ["build_app"]

MAX_CONNECTIONS: Final = 128
"""Websockets of the tail."""
DEFAULT_EVENTS: Final = 1_000
MAX_EVENTS: Final = 10_000
MAX_TEXTS: Final = 8
NDJSON: Final = "application/x-ndjson"


@dataclass(eq=False, slots=True)
class _Service:
    """State shared by the routes of one app."""

    source: LiveSource
    run_dir: Path
    visitors: Visitors
    stop: Stop = field(default_factory=Stop)

    async def websocket(self, websocket: WebSocket) -> None:
        """Serve one client of the live tail."""
        await websocket.accept()
        now_s = anyio.current_time()
        # After `accept`, as only then can a close code say why.
        if not self.visitors.make_room(now_s):
            await websocket.close(CloseCode.TOO_MANY_CONNECTIONS, "too many connections")
            return
        session = Session(websocket, self.source, self.stop)
        self.visitors.add(session, now_s)
        try:
            await session.run()
        finally:
            self.visitors.leave(session)

    async def health(self, _: Request) -> Response:
        """Return the server's status and the seq of the newest event."""
        answer = {"status": "ok", "last_seq": self.source.last_seq}
        return Response(orjson.dumps(answer), media_type="application/json")

    async def manifest(self, _: Request) -> Response:
        """Return `run.json`."""
        try:
            data = await anyio.to_thread.run_sync(manifest_bytes, self.run_dir)
        except UnreadableFileError:
            return PlainTextResponse("this run has no manifest\n", status_code=404)
        return Response(data, media_type="application/json")

    async def events(self, request: Request) -> Response:
        """Return events from the log as newline-delimited JSON."""
        try:
            search = _Search(_EventQuery.parse(request), self.source)
        except UsageError as error:
            return PlainTextResponse(f"{error}\n", status_code=400)
        try:
            # The first page before the response begins: afterwards its status could no longer be an
            # error.
            first = await anyio.to_thread.run_sync(search.next_page)
        except OSError:
            return PlainTextResponse("the log cannot be read\n", status_code=503)
        return StreamingResponse(_pages(first, search, request), media_type=NDJSON)


async def _pages(page: bytes | None, search: "_Search", request: Request) -> AsyncIterator[bytes]:
    """Yield the found events; a client that reads slowly is searched for as slowly."""
    budget = budget_of(request.scope)
    while page is not None:
        for part in in_parts(page):
            yield part
            # Sending does not suspend while the kernel takes everything, or after a reset.
            await anyio.lowlevel.checkpoint()
        await budget.spend()
        page = await anyio.to_thread.run_sync(search.next_page)


@dataclass(frozen=True, kw_only=True, slots=True)
class _EventQuery:
    """The parsed query of `/api/events`."""

    since: int
    before: int | None
    """If given, events are searched for backwards from here, and the newest come first."""
    limit: int
    wanted: EventFilter
    texts: tuple[bytes, ...]
    """What the line of an event must contain, in lower case."""

    @classmethod
    def parse(cls, request: Request) -> Self:
        query = request.query_params
        types = query.get("types")
        env = _number(request, "env")
        subscription = Subscription(
            types=types.split(",") if types else None,
            env_ids=None if env is None else [env],
            min_severity=query.get("min_severity") or None,
        )
        limit = _number(request, "limit")
        texts = query.getlist("text")
        if len(texts) > MAX_TEXTS:
            raise UsageError(f"text: given {len(texts)} times; at most {MAX_TEXTS}")
        return cls(
            since=_number(request, "since") or 0,
            before=_number(request, "before"),
            limit=min(DEFAULT_EVENTS if limit is None else limit, MAX_EVENTS),
            wanted=EventFilter(subscription),
            texts=tuple(text.encode("utf-8", "surrogatepass").lower() for text in texts),
        )

    def matches(self, lines: Sequence[bytes]) -> list[bytes]:
        """Return the events that were asked for."""
        if self.texts:
            lines = [line for line in lines if all(text in line.lower() for text in self.texts)]
        return [line for line in lines if self.wanted.passes_all or self.wanted.passes(line)]


class _Search:
    """One walk over the log, page by page; blocks on file access, so use it in a worker thread."""

    def __init__(self, query: _EventQuery, source: LiveSource) -> None:
        self._query = query
        self._num_left = query.limit
        self._seq = query.since
        self._before = query.before
        self._index = source.index
        self._reader = LogReader(source.log)

    def next_page(self) -> bytes | None:
        """Return the matches of the next page that may have any; None after the last one."""
        if self._num_left == 0:
            return None
        found = self._forward() if self._before is None else self._backward(self._before)
        if found is None:
            return None
        lines = found[: self._num_left]
        self._num_left -= len(lines)
        return b"".join(line + b"\n" for line in lines)

    def _forward(self) -> list[bytes] | None:
        page = self._reader.read(self._index.next_match(self._seq, self._query.wanted))
        if page is None:
            return None
        self._seq = page.next_seq
        return self._query.matches(page.lines())

    def _backward(self, before: int) -> list[bytes] | None:
        span = self._index.last_match(before, self._query.wanted)
        if span is None or min(before, span.next_seq) <= self._seq:
            return None
        first = max(span.first_seq, self._seq)
        lines = self._read_lines(first, min(span.next_seq, before))
        self._before = first
        return self._query.matches(lines)[::-1]

    def _read_lines(self, first: int, end: int) -> list[bytes]:
        lines: list[bytes] = []
        while len(lines) < end - first:
            page = self._reader.read(first + len(lines))
            if page is None:
                break
            lines += page.lines()
        return lines[: end - first]


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if not text:
        return None
    # Reject numbers that do not fit into a 64-bit seq before they are used in arithmetic.
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise UsageError(f"{name} = {text[:40]!r}: expected a non-negative integer")
    return int(text)


def build_app(
    *,
    source: LiveSource,
    run_dir: Path,
    security: Security | None,
    routes: Sequence[BaseRoute] = (),
    max_connections: int = MAX_CONNECTIONS,
) -> Starlette:
    """Build the ASGI app of one run.

    Args:
        source: the run's log and feed.
        run_dir: the run directory.
        security: the access rules; None if the app is a part of one that has them.
        routes: additional pages behind the same guard.
        max_connections: websockets of the tail.
    """
    service = _Service(source=source, run_dir=run_dir, visitors=Visitors(max_connections))
    app = Starlette(
        routes=[
            WebSocketRoute("/ws", service.websocket),
            Route("/healthz", service.health),
            Route("/api/run", service.manifest),
            Route("/api/events", service.events),
            *routes,
        ],
        middleware=[] if security is None else [Middleware(Guard, security=security)],
    )
    app.state.source = source
    app.state.stop = service.stop
    return app
