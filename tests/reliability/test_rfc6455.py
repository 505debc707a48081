"""The websocket follows RFC 6455 towards clients that do not."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.soak.frames import Opcode, RawClient, frame_bytes
from tools.soak.serving import Served, served_hub

PROTOCOL_ERROR, INVALID_DATA, TOO_BIG = 1002, 1007, 1009
MAX_BYTES = 64 * 1024


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_hub(tmp_path_factory.mktemp("served")) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[RawClient]:
    with RawClient(served.port) as client:
        assert client.request() == 101
        yield client


def text(payload: bytes, *, is_final: bool = True) -> bytes:
    return frame_bytes(Opcode.TEXT, payload, is_final=is_final)


def more(payload: bytes, *, is_final: bool = True) -> bytes:
    return frame_bytes(Opcode.CONTINUATION, payload, is_final=is_final)


BROKEN = {
    "an unmasked frame": (frame_bytes(Opcode.TEXT, b"{}", is_masked=False), PROTOCOL_ERROR),
    "reserved bit 1": (frame_bytes(Opcode.TEXT, b"{}", reserved=4), PROTOCOL_ERROR),
    "reserved bit 2": (frame_bytes(Opcode.TEXT, b"{}", reserved=2), PROTOCOL_ERROR),
    "reserved bit 3": (frame_bytes(Opcode.TEXT, b"{}", reserved=1), PROTOCOL_ERROR),
    "a reserved data opcode": (frame_bytes(Opcode.RESERVED_DATA, b"{}"), PROTOCOL_ERROR),
    "a reserved control opcode": (frame_bytes(Opcode.RESERVED_CONTROL), PROTOCOL_ERROR),
    "a ping that is too long": (frame_bytes(Opcode.PING, b"x" * 126), PROTOCOL_ERROR),
    "a ping in parts": (frame_bytes(Opcode.PING, b"x", is_final=False), PROTOCOL_ERROR),
    "a continuation of nothing": (more(b"{}"), PROTOCOL_ERROR),
    "a message within a message": (text(b"{", is_final=False) + text(b"}"), PROTOCOL_ERROR),
    "text that is not UTF-8": (text(b"\xff\xfe"), INVALID_DATA),
    "UTF-8 that ends too early": (text(b"\xe2\x82"), INVALID_DATA),
    "UTF-8 that is broken across parts": (
        text(b"\xe2", is_final=False) + more(b"\x28"),
        INVALID_DATA,
    ),
    "a surrogate in UTF-8": (text(b"\xed\xa0\x80"), INVALID_DATA),
    "a close without a whole code": (frame_bytes(Opcode.CLOSE, b"\x03"), PROTOCOL_ERROR),
    "a close with a reserved code": (frame_bytes(Opcode.CLOSE, b"\x03\xed"), PROTOCOL_ERROR),
    "a frame that is too big": (text(b"x" * (MAX_BYTES + 1)), TOO_BIG),
    "a message that is too big in parts": (
        text(b"x" * 40_000, is_final=False) + more(b"x" * 40_000),
        TOO_BIG,
    ),
    "a frame that announces an exabyte": (
        frame_bytes(Opcode.TEXT, b"x", announced_bytes=1 << 60),
        TOO_BIG,
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_frame_closes_the_connection_with_the_code_for_it(
    what: str, client: RawClient
) -> None:
    data, code = BROKEN[what]
    client.send(data)
    assert client.close_code() == code


def test_message_in_parts_is_one_message(client: RawClient) -> None:
    assert client.read_until(Opcode.TEXT) is not None
    client.send(text(b'{"since"', is_final=False) + more(b":0,", is_final=False))
    client.send(frame_bytes(Opcode.PING, b"in between"))
    client.send(more(b'"batch":tru', is_final=False) + more(b"e}"))

    pong = client.read_until(Opcode.PONG)
    assert pong is not None
    assert pong.payload == b"in between"
    client.send(text(b'{"since":0}'))
    complaint = client.read_until(Opcode.TEXT)
    while complaint is not None and b"hello" in complaint.payload:
        complaint = client.read_until(Opcode.TEXT)
    assert complaint is not None
    assert b"one subscription per connection" in complaint.payload


@pytest.mark.parametrize("payload", [b"", b"x" * 125, b"\x00\xff"])
def test_ping_comes_back_as_it_was(payload: bytes, client: RawClient) -> None:
    client.send(frame_bytes(Opcode.PING, payload))
    pong = client.read_until(Opcode.PONG)
    assert pong is not None
    assert pong.payload == payload


def test_close_is_answered_and_nothing_follows(client: RawClient) -> None:
    client.send(frame_bytes(Opcode.CLOSE, b"\x03\xe8bye"))
    assert client.close_code() == 1000
    assert client.read() is None


def test_close_behind_text_that_is_not_utf8_is_answered(client: RawClient) -> None:
    client.send(text(b"\xff\xfe") + frame_bytes(Opcode.CLOSE, b"\x03\xe8"))
    assert client.close_code() == 1000


def test_unsolicited_pong_is_ignored(client: RawClient) -> None:
    client.send(frame_bytes(Opcode.PONG, b"unasked") + frame_bytes(Opcode.PING, b"still there"))
    pong = client.read_until(Opcode.PONG)
    assert pong is not None
    assert pong.payload == b"still there"


@pytest.mark.parametrize("version", ["7", "12", "14", "x"])
def test_other_versions_of_the_protocol_are_refused(version: str, served: Served) -> None:
    with RawClient(served.port) as client:
        assert client.request(version=version) in (400, 426)


def test_no_connection_is_left_behind(served: Served, tmp_path: Path) -> None:
    with RawClient(served.port) as client:
        assert client.request() == 101
    with RawClient(served.port) as client:
        assert client.request() == 101
        client.send(frame_bytes(Opcode.CLOSE, b"\x03\xe8"))
        assert client.close_code() == 1000
