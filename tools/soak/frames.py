"""A websocket client that may violate the protocol: raw frames over a plain socket."""

import base64
import os
import socket
import struct
from enum import IntEnum
from typing import NamedTuple, Self

TIMEOUT_S = 20.0
HANDSHAKE_KEY = base64.b64encode(bytes(16)).decode()


class Opcode(IntEnum):
    """Opcodes, RFC 6455 section 5.2."""

    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    RESERVED_DATA = 3
    CLOSE = 8
    PING = 9
    PONG = 10
    RESERVED_CONTROL = 11


class Frame(NamedTuple):
    """One frame from the server."""

    opcode: int
    payload: bytes

    @property
    def close_code(self) -> int | None:
        """Return the close code; None for any other frame."""
        if self.opcode != Opcode.CLOSE:
            return None
        return struct.unpack("!H", self.payload[:2])[0] if self.payload else 1005


def frame_bytes(
    opcode: int,
    payload: bytes = b"",
    *,
    is_final: bool = True,
    is_masked: bool = True,
    reserved: int = 0,
    announced_bytes: int | None = None,
) -> bytes:
    """Build a valid or invalid frame; the declared length may be wrong."""
    length = len(payload) if announced_bytes is None else announced_bytes
    head = bytes([is_final << 7 | reserved << 4 | opcode])
    mask_bit = is_masked << 7
    if length < 126:
        head += bytes([mask_bit | length])
    elif length < 1 << 16:
        head += struct.pack("!BH", mask_bit | 126, length)
    else:
        head += struct.pack("!BQ", mask_bit | 127, length)
    if not is_masked:
        return head + payload
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


class RawClient:
    """One connection, read frame by frame."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def request(self, *headers: str, path: str = "/ws", version: str = "13") -> int:
        """Send the handshake and return the HTTP status."""
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {HANDSHAKE_KEY}",
            f"Sec-WebSocket-Version: {version}",
            *headers,
        ]
        self.socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = self._read_until(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1])

    def send(self, data: bytes) -> None:
        """Send bytes; ignore a connection that the server has already closed."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def read(self) -> Frame | None:
        """Return the next frame, or None once the connection is closed."""
        try:
            first, second = self._read_exactly(2)
            length = second & 0x7F
            if length == 126:
                (length,) = struct.unpack("!H", self._read_exactly(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", self._read_exactly(8))
            return Frame(first & 0x0F, self._read_exactly(length))
        except (EOFError, ConnectionResetError):
            return None

    def read_until(self, opcode: int) -> Frame | None:
        """Return the next frame of a kind, or None once the connection is closed."""
        while (frame := self.read()) is not None and frame.opcode != opcode:
            continue
        return frame

    def close_code(self) -> int | None:
        """Return the server's close code; None if it closes without one."""
        frame = self.read_until(Opcode.CLOSE)
        return None if frame is None else frame.close_code

    def _read_exactly(self, num_bytes: int) -> bytes:
        while len(self._received) < num_bytes:
            self._receive()
        data, self._received = self._received[:num_bytes], self._received[num_bytes:]
        return data

    def _read_until(self, end: bytes) -> bytes:
        while end not in self._received:
            self._receive()
        data, _, self._received = self._received.partition(end)
        return data

    def _receive(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise EOFError
        self._received += data
