"""The dashboard's routes: the page, its files, and the stream of patches, over real sockets."""

import contextlib
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from tests.karn.runs import has_read, write_run
from tests.karn.story import Story
from tests.nissa.making import wait_until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from esper.karn.view.followed_log import FollowedLog, open_source
from esper.karn.view.snapshot import Patch
from esper.karn.view.view_feed import ViewFeed
from esper.karn.web.page import MODULES, RUN_MODULES, asset
from esper.karn.web.routes import MAX_BAD_MESSAGES, dashboard_routes
from esper.nissa.live.address import ServerAddress, listen
from esper.nissa.live.app import build_app
from esper.nissa.live.security import Security
from esper.nissa.live.server import serve

STORY = Story(num_rounds=2, num_steps=6, has_trouble=False)
NUM_EVENTS = len(list(STORY.lines()))
LOOPBACK = "127.0.0.1"


class Served:
    """A dashboard that listens."""

    def __init__(self, app: Starlette, address: str) -> None:
        self.app = app
        self.address = address
        self.http = httpx.AsyncClient(base_url=f"http://{address}")

    def viewer(self, query: str = "") -> connect:
        return connect(f"ws://{self.address}/ws/view{query}", max_size=None)


@contextlib.asynccontextmanager
async def served(tmp_path: Path, token: str | None = None) -> AsyncIterator[Served]:
    """Serve a finished run."""
    run_dir = write_run(tmp_path / "run", STORY.lines())
    source = open_source(run_dir)
    assert isinstance(source.log, FollowedLog)
    while (block := source.log.read_more()) is not None:
        source.feed.publish(block)
    feed = ViewFeed(source, run_dir)
    app = build_app(
        source=source,
        run_dir=run_dir,
        security=Security(host=LOOPBACK, token=token),
        routes=dashboard_routes(feed, run_dir),
    )
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed.run)
            await anyio.to_thread.run_sync(wait_until, partial(has_read, feed, NUM_EVENTS))
            address = await tasks.start(serve, app, listen(ServerAddress(LOOPBACK, 0)))
            dashboard = Served(app, str(address))
            async with dashboard.http:
                yield dashboard
            tasks.cancel_scope.cancel()


@pytest.fixture
async def dashboard(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path) as dashboard:
        yield dashboard


async def next_patch(viewer: ClientConnection) -> dict[str, Any]:
    return msgspec.json.decode(await viewer.recv(), type=dict[str, Any])


async def patches_to_the_end(viewer: ClientConnection) -> list[dict[str, Any]]:
    """Read until the server closes the connection."""
    patches = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            patches.append(await next_patch(viewer))
    return patches


def script(name: str) -> str:
    found = asset(f"{name}.js")
    assert found is not None
    return found.content().decode()


@pytest.mark.anyio
async def test_page_runs_only_its_own_scripts(dashboard: Served) -> None:
    policy = (await dashboard.http.get("/")).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


@pytest.mark.anyio
async def test_page_names_nothing_outside_this_server(dashboard: Served) -> None:
    page = (await dashboard.http.get("/")).text
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert addresses
    assert all(address.startswith(("/assets/", "#", "data:,")) for address in addresses)


@pytest.mark.anyio
async def test_every_address_on_the_page_is_served(dashboard: Served) -> None:
    page = (await dashboard.http.get("/")).text
    addresses = [item.replace("&amp;", "&") for item in re.findall(r'"(/assets/[^"]+)"', page)]
    assert len(addresses) == len(RUN_MODULES) + 3  # the modules, the entry, the style and plotly
    for address in addresses:
        response = await dashboard.http.get(address)
        assert response.status_code == 200
        assert "immutable" in response.headers["cache-control"]


@pytest.mark.anyio
async def test_file_that_did_not_change_is_not_sent_again(dashboard: Served) -> None:
    tag = (await dashboard.http.get("/assets/main.js")).headers["etag"]
    response = await dashboard.http.get("/assets/main.js", headers={"if-none-match": tag})
    assert (response.status_code, response.content) == (304, b"")


