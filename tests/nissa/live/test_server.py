"""The live server, over real sockets."""

import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.lowlevel
import httpx
import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from tests.nissa.making import RUN_ID, FailingFiles, pruned, wait_until
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from esper.leyline.config import Job
from esper.leyline.errors import TelemetryLostError, UsageError
from esper.leyline.live import CloseCode, ErrorFrame, Gap, Hello, ServerMessage
from esper.leyline.manifest import RunManifest
from esper.leyline.telemetry import SCHEMA_VERSION, Draft, EventScope, decode_event
from esper.nissa.bus.feed import FEED_BYTES
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.live.address import ServerAddress, listen
from esper.nissa.live.app import build_app
from esper.nissa.live.security import Security
from esper.nissa.live.server import serve
from esper.nissa.storage.run_directory import build_manifest, create_run_directory

pytestmark = pytest.mark.anyio

LOOPBACK = "127.0.0.1"
T = TypeVar("T")


async def page_from_outside(_: Request) -> Response:
    return PlainTextResponse("a page")


@contextlib.asynccontextmanager
async def served(
    tmp_path: Path, *, security: Security | None = None, max_connections: int = 10
) -> AsyncIterator[tuple[TelemetryHub, str]]:
    """Serve a fresh run and give its hub and `HOST:PORT`."""
    manifest = build_manifest(Job(), command="ppo", machine_kind="test", run_id=RUN_ID)
    run_dir = create_run_directory(tmp_path, manifest)
    hub = TelemetryHub(run_dir, run_id=RUN_ID)
    app = build_app(
        source=hub.live,
        run_dir=run_dir,
        security=security or Security(host=LOOPBACK),
        routes=[Route("/page", page_from_outside)],
        max_connections=max_connections,
    )
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            address = await tasks.start(serve, app, listen(ServerAddress(LOOPBACK, 0)))
            try:
                yield hub, str(address)
            finally:
                tasks.cancel_scope.cancel()
    await off_loop(hub.close)


