"""Whole messages over a stream socket."""

import socket
import threading

from hypothesis import given
from hypothesis import strategies as st

from esper.tolaria.wire import Wire

WAIT_S = 20.0


def pair() -> tuple[Wire, Wire]:
    ours, theirs = socket.socketpair()
    return Wire(ours), Wire(theirs)


@given(messages=st.lists(st.binary(max_size=300), max_size=5))
def test_messages_arrive_whole_and_in_order(messages: list[bytes]) -> None:
    near, far = pair()
    for message in messages:
        near.send(message)
    assert [far.receive() for _ in messages] == messages
    near.close()
    assert far.receive() is None
    far.close()


def test_a_message_larger_than_any_buffer_arrives() -> None:
    near, far = pair()
    large = bytes(range(256)) * 20_000
    sender = threading.Thread(target=near.send, args=(large,))
    sender.start()
    assert far.receive() == large
    sender.join(WAIT_S)
    near.close()
    far.close()


def test_a_message_that_was_cut_off_is_no_message() -> None:
    ours, theirs = socket.socketpair()
    far = Wire(theirs)
    ours.sendall((10).to_bytes(8, "little") + b"only")
    ours.close()
    assert far.receive() is None
    far.close()


def test_closing_wakes_a_thread_that_receives() -> None:
    near, far = pair()
    received: list[bytes | None] = []
    reader = threading.Thread(target=lambda: received.append(near.receive()))
    reader.start()
    near.close()
    reader.join(WAIT_S)
    assert received == [None]
    far.close()
