"""The routes of the list of runs: its page, its rows, and the curves of chosen runs."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from esper.karn.view.overlay import ChosenRuns, ConfigRow
from esper.karn.view.run_list import RunRow
from esper.karn.view.run_table import RunTable
from esper.karn.web.page import address_of, runs_page, script_policy
from esper.leyline.errors import EsperError, UsageError
from esper.nissa.live.budget import ConnectionBudget
from esper.nissa.live.guard import budget_of
from esper.nissa.live.sending import in_parts

__all__ = ["LIST_PATH", "RunList", "runs_routes"]

LIST_PATH: Final = "/runs"
MAX_LISTED: Final = 500
MAX_READ_ROWS: Final = 32
"""Rows that one request reads; the page asks again until all are current."""
ROW_UNITS: Final = 4.0
"""Cost of reading a row, in units of the connection's budget."""
MAX_READ_PARTS: Final = 32
"""Parts of logs, of 256 KiB each, that one request for curves reads."""
PART_UNITS: Final = 4.0
LOOK_UNITS: Final = 0.1
"""Cost of looking whether a run has changed."""
ROWS_PER_PIECE: Final = 16
UNIT_BYTES: Final = 32 * 1024
"""What a unit of the connection's budget pays for of an answer."""
_ENCODER: Final = msgspec.json.Encoder()


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/api/runs`."""

    directory: str
    """Name of the directory, without its path."""
    own: str | None
    """Directory of the run that this server belongs to; its page is at `/`."""
    num_runs: int
    num_unread: int
    """Rows that are missing here or not current; the next request reads more of them."""
    rows: list[RunRow]


def runs_routes(parent: Path, own: str | None = None) -> list[BaseRoute]:
    """Return the routes of the list of a directory's runs.

    Args:
        parent: the directory.
        own: directory of the run that the server belongs to, if any.
    """
    service = _RunsService(parent, own)
    return [
        Route(LIST_PATH, service.page),
        Route("/api/runs", service.rows),
        Route("/api/runs/overlay", service.overlay),
    ]


@dataclass(eq=False, slots=True)
class _RunsService:
    """State shared by the routes: what was read of the runs so far."""

    parent: Path
    own: str | None
    table: RunTable = field(init=False)
    chosen: ChosenRuns = field(init=False)
    _listing: anyio.Lock = field(default_factory=anyio.Lock)
    """Visitors share what is read, so one reads at a time."""
    _reading: anyio.Lock = field(default_factory=anyio.Lock)

    def __post_init__(self) -> None:
        self.table = RunTable(self.parent, MAX_LISTED)
        self.chosen = ChosenRuns(self.parent)

    async def page(self, _: Request) -> Response:
        """Return the page."""
        page = runs_page(address_of, self.parent)
        headers = {"Content-Security-Policy": script_policy(page.import_map)}
        return Response(page.html, media_type="text/html; charset=utf-8", headers=headers)

    async def rows(self, request: Request) -> Response:
        """Return the rows of the newest runs as a `RunList`."""
        budget = budget_of(request.scope)
        async with self._listing:
            try:
                stale = await anyio.to_thread.run_sync(self.table.changed)
                for run in stale[:MAX_READ_ROWS]:
                    await anyio.to_thread.run_sync(self.table.read, run, time.time())
            except (EsperError, OSError):
                return PlainTextResponse("the directory cannot be read\n", status_code=503)
            answer = RunList(
                directory=self.parent.name,
                own=self.own,
                num_runs=self.table.num_runs,
                num_unread=max(len(stale) - MAX_READ_ROWS, 0),
                rows=self.table.rows(),
            )
        # Not inside: who has to wait because of the budget keeps nobody else waiting.
        await budget.spend(
            LOOK_UNITS * answer.num_runs + ROW_UNITS * min(len(stale), MAX_READ_ROWS)
        )
        return _json(_list_parts(answer), budget)

    async def overlay(self, request: Request) -> Response:
        """Return the curves, configurations and counts of the runs named by `run=`."""
        budget = budget_of(request.scope)
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        try:
            async with self._reading:
                await anyio.to_thread.run_sync(self.chosen.choose, names)
                num_parts = await self._read_parts(names)
                config = await anyio.to_thread.run_sync(self.chosen.differences, names)
        except UsageError as error:
            return PlainTextResponse(f"{error}\n", status_code=400)
        await budget.spend(PART_UNITS * num_parts)  # see above
        return _json(self._overlay_parts(config, names), budget)

    async def _overlay_parts(
        self, config: Sequence[ConfigRow], names: Sequence[str]
    ) -> AsyncIterator[bytes]:
        """Yield an overlay; each of its runs when it can be sent, as twelve have a megabyte."""
        yield b'{"config":' + _ENCODER.encode(config) + b',"runs":['
        for number, name in enumerate(names):
            async with self._reading:
                curve = await anyio.to_thread.run_sync(self.chosen.curve, name)
            yield (b"," if number else b"") + _ENCODER.encode(curve)
        yield b"]}"

    async def _read_parts(self, names: Sequence[str]) -> int:
        """Read the next parts of these runs' logs, and return how many those were."""
        for number in range(MAX_READ_PARTS):
            if not await anyio.to_thread.run_sync(self.chosen.read_more, names):
                return number
        return MAX_READ_PARTS


async def _list_parts(answer: RunList) -> AsyncIterator[bytes]:
    """Yield a list, a few of its rows at a time."""
    yield _ENCODER.encode(msgspec.structs.replace(answer, rows=[])).removesuffix(b"]}")
    for start in range(0, len(answer.rows), ROWS_PER_PIECE):
        rows = _ENCODER.encode(answer.rows[start : start + ROWS_PER_PIECE])
        yield (b"," if start else b"") + rows[1:-1]
    yield b"]}"


def _json(pieces: AsyncIterator[bytes], budget: ConnectionBudget) -> Response:
    return StreamingResponse(_parts(pieces, budget), media_type="application/json")


async def _parts(pieces: AsyncIterator[bytes], budget: ConnectionBudget) -> AsyncIterator[bytes]:
    """Yield an answer in parts that are paid for one by one."""
    left = b""
    async for piece in pieces:
        *whole, left = in_parts(left + piece)
        for part in whole:
            yield part
            await budget.spend(len(part) / UNIT_BYTES)
    yield left
    await budget.spend(len(left) / UNIT_BYTES)
