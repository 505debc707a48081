"""A session, driven through an ASGI websocket without a server."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from starlette.types import Message
from starlette.websockets import WebSocket
from tests.nissa.making import RUN_ID, pruned

from esper.leyline.live import CloseCode, ErrorFrame, Hello, Subscription
from esper.leyline.telemetry import Draft, decode_event
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.live.session import MAX_BAD_MESSAGES, Session, Stop

WAIT_S = 20.0
pytestmark = pytest.mark.anyio


class Client:
    """The client's end of a websocket in memory."""

    def __init__(
        self,
        outgoing: MemoryObjectSendStream[Message],
        incoming: MemoryObjectReceiveStream[Message],
    ) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self.stop = Stop()

    async def send(self, text: str | bytes) -> None:
        data = text if isinstance(text, str) else text.decode()
        await self._outgoing.send({"type": "websocket.receive", "text": data})

    async def leave(self) -> None:
        await self._outgoing.send({"type": "websocket.disconnect", "code": 1001})

    async def text(self) -> str:
        message = await self._incoming.receive()
        assert message["type"] == "websocket.send", message
        return str(message["text"])

    async def hello(self) -> Hello:
        return msgspec.json.decode(await self.text(), type=Hello)

    async def close_code(self) -> int:
        message = await self._incoming.receive()
        assert message["type"] == "websocket.close", message
        return int(message["code"])


@asynccontextmanager
async def session_on(hub: TelemetryHub) -> AsyncIterator[Client]:
    """Serve one client; the session must have ended by the end of the block."""
    to_server, from_client = anyio.create_memory_object_stream[Message](math.inf)
    to_client, from_server = anyio.create_memory_object_stream[Message](math.inf)
    client = Client(to_server, from_server)
    with anyio.fail_after(WAIT_S), to_server, from_client, to_client, from_server:
        await to_server.send({"type": "websocket.connect"})
        websocket = WebSocket({"type": "websocket"}, from_client.receive, to_client.send)
        await websocket.accept()
        assert (await from_server.receive())["type"] == "websocket.accept"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Session(websocket, hub.live, client.stop).run)
            yield client
    assert hub.live.subscribers == []


def hub_with(run_dir: Path, num_events: int) -> TelemetryHub:
    hub = TelemetryHub(run_dir, run_id=RUN_ID)
    hub.publish(Draft(pruned(f"r0c{number % 2}")) for number in range(num_events))
    hub.flush(WAIT_S)
    return hub


async def test_hello_names_the_run_and_its_last_event(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, 3)
    async with session_on(hub) as client:
        hello = await client.hello()
        assert (hello.run_id, hello.last_seq, hello.is_subscribed) == (RUN_ID, 2, False)
        await client.leave()
    hub.close()


async def test_since_is_acknowledged_then_replayed_to_the_end_of_the_run(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, 4)
    hub.close()
    async with session_on(hub) as client:
        await client.hello()
        await client.send(msgspec.json.encode(Subscription(since=1)))
        assert (await client.hello()).is_subscribed
        assert [decode_event(await client.text()).seq for _ in range(3)] == [1, 2, 3]
        assert await client.close_code() == CloseCode.RUN_ENDED


async def test_batch_puts_the_events_of_a_page_into_one_frame(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, 4)
    hub.close()
    async with session_on(hub) as client:
        await client.hello()
        await client.send(msgspec.json.encode(Subscription(since=0, batch=True)))
        await client.hello()
        lines = (await client.text()).splitlines()
        assert [decode_event(text).seq for text in lines] == [0, 1, 2, 3]
        assert await client.close_code() == CloseCode.RUN_ENDED


async def test_second_subscription_is_an_error_that_leaves_the_session_open(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, 1)
    async with session_on(hub) as client:
        await client.hello()
        await client.send("{}")
        await client.hello()
        await client.send("{}")
        error = msgspec.json.decode(await client.text(), type=ErrorFrame)
        assert "one subscription per connection" in error.reason
        hub.emit(pruned())
        assert decode_event(await client.text()).seq == 1
        await client.leave()
    hub.close()


async def test_bad_messages_end_the_session_at_their_limit(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, 1)
    async with session_on(hub) as client:
        await client.hello()
        for _ in range(MAX_BAD_MESSAGES):
            await client.send("not JSON")
        for _ in range(MAX_BAD_MESSAGES):
            msgspec.json.decode(await client.text(), type=ErrorFrame)
        assert await client.close_code() == CloseCode.TOO_MANY_BAD_MESSAGES
    hub.close()


async def test_stopping_server_ends_the_session(tmp_path: Path) -> None:
    hub = hub_with(tmp_path, 1)
    async with session_on(hub) as client:
        await client.hello()
        client.stop.event.set()
        assert await client.close_code() == CloseCode.SERVER_STOPS
    hub.close()