@pytest.mark.anyio
async def test_unversioned_address_is_asked_for_again(dashboard: Served) -> None:
    response = await dashboard.http.get("/assets/main.js")
    assert response.headers["cache-control"] == "no-cache"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "name", ["index.html", "..%2fpage.py", "%2e%2e/page.py", "page.py", "main.js.map"]
)
async def test_no_other_file_is_served(dashboard: Served, name: str) -> None:
    assert (await dashboard.http.get(f"/assets/{name}")).status_code == 404


@pytest.mark.anyio
async def test_token_of_the_page_reaches_all_its_files(tmp_path: Path) -> None:
    async with served(tmp_path, token='a"b&c') as dashboard:
        assert (await dashboard.http.get("/")).status_code == 401
        page = (await dashboard.http.get("/", params={"token": 'a"b&c'})).text
        addresses = re.findall(r'"(/assets/[^"]+)"', page)
        assert addresses
        for address in addresses:
            response = await dashboard.http.get(address.replace("&amp;", "&"))
            assert response.status_code == 200


def test_every_module_is_imported_by_the_name_in_the_map() -> None:
    for name in MODULES:
        imported = re.findall(r'from "([^"]+)"', script(name))
        assert set(imported) <= {f"esper/{module}" for module in MODULES}


def test_scripts_never_write_markup() -> None:
    markup = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(")
    assert [name for name in MODULES if markup.search(script(name))] == []


def test_version_changes_with_the_content() -> None:
    versions = {found.version for name in MODULES if (found := asset(f"{name}.js")) is not None}
    assert len(versions) == len(MODULES)


@pytest.mark.anyio
async def test_viewer_gets_everything_first_then_only_what_is_new(dashboard: Served) -> None:
    async with dashboard.viewer() as viewer:
        first = msgspec.json.decode(await viewer.recv(), type=Patch)
        second = await next_patch(viewer)
    assert set(first.replaced) == {"rounds", "steps", "envs", "seeds"}
    assert isinstance(first.envs, dict)
    assert len(first.envs) == STORY.num_envs
    assert "envs" not in second
    assert second["version"] == first.version


@pytest.mark.anyio
async def test_view_of_many_rounds_comes_in_several_messages(
    dashboard: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.karn.web.routes.ROUNDS_PER_MESSAGE", 1)
    numbers: list[int] = []
    async with dashboard.viewer() as viewer:
        while len(numbers) < STORY.num_rounds:
            patch = await next_patch(viewer)
            assert len(patch["rounds"]) == 1
            numbers += map(int, patch["rounds"])
    assert numbers == sorted(range(STORY.num_rounds), reverse=True)


@pytest.mark.anyio
async def test_viewer_gets_the_detail_of_the_env_it_opens(dashboard: Served) -> None:
    async with dashboard.viewer() as viewer:
        await viewer.send('{"select": 2}')
        patch = await next_patch(viewer)
        while "detail" not in patch:
            patch = await next_patch(viewer)
    assert patch["detail"]["env_id"] == 2


@pytest.mark.anyio
async def test_viewer_that_asks_for_an_unknown_env_gets_no_detail(dashboard: Served) -> None:
    async with dashboard.viewer() as viewer:
        await next_patch(viewer)
        await viewer.send('{"select": 999}')
        assert "detail" not in await next_patch(viewer)


@pytest.mark.anyio
async def test_viewer_that_sends_nonsense_is_sent_away(dashboard: Served) -> None:
    async with dashboard.viewer() as viewer:
        for _ in range(MAX_BAD_MESSAGES):
            await viewer.send('{"select": "<script>"}')
        await patches_to_the_end(viewer)
        assert viewer.close_code == 1008


@pytest.mark.anyio
async def test_viewer_gets_the_last_state_when_the_server_stops(dashboard: Served) -> None:
    async with dashboard.viewer() as viewer:
        await next_patch(viewer)
        dashboard.app.state.stop.event.set()
        patches = await patches_to_the_end(viewer)
        assert viewer.close_code == 1001
    assert patches[-1]["progress"]["status"] == "completed"