async def off_loop(function: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(function)


def message_in(frame: str | bytes) -> Hello | Gap | ErrorFrame:
    return msgspec.json.decode(frame, type=ServerMessage)


async def hello_of(client: ClientConnection) -> Hello:
    hello = message_in(await client.recv())
    assert isinstance(hello, Hello)
    return hello


async def subscribe(client: ClientConnection, subscription: str | bytes) -> Hello:
    """Subscribe, and ignore what came before the answer."""
    await client.send(subscription)
    while True:
        frame = await client.recv()
        message = None if "event_type" in str(frame) else message_in(frame)
        if isinstance(message, Hello) and message.is_subscribed:
            return message


async def seqs_until(client: ClientConnection, last_seq: int) -> list[int]:
    """Read event frames up to an event."""
    found: list[int] = []
    while not found or found[-1] < last_seq:
        frame = await client.recv()
        assert isinstance(frame, str)
        found += [decode_event(text).seq for text in frame.splitlines()]
    return found


async def close_code_of(client: ClientConnection) -> int:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await client.recv()
    assert client.close_code is not None
    return client.close_code


async def test_hello_comes_first_then_every_event_that_follows(tmp_path: Path) -> None:
    async with served(tmp_path) as (hub, address):
        hub.publish([Draft(pruned())] * 3)
        await off_loop(hub.flush)
        async with connect(f"ws://{address}/ws") as client:
            hello = await hello_of(client)
            hub.publish([Draft(pruned())] * 3)
            found = await seqs_until(client, 5)

    assert (hello.run_id, hello.schema_version, hello.last_seq) == (RUN_ID, SCHEMA_VERSION, 2)
    assert found == [3, 4, 5]


@pytest.mark.parametrize("batch", [False, True])
async def test_since_replays_the_file_and_goes_live(tmp_path: Path, batch: bool) -> None:
    async with served(tmp_path) as (hub, address):
        hub.publish([Draft(pruned())] * 500)
        await off_loop(hub.flush)
        async with connect(f"ws://{address}/ws") as client:
            await subscribe(client, msgspec.json.encode({"since": 100, "batch": batch}))
            hub.publish([Draft(pruned())] * 50)
            found = await seqs_until(client, 549)

    assert found == list(range(100, 550))


async def test_batched_frame_carries_several_events(tmp_path: Path) -> None:
    async with served(tmp_path) as (hub, address):
        hub.publish([Draft(pruned())] * 20)
        await off_loop(hub.flush)
        async with connect(f"ws://{address}/ws") as client:
            await subscribe(client, '{"since":0,"batch":true}')
            frame = await client.recv()
    assert isinstance(frame, str)
    assert len(frame.splitlines()) > 1


async def test_subscription_is_answered_by_a_second_hello(tmp_path: Path) -> None:
    async with served(tmp_path) as (hub, address), connect(f"ws://{address}/ws") as client:
        await hello_of(client)
        hub.emit(pruned())
        assert await seqs_until(client, 0) == [0]
        await client.send('{"since":0}')
        again = await hello_of(client)
        found = await seqs_until(client, 0)
    assert (again.last_seq, again.is_subscribed) == (0, True)
    assert found == [0]


async def test_late_subscription_without_since_starts_after_the_first_hello(tmp_path: Path) -> None:
    async with served(tmp_path) as (hub, address):
        hub.publish([Draft(pruned())] * 3)
        await off_loop(hub.flush)
        async with connect(f"ws://{address}/ws") as client:
            assert (await hello_of(client)).last_seq == 2
            hub.emit(pruned())
            assert await seqs_until(client, 3) == [3]
            await subscribe(client, "{}")
            hub.emit(pruned())
            assert await seqs_until(client, 4) == [3, 4]


async def test_filter_of_a_subscription_is_kept_in_replay_and_live(tmp_path: Path) -> None:
    async with served(tmp_path) as (hub, address):
        for env_id in (0, 1, 2):
            hub.emit(pruned(), EventScope(env_id=env_id))
        await off_loop(hub.flush)
        async with connect(f"ws://{address}/ws") as client:
            await subscribe(client, '{"since":0,"env_ids":[1],"types":["SEED_PRUNED"]}')
            for env_id in (0, 1, 2):
                hub.emit(pruned(), EventScope(env_id=env_id))
            found = await seqs_until(client, 4)
    assert found == [1, 4]


async def test_end_of_the_run_closes_with_code_1000_behind_the_last_event(tmp_path: Path) -> None:
    async with served(tmp_path) as (hub, address), connect(f"ws://{address}/ws") as client:
        await hello_of(client)
        hub.publish([Draft(pruned())] * 5)
        await off_loop(hub.close)
        assert await seqs_until(client, 4) == [0, 1, 2, 3, 4]
        assert await close_code_of(client) == 1000


async def test_server_stops_by_itself_when_its_run_has_ended(tmp_path: Path) -> None:
    """Clients that read get everything; one whose connection is full is cut off."""
    async with contextlib.AsyncExitStack() as stack:
        hub = TelemetryHub(tmp_path, run_id=RUN_ID)
        app = build_app(source=hub.live, run_dir=tmp_path, security=Security(host=LOOPBACK))
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                address = await tasks.start(serve, app, listen(ServerAddress(LOOPBACK, 0)))
                url = f"ws://{address}/ws"
                stuck = await stack.enter_async_context(
                    connect(url, max_queue=1, sock=small_socket(str(address)))
                )
                await subscribe(stuck, '{"since":0,"batch":true}')
                stuck.transport.pause_reading()
                while not any(subscriber.lag for subscriber in hub.live.subscribers):
                    await off_loop(lambda: hub.publish([Draft(pruned())] * 2_000))
                    await off_loop(hub.flush)
                reader = await stack.enter_async_context(connect(url))
                await subscribe(reader, '{"since":0,"batch":true}')
                await off_loop(hub.close)
                last_seq = hub.live.last_seq
                found = await seqs_until(reader, last_seq)
                code = await close_code_of(reader)
        # The task group has ended, so the server has.
        assert found == list(range(last_seq + 1))
        assert code == 1000
        assert not hub.live.subscribers
        # Closing would wait ten seconds for an answer that this client does not read.
        stuck.transport.abort()


async def test_subscribers_learn_that_the_last_events_were_lost(tmp_path: Path) -> None:
    files = FailingFiles()
    hub = TelemetryHub(tmp_path, run_id=RUN_ID, files=files)
    app = build_app(source=hub.live, run_dir=tmp_path, security=Security(host=LOOPBACK))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            address = await tasks.start(serve, app, listen(ServerAddress(LOOPBACK, 0)))
            async with connect(f"ws://{address}/ws") as client:
                await hello_of(client)
                files.write_error = errno.ENOSPC
                hub.emit(pruned())
                with pytest.raises(TelemetryLostError):
                    await off_loop(hub.close)
                assert await close_code_of(client) == CloseCode.LOG_INCOMPLETE


async def test_stopping_server_closes_with_code_1001(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with served(tmp_path) as (_, address):
            client = await stack.enter_async_context(connect(f"ws://{address}/ws"))
            await hello_of(client)
        assert await close_code_of(client) == 1001


async def test_unknown_message_gets_an_error_frame_and_ten_close_the_connection(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as (_, address), connect(f"ws://{address}/ws") as client:
        await hello_of(client)
        for _ in range(10):
            await client.send('{"do":"something"}')
            error = message_in(await client.recv())
            assert isinstance(error, ErrorFrame)
            assert "unknown field `do`" in error.reason
        assert await close_code_of(client) == 1008


async def test_second_subscription_is_an_error(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, address), connect(f"ws://{address}/ws") as client:
        await hello_of(client)
        await subscribe(client, "{}")
        await client.send("{}")
        error = message_in(await client.recv())
        assert isinstance(error, ErrorFrame)
        assert "one subscription per connection" in error.reason


async def test_frame_over_64_kib_is_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, address), connect(f"ws://{address}/ws") as client:
        await hello_of(client)
        await client.send("x" * (64 * 1024 + 1))
        assert await close_code_of(client) == 1009


async def test_one_connection_too_many_is_asked_to_try_again_later(tmp_path: Path) -> None:
    async with served(tmp_path, max_connections=1) as (_, address):
        async with connect(f"ws://{address}/ws") as first:
            await hello_of(first)
            async with connect(f"ws://{address}/ws") as second:
                assert await close_code_of(second) == 1013
        async with connect(f"ws://{address}/ws") as third:
            await hello_of(third)


async def test_client_that_stops_reading_gets_its_exact_gap(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        hub, address = await stack.enter_async_context(served(tmp_path))
        # A small receive buffer and no queue, so that not reading is felt by the server soon.
        sock = small_socket(address)
        url = f"ws://{address}/ws"
        client = await stack.enter_async_context(connect(url, max_queue=1, sock=sock))
        await subscribe(client, '{"batch":true}')
        client.transport.pause_reading()
        while hub.live.log.num_bytes < 4 * FEED_BYTES:
            await off_loop(lambda: hub.publish([Draft(pruned())] * 1_000))
            await off_loop(hub.flush)
        client.transport.resume_reading()
        await off_loop(hub.close)
        next_seq, num_dropped = 0, 0
        async for frame in client:
            assert isinstance(frame, str)
            if frame.startswith('{"type"'):
                gap = message_in(frame)
                assert isinstance(gap, Gap)
                assert gap.first_seq == next_seq
                assert gap.num_dropped == gap.last_seq + 1 - gap.first_seq
                next_seq, num_dropped = gap.last_seq + 1, num_dropped + gap.num_dropped
                continue
            for text in frame.splitlines():
                assert decode_event(text).seq == next_seq
                next_seq += 1
    assert num_dropped > 0
    assert next_seq == hub.live.last_seq + 1


async def test_client_that_vanishes_in_mid_stream_is_forgotten_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as (hub, address):
        for batch in (b"true", b"false"):
            client = await connect(f"ws://{address}/ws", sock=small_socket(address))
            await client.send(b'{"since":0,"batch":%b}' % batch)
            await hello_of(client)
            client.transport.pause_reading()
            await off_loop(lambda: hub.publish([Draft(pruned())] * 2_000))
            await off_loop(hub.flush)
            client.transport.abort()
            await off_loop(lambda: wait_until(lambda: not hub.live.subscribers))
    assert caplog.records == []


def small_socket(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    connection.setblocking(False)
    return connection


async def test_http_routes_answer(tmp_path: Path) -> None:
    async with served(tmp_path) as (hub, address), httpx.AsyncClient() as http:
        for env_id in range(5):
            hub.emit(pruned(), EventScope(env_id=env_id))
        await off_loop(hub.flush)
        health = await http.get(f"http://{address}/healthz")
        manifest = await http.get(f"http://{address}/api/run")
        some = await http.get(f"http://{address}/api/events?since=1&limit=2")
        mine = await http.get(f"http://{address}/api/events?env=3&types=SEED_PRUNED")
        page = await http.get(f"http://{address}/page")

    assert health.json() == {"status": "ok", "last_seq": 4}
    assert msgspec.json.decode(manifest.content, type=RunManifest).run_id == RUN_ID
    assert [decode_event(text).seq for text in some.content.splitlines()] == [1, 2]
    assert [decode_event(text).seq for text in mine.content.splitlines()] == [3]
    assert page.text == "a page"


@pytest.mark.parametrize(
    "query",
    ["since=-1", "since=1e3", "limit=x", "env=" + "9" * 30, "types=NO_SUCH", "since=²", "before=x"],
)
async def test_query_that_makes_no_sense_is_refused(tmp_path: Path, query: str) -> None:
    async with served(tmp_path) as (_, address), httpx.AsyncClient() as http:
        answer = await http.get(f"http://{address}/api/events?{query}")
    assert answer.status_code == 400
    assert answer.text


@pytest.mark.parametrize("path", ["/../run.json", "/%2e%2e/run.json", "/ws/../events.jsonl", "//"])
async def test_no_path_leads_to_files(tmp_path: Path, path: str) -> None:
    async with served(tmp_path) as (_, address):
        host, _, port = address.rpartition(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
            answer = await stream.receive()
    assert answer.startswith(b"HTTP/1.1 404")


async def refused_status(address: str, path: str = "/ws", **headers: str) -> int:
    """Return the HTTP status that a websocket handshake is refused with."""
    with pytest.raises(InvalidStatus) as caught:
        async with connect(f"ws://{address}{path}", additional_headers=headers, proxy=None):
            pass
    return caught.value.response.status_code


async def test_pages_of_other_origins_may_not_connect(tmp_path: Path) -> None:
    security = Security(host=LOOPBACK, allowed_origins=frozenset({"http://dash.example"}))
    async with served(tmp_path, security=security) as (_, address):
        assert await refused_status(address, Origin="http://evil.example") == 403
        assert await refused_status(address, Origin="null") == 403
        assert await refused_status(address, Origin=f"http://{address}0") == 403
        for origin in (f"http://{address}", "http://dash.example"):
            async with connect(f"ws://{address}/ws", additional_headers={"Origin": origin}) as ok:
                await hello_of(ok)


async def test_foreign_host_names_are_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, address), httpx.AsyncClient() as http:
        for host, status in (
            ("evil.example", 400),
            (f"127.0.0.1.evil.example:{address.rpartition(':')[2]}", 400),
            ("[", 400),
            ("localhost:1", 200),
            ("[::1]", 200),
        ):
            answer = await http.get(f"http://{address}/healthz", headers={"Host": host})
            assert answer.status_code == status, host


async def test_token_is_asked_for_in_header_or_query(tmp_path: Path) -> None:
    security = Security(host=LOOPBACK, token="sesame")
    async with served(tmp_path, security=security) as (_, address), httpx.AsyncClient() as http:
        assert await refused_status(address) == 401
        assert await refused_status(address, path="/ws?token=sesam") == 401
        assert await refused_status(address, Authorization="Basic sesame") == 401
        async with connect(f"ws://{address}/ws?token=sesame") as client:
            await hello_of(client)
        url = f"http://{address}/healthz"
        assert (await http.get(url)).status_code == 401
        answer = await http.get(url, headers={"Authorization": "Bearer sesame"})
        assert answer.status_code == 200


async def test_address_in_use_is_named(tmp_path: Path) -> None:
    async with served(tmp_path) as (hub, address):
        app = build_app(source=hub.live, run_dir=tmp_path, security=Security(host=LOOPBACK))
        with pytest.raises(UsageError, match=f"cannot serve on {address}: address already in use"):
            await serve(app, listen(ServerAddress.parse(address)))


@pytest.mark.parametrize(
    "text", ["8765", ":8765", "host:", "host:x", "host:70000", "\udcff:80", "a\0b:80"]
)
async def test_address_off_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        ServerAddress.parse(text)


async def test_ipv6_address_is_read_and_shown_in_brackets() -> None:
    address = ServerAddress.parse("[::1]:80")
    assert (address.host, address.port, str(address)) == ("::1", 80, "[::1]:80")


NUM_SEARCHED = 1500
"""Events over several spans of the index."""


@pytest.mark.parametrize("page", [7, 400])
async def test_search_backwards_finds_what_reading_everything_finds(
    tmp_path: Path, page: int
) -> None:
    async with served(tmp_path) as (hub, address), httpx.AsyncClient() as http:
        for number in range(NUM_SEARCHED):
            slot = f"r0c{number % 3}"
            hub.publish([Draft(pruned(slot), EventScope(env_id=number % 5))])
        await off_loop(hub.flush)
        log = (hub.live.log.path).read_bytes().splitlines()
        wanted = [line for line in log if b'"slot_id":"r0c1"' in line and b'"env_id":3,' in line]
        expected = [decode_event(line).seq for line in reversed(wanted)]
        found: list[int] = []
        query = {"text": ['"SLOT_ID":"R0C1"', '"env_id":3,'], "types": "SEED_PRUNED", "env": "3"}
        before = NUM_SEARCHED + 1
        while len(found) < 3 * page:
            answer = await http.get(
                f"http://{address}/api/events", params={**query, "before": before, "limit": page}
            )
            part = [decode_event(text).seq for text in answer.content.splitlines()]
            if not part:
                break
            found += part
            before = part[-1]
        nothing = await http.get(f"http://{address}/api/events?before=99999&text=nowhere")
        severe = await http.get(f"http://{address}/api/events?before=99999&min_severity=error")
        some = await http.get(f"http://{address}/api/events?before=20&since=10&limit=100")
    assert found == expected[: len(found)]
    assert len(found) == min(3 * page, len(expected))
    assert (nothing.content, severe.content) == (b"", b"")
    assert [decode_event(text).seq for text in some.content.splitlines()] == [*range(19, 9, -1)]


async def test_too_many_texts_are_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, address), httpx.AsyncClient() as http:
        answer = await http.get(f"http://{address}/api/events?{'text=a&' * 9}")
        other = await http.get(f"http://{address}/api/events?min_severity=loud")
    assert (answer.status_code, other.status_code) == (400, 400)
