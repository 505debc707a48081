"""Whole messages over a stream socket: each one is preceded by its length."""

import contextlib
import socket
import struct
import threading
from typing import Final

__all__ = ["Wire"]

_LENGTH: Final = struct.Struct("<Q")
MAX_MESSAGE_BYTES: Final = 2**32
"""A length beyond this is not one of ours: snapshots, the largest messages, hold one network."""


class Wire:
    """One end of a connection; several threads may send, one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()

    def send(self, message: bytes) -> None:
        """Send a message; raise OSError if the other end is gone."""
        with self._sending:
            # In one call: the receiver would wake for the length alone, and again for the contents.
            self._socket.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self) -> bytes | None:
        """Return the next message; None if the other end is gone, even in mid-message.

        An impossible length counts as the end: nothing after it can be understood.
        """
        head = self._read(_LENGTH.size)
        if head is None:
            return None
        (size,) = _LENGTH.unpack(head)
        return None if size > MAX_MESSAGE_BYTES else self._read(size)

    def _read(self, size: int) -> bytes | None:
        """Return exactly `size` bytes; None if the connection ends before."""
        # Allocated once: joining the pieces of a snapshot would copy them again and again.
        data = bytearray(size)
        rest = memoryview(data)
        while rest:
            try:
                num_read = self._socket.recv_into(rest)
            except OSError:
                return None
            if num_read == 0:
                return None
            rest = rest[num_read:]
        return bytes(data)

    def close(self) -> None:
        """End the connection, which also wakes a thread that is receiving."""
        with contextlib.suppress(OSError):  # the other end may have closed it already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
