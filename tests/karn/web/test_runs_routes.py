"""The routes of the list of runs, over real sockets."""

import contextlib
import shutil
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import httpx
import pytest
from tests.karn.runs import append_lines, write_run
from tests.karn.story import Story
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from esper.karn.view.overlay import ChosenRuns
from esper.karn.web import runs_routes
from esper.karn.web.list_server import ListServer
from esper.karn.web.open_runs import MAX_OPEN
from esper.leyline.live import CloseCode
from esper.nissa.live.address import ServerAddress, listen
from esper.nissa.live.budget import ConnectionBudget
from esper.nissa.live.security import Security

pytestmark = pytest.mark.anyio

LOOPBACK = "127.0.0.1"
LINES = list(Story(num_rounds=3, num_envs=2, num_steps=4, has_trouble=False).lines())


@contextlib.asynccontextmanager
async def served(parent: Path, token: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a directory of runs."""
    with anyio.fail_after(30), listen(ServerAddress(LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        server = ListServer(
            parent=parent,
            security=Security(host=LOOPBACK, token=token),
            listener=listener.dup(),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.run)
            async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}") as http:
                yield http
            tasks.cancel_scope.cancel()


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        write_run(tmp_path / "runs" / name, LINES)
    return tmp_path / "runs"


async def overlay_of(http: httpx.AsyncClient, *names: str) -> dict[str, Any]:
    answer = await http.get("/api/runs/overlay", params={"run": list(names)})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def read_to_the_end(viewer: ClientConnection) -> None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await viewer.recv()


async def test_bare_address_leads_to_the_list_with_its_token(parent: Path) -> None:
    async with served(parent, token="s3cret") as http:
        refused = [
            (await http.get(path)).status_code
            for path in ("/", "/runs", "/api/runs", "/api/runs/overlay?run=one", "/run/one/")
        ]
        page = await http.get("/?token=s3cret", follow_redirects=True)
    assert refused == [401] * 5
    assert page.url.path == "/runs"
    assert page.url.params["token"] == "s3cret"
    assert "unsafe" not in page.headers["content-security-policy"]


async def test_only_reading_is_allowed(parent: Path) -> None:
    async with served(parent) as http:
        for path in ("/runs", "/api/runs", "/api/runs/overlay", "/run/one/", "/run/one/api/run"):
            for method in ("POST", "PUT", "DELETE", "PATCH"):
                assert (await http.request(method, path)).status_code == 405


async def test_list_names_no_path_of_the_machine(parent: Path) -> None:
    async with served(parent) as http:
        answer = await http.get("/api/runs")
    assert str(parent.parent) not in answer.text
    assert [row["directory"] for row in answer.json()["rows"]] == ["two", "one"]
    assert answer.json()["directory"] == "runs"


async def test_one_request_reads_a_bounded_number_of_rows(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_routes, "MAX_READ_ROWS", 2)
    for number in range(5):
        shutil.copytree(parent / "one", parent / f"more{number}")
    async with served(parent) as http:
        left = []
        while not left or left[-1]:
            left.append((await http.get("/api/runs")).json()["num_unread"])
        rows = (await http.get("/api/runs")).json()["rows"]
    assert left == [5, 3, 1, 0]
    assert len(rows) == 7


async def test_one_request_reads_a_bounded_part_of_the_logs(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_routes, "MAX_READ_PARTS", 1)
    async with served(parent) as http:
        first = await overlay_of(http, "one", "two")
        for _ in range(4):
            last = await overlay_of(http, "one", "two")
    assert [run["is_read"] for run in first["runs"]] == [False, False]
    assert [run["is_read"] for run in last["runs"]] == [True, True]
    assert last["runs"][0]["counts"] == last["runs"][1]["counts"]
    assert sum(last["runs"][0]["counts"].values()) == len(LINES)


async def test_visitor_who_has_used_up_the_budget_keeps_nobody_else_waiting(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.nissa.live.budget.UNITS_BURST", 4.0)
    monkeypatch.setattr("esper.nissa.live.budget.UNITS_PER_S", 1e-9)
    monkeypatch.setattr("esper.nissa.live.budget.MAX_DEBT_S", 1e12)
    read_more, has_read = ChosenRuns.read_more, anyio.Event()

    def noted(chosen: ChosenRuns, names: Sequence[str]) -> bool:
        anyio.from_thread.run_sync(has_read.set)
        return read_more(chosen, names)

    monkeypatch.setattr(ChosenRuns, "read_more", noted)
    async with served(parent) as http, httpx.AsyncClient(base_url=http.base_url) as other:
        for _ in range(2):
            await http.get("/healthz", timeout=None)
        async with anyio.create_task_group() as tasks:
            # One unit is left for the parts of two logs.
            tasks.start_soon(partial(http.get, "/api/runs/overlay?run=one&run=two", timeout=None))
            await has_read.wait()
            assert [run["is_read"] for run in (await overlay_of(other, "one"))["runs"]] == [True]
            tasks.cancel_scope.cancel()


async def test_looking_at_more_runs_costs_more(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spend, units = ConnectionBudget.spend, [0.0]

    async def noted(budget: ConnectionBudget, num_units: float = 1.0) -> None:
        units[-1] += num_units
        await spend(budget, num_units)

    monkeypatch.setattr(ConnectionBudget, "spend", noted)
    async with served(parent) as http:
        for num_more in (0, 20):
            for number in range(num_more):
                shutil.copytree(parent / "one", parent / f"more{number}")
            await http.get("/api/runs")
            units.append(0.0)
            assert (await http.get("/api/runs")).json()["num_unread"] == 0
            units.append(0.0)
    assert units[3] > units[1]


@pytest.mark.parametrize("name", ["nothing", "..", "../runs/one", "", "/etc", "one/.."])
async def test_no_name_leads_out_of_the_directory(parent: Path, name: str) -> None:
    async with served(parent) as http:
        overlay = await http.get("/api/runs/overlay", params={"run": name})
        opened = await http.get(f"/run/{name.replace('/', '%2F')}/api/run")
    assert overlay.status_code == 400
    assert opened.status_code == 404


async def test_opened_run_has_all_routes_of_a_served_one(parent: Path) -> None:
    async with served(parent) as http:
        page = await http.get("/run/one/")
        manifest = await http.get("/run/one/api/run")
        health = await http.get("/run/one/healthz")
        address = f"ws://{http.base_url.host}:{http.base_url.port}/run/one/ws/view"
        async with connect(address, max_size=None) as viewer:
            patch = await viewer.recv()
    assert '<meta name="esper-base" content="/run/one">' in page.text
    assert manifest.json()["run_id"] == "5eed0001"
    assert health.json()["status"] == "ok"
    assert '"type":"patch"' in str(patch)


async def test_run_opened_longest_ago_makes_room(parent: Path) -> None:
    for number in range(MAX_OPEN):
        shutil.copytree(parent / "one", parent / f"more{number}")
    async with served(parent) as http:
        address = f"ws://{http.base_url.host}:{http.base_url.port}/run/one/ws/view"
        async with connect(address, max_size=None) as viewer:
            await viewer.recv()
            for number in range(MAX_OPEN):
                assert (await http.get(f"/run/more{number}/healthz")).status_code == 200
            await read_to_the_end(viewer)
            assert viewer.close_code == CloseCode.TOO_MANY_CONNECTIONS
        assert (await http.get("/run/one/healthz")).status_code == 200


async def test_opened_run_that_is_resumed_is_shown_anew(parent: Path) -> None:
    async with served(parent) as http:
        address = f"ws://{http.base_url.host}:{http.base_url.port}/run/one/ws/view"
        async with connect(address, max_size=None) as viewer:
            await viewer.recv()
            while (await http.get("/run/one/healthz")).json()["last_seq"] < len(LINES) - 1:
                await anyio.lowlevel.checkpoint()
            (parent / "one" / "events.jsonl").write_bytes(b"")
            append_lines(parent / "one", LINES[:20])
            await read_to_the_end(viewer)
            assert viewer.close_code == CloseCode.LOG_RESTARTED
        while (await http.get("/run/one/healthz")).json()["last_seq"] != 19:
            await anyio.lowlevel.checkpoint()
