"""The server refuses unauthorized clients under attack and keeps serving authorized ones."""

import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.soak.frames import Opcode, RawClient, frame_bytes
from tools.soak.serving import Served, served_hub
from tools.soak.siege import (
    PATHS,
    PRIVATE,
    TOKEN,
    connected,
    header_flood,
    long_line,
    nonsense,
    reconnect,
    request,
    rss_bytes,
)

from esper.nissa.live.budget import TokenBucket

MAX_GROWTH_BYTES = 32 << 20
BEARER = f"Authorization: Bearer {TOKEN}"
NUM_CONNECTIONS = 200


def has_hung_up(client: socket.socket) -> bool:
    """Wait for the server to end a connection on which it has nothing to say."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_hub(tmp_path_factory.mktemp("served"), token=TOKEN) as served:
        yield served


def status(answer: bytes) -> int | None:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None


def is_well(served: Served) -> bool:
    return status(request(served.port, "/healthz", BEARER)) == 200


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_out(path: str, served: Served) -> None:
    assert status(request(served.port, path, BEARER)) == 404
    assert status(request(served.port, path)) == 401


@pytest.mark.parametrize("header", ["", "Authorization: Bearer wrong", "Authorization: Basic x"])
def test_wrong_token_opens_nothing(header: str, served: Served) -> None:
    headers = [header] if header else []
    assert {status(request(served.port, path, *headers)) for path in PRIVATE} == {401}
    with RawClient(served.port) as client:
        assert client.request(*headers) == 401


def test_page_of_another_origin_gets_nothing_even_with_the_token(served: Served) -> None:
    with RawClient(served.port) as client:
        assert client.request(BEARER, "Origin: http://evil.example") == 403


def test_flood_of_headers_is_cut_off(served: Served) -> None:
    before = rss_bytes()
    for _ in range(5):
        assert status(header_flood(served.port)) in (400, 431, None)
        assert status(long_line(served.port)) in (400, 414, 431, None)
    assert rss_bytes() - before < MAX_GROWTH_BYTES
    assert is_well(served)


def test_nonsense_is_refused_without_a_word_to_the_operator(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(1)
    for _ in range(50):
        assert status(nonsense(served.port, rng)) in (400, 401, None)
    assert caplog.records == []
    assert is_well(served)


def test_more_clients_than_allowed_are_asked_to_come_again(served: Served) -> None:
    before = rss_bytes()
    clients = [RawClient(served.port) for _ in range(NUM_CONNECTIONS)]
    try:
        assert {client.request(BEARER) for client in clients} == {101}
        first = [client.read() for client in clients]
        codes = [frame.close_code for frame in first if frame is not None]
        assert codes.count(1013) == NUM_CONNECTIONS - 128
        assert codes.count(None) == 128
        assert is_well(served)
    finally:
        for client in clients:
            client.socket.close()
    assert rss_bytes() - before < MAX_GROWTH_BYTES


def test_storm_of_reconnections_leaves_no_connection_behind(served: Served) -> None:
    reconnect(served.port, 100)
    with RawClient(served.port) as last:
        assert last.request(BEARER) == 101
        last.send(frame_bytes(Opcode.CLOSE, b"\x03\xe8"))
        assert last.close_code() == 1000
    assert is_well(served)


def test_those_who_come_too_fast_wait_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.nissa.live.server.ACCEPT_BURST", 3)
    with served_hub(tmp_path, max_arrivals_per_s=0.001) as served:
        for _ in range(3):
            with RawClient(served.port) as client:
                assert client.request() == 101
        with connected(served.port) as hasty:
            hasty.settimeout(0.5)
            hasty.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
            with pytest.raises(TimeoutError):
                hasty.recv(1)


def test_those_who_wait_are_let_in_when_their_time_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.nissa.live.server.ACCEPT_BURST", 1)
    with served_hub(tmp_path, max_arrivals_per_s=20.0) as served:
        patient = [RawClient(served.port) for _ in range(10)]
        assert [client.request() for client in patient] == [101] * 10
        for client in patient:
            client.socket.close()


def test_arrivals_never_come_faster_than_their_rate_after_the_rush() -> None:
    arrivals, now_s, came_s = TokenBucket(per_s=2.0, burst=64.0), 100.0, []
    for _ in range(84):
        came_s.append(now_s)
        now_s += arrivals.take(now_s)
    assert came_s[:64] == [100.0] * 64
    assert came_s[64:] == pytest.approx([100.5 + 0.5 * index for index in range(20)])


def test_those_who_come_slowly_enough_never_wait() -> None:
    arrivals = TokenBucket(per_s=2.0, burst=64.0)
    assert all(arrivals.take(0.5 * index) == 0.0 for index in range(2000))


def test_connection_without_a_request_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.nissa.live.server.REQUEST_GRACE_S", 0.05)
    monkeypatch.setattr("esper.nissa.live.server.CHECK_EVERY_S", 0.05)
    with (
        served_hub(tmp_path) as served,
        connected(served.port) as silent,
        connected(served.port) as slow,
    ):
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127")
        assert has_hung_up(silent)
        assert has_hung_up(slow)


def test_sockets_beyond_the_bound_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.nissa.live.server.MAX_SOCKETS", 3)
    monkeypatch.setattr("esper.nissa.live.server.DISPLACE_AFTER_S", 1000.0)
    with served_hub(tmp_path) as served:
        early = [connected(served.port) for _ in range(3)]
        with connected(served.port) as late:
            assert has_hung_up(late)
        for client in early:
            client.close()
