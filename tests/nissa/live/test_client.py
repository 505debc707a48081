"""The live tail shows what a server sends and comes back after an interruption."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import msgspec
import pytest
from websockets.sync.server import Server, ServerConnection, serve

from esper.leyline.errors import TelemetryLostError, UsageError
from esper.leyline.live import CloseCode, ErrorFrame, Gap, Hello, ServerMessage, Subscription
from esper.nissa.live.client import LiveTail, Notice, TailItem, websocket_url

Script = Callable[[ServerConnection, Subscription], None]


def hello(last_seq: int = -1, run_id: str = "run", *, is_subscribed: bool = False) -> Hello:
    return Hello(run_id=run_id, schema_version=1, last_seq=last_seq, is_subscribed=is_subscribed)


def event(seq: int) -> bytes:
    return b'{"event_type":"A","seq":%d}' % seq


def send(connection: ServerConnection, *messages: ServerMessage | bytes) -> None:
    for message in messages:
        data = message if isinstance(message, bytes) else msgspec.json.encode(message)
        connection.send(data.decode())


class FakeServer:
    """Follows one script per connection and keeps the subscriptions it was sent."""

    def __init__(self, *scripts: Script) -> None:
        self.subscriptions: list[Subscription] = []
        self._scripts = iter(scripts)

    def handle(self, connection: ServerConnection) -> None:
        send(connection, hello(4))
        text = connection.recv(timeout=5)
        self.subscriptions.append(msgspec.json.decode(text, type=Subscription))
        send(connection, hello(4, is_subscribed=True))
        next(self._scripts)(connection, self.subscriptions[-1])


@contextmanager
def serving(server: FakeServer) -> Iterator[str]:
    with serve(server.handle, "127.0.0.1", 0) as listener:
        thread = Thread(target=listener.serve_forever, daemon=True)
        thread.start()
        yield f"ws://127.0.0.1:{port_of(listener)}/ws"
        listener.shutdown()
        thread.join(timeout=5)


def port_of(listener: Server) -> int:
    port = listener.socket.getsockname()[1]
    assert isinstance(port, int)
    return port


def no_wait(_: float) -> None:
    """Try again at once."""


def tail(server: FakeServer, subscription: Subscription | None = None) -> list[TailItem]:
    with serving(server) as url:
        return list(LiveTail(url, subscription or Subscription(), wait=no_wait).items())


def test_events_and_gaps_come_in_order_until_the_run_ends() -> None:
    gap = Gap(num_dropped=2, first_seq=6, last_seq=7)

    def script(connection: ServerConnection, _: Subscription) -> None:
        send(connection, event(5), gap, event(8) + b"\n" + event(9) + b"\n")

    server = FakeServer(script)

    assert tail(server, Subscription(types=["A"])) == [event(5), gap, event(8), event(9)]
    assert server.subscriptions[0].types == ["A"]
    assert server.subscriptions[0].batch


def test_events_sent_before_the_subscription_arrived_are_not_shown_twice() -> None:
    def handle(connection: ServerConnection) -> None:
        send(connection, hello(4), event(5))
        connection.recv(timeout=5)
        send(connection, event(6), hello(6, is_subscribed=True), event(0), event(1))

    server = FakeServer()
    server.handle = handle

    assert tail(server, Subscription(since=0)) == [event(0), event(1)]


def test_a_log_that_lost_its_last_events_is_reported_as_incomplete() -> None:
    def script(connection: ServerConnection, _: Subscription) -> None:
        send(connection, event(5))
        connection.close(CloseCode.LOG_INCOMPLETE, CloseCode.LOG_INCOMPLETE.reason)

    with pytest.raises(TelemetryLostError, match="the last event on disk is 5") as caught:
        tail(FakeServer(script))

    assert caught.value.exit_code == 3


def test_lost_connection_is_taken_up_where_it_was_lost() -> None:
    def lose(connection: ServerConnection, _: Subscription) -> None:
        send(connection, event(5), event(6))
        connection.close(1001, "server stops")

    def finish(connection: ServerConnection, wanted: Subscription) -> None:
        assert wanted.since is not None
        send(connection, event(wanted.since))

    items = tail(FakeServer(lose, finish))

    assert items[0:2] == [event(5), event(6)]
    assert items[2] == Notice("server stops; trying again in 0.5 s")
    assert items[3:] == [event(7)]


def test_server_that_stops_after_the_last_event_ends_the_tail() -> None:
    last = b'{"event_type":"RUN_FINISHED","seq":5}'

    def stop(connection: ServerConnection, _: Subscription) -> None:
        send(connection, last)
        connection.close(1001, "server stops")

    assert tail(FakeServer(stop)) == [last]


def test_connection_lost_before_any_event_goes_on_after_the_hello() -> None:
    def lose(connection: ServerConnection, _: Subscription) -> None:
        connection.close(1011, "log unreadable")

    def finish(_: ServerConnection, wanted: Subscription) -> None:
        assert wanted.since == 5

    server = FakeServer(lose, finish)
    tail(server)

    assert [item.since for item in server.subscriptions] == [None, 5]


def test_another_run_at_the_same_address_is_reported() -> None:
    def lose(connection: ServerConnection, _: Subscription) -> None:
        send(connection, event(50))
        connection.close(1001, "server stops")

    def finish(connection: ServerConnection, _: Subscription) -> None:
        send(connection, hello(1, run_id="other", is_subscribed=True), event(2))

    items = tail(FakeServer(lose, finish))

    assert Notice("the server now serves another run: other") in items
    assert items[-1] == event(2)


def test_error_of_the_server_ends_the_tail_with_its_reason() -> None:
    def script(connection: ServerConnection, _: Subscription) -> None:
        send(connection, ErrorFrame(reason="unknown event type 'X'"))

    with pytest.raises(UsageError, match="unknown event type 'X'"):
        tail(FakeServer(script))


def test_nonsense_from_the_server_is_reported_and_left_out() -> None:
    def script(connection: ServerConnection, _: Subscription) -> None:
        send(connection, b"{", b'{"type":"new"}', event(5))

    items = tail(FakeServer(script))

    assert [type(item) for item in items] == [Notice, Notice, bytes]


def test_address_without_a_server_is_reported_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{unused.getsockname()[1]}/ws?token=secret"

        with pytest.raises(UsageError, match="is a run served there") as caught:
            list(LiveTail(url, Subscription(), wait=no_wait).items())

    assert "secret" not in str(caught.value)


def test_server_that_never_comes_back_is_given_up() -> None:
    waits: list[float] = []

    def lose(connection: ServerConnection, _: Subscription) -> None:
        connection.close(1001, "server stops")

    with serving(FakeServer(lose)) as url:
        items = LiveTail(url, Subscription(), wait=waits.append).items()
        assert next(items) == Notice("server stops; trying again in 0.5 s")

    with pytest.raises(UsageError, match="gave up after 9 attempts"):
        list(items)
    assert waits == sorted(waits)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("ws://h:1/ws", "ws://h:1/ws"),
        ("http://h:1", "ws://h:1/ws"),
        ("https://h/", "wss://h/ws"),
        ("ws://h:1?token=a", "ws://h:1/ws?token=a"),
    ],
)
def test_address_is_completed(text: str, url: str) -> None:
    assert websocket_url(text) == url


def test_other_schemes_are_refused() -> None:
    with pytest.raises(UsageError, match="expected an address"):
        websocket_url("ftp://h/")
