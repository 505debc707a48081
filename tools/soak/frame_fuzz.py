"""Fuzzing of what a websocket client sends.

Every input is fed to the server's own protocol, on a transport in memory, in two halves after a
valid handshake. Row L17 guides the fuzzing by coverage; the test suite mutates frames.
"""

import asyncio
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from tools.soak.frames import HANDSHAKE_KEY, Opcode, frame_bytes
from uvicorn.server import ServerState

from esper.leyline.config import Job
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.live.app import build_app
from esper.nissa.live.budget import ConnectionBudget
from esper.nissa.live.protocols import MAX_WRITE_BUFFER_BYTES, WebSocketProtocol
from esper.nissa.live.security import Security
from esper.nissa.storage.run_directory import build_manifest, create_run_directory

LOOPBACK = "127.0.0.1"
MAX_OUTPUT_BYTES = 2 * MAX_WRITE_BUFFER_BYTES
HANDSHAKE = (
    f"GET /ws HTTP/1.1\r\nhost: {LOOPBACK}\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
    f"sec-websocket-key: {HANDSHAKE_KEY}\r\nsec-websocket-version: 13\r\n\r\n"
).encode()
"""In lower case, as the HTTP protocol hands it on."""
MAX_TURNS = 100
SEEDS = (
    frame_bytes(Opcode.TEXT, b'{"since":0,"batch":true,"types":["RUN_FINISHED"]}'),
    frame_bytes(Opcode.TEXT, b'{"min_severity":"info","env_ids":[0,1]}'),
    frame_bytes(Opcode.TEXT, b"{", is_final=False) + frame_bytes(Opcode.CONTINUATION, b"}"),
    frame_bytes(Opcode.PING, b"x") + frame_bytes(Opcode.PONG, b"y"),
    frame_bytes(Opcode.BINARY, b"\x00" * 200),
    frame_bytes(Opcode.CLOSE, b"\x03\xe8bye"),
    frame_bytes(Opcode.TEXT, b"x", announced_bytes=1 << 40),
)


class MemoryTransport(asyncio.Transport):
    """Keeps what is written; the client reads everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0
        self.first = b""
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Count what is sent."""
        self.num_bytes += len(data)
        self.first = self.first or bytes(data)

    def get_write_buffer_size(self) -> int:
        """Return 0: everything was read."""
        return 0

    def is_closing(self) -> bool:
        """Return whether the server has ended the connection."""
        return self._is_closing

    def close(self) -> None:
        """End the connection."""
        self._is_closing = True

    abort = close

    def pause_reading(self) -> None:
        """Go on: an attacker ignores back-pressure as far as the kernel lets it."""

    resume_reading = pause_reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Have no limits."""


class FrameTarget:
    """The server's side of a websocket, for one input after the other."""

    def __init__(self, folder: Path) -> None:
        manifest = build_manifest(Job(), command="ppo", machine_kind="soak")
        self._hub = TelemetryHub(create_run_directory(folder, manifest), run_id=manifest.run_id)
        app = build_app(
            source=self._hub.live, run_dir=self._hub.run_dir, security=Security(host=LOOPBACK)
        )
        self._config = uvicorn.Config(app, log_config=None, log_level="critical", lifespan="off")
        self._config.ws_max_size = 64 * 1024
        self._config.ws_per_message_deflate = False
        self._config.load()
        self._loop = asyncio.new_event_loop()
        self.errors: list[dict[str, object]] = []
        self._loop.set_exception_handler(lambda _, context: self.errors.append(context))

    def try_input(self, data: bytes) -> None:
        """Feed one input; raise AssertionError if it breaks anything."""
        self._loop.run_until_complete(self._try_input(data))
        assert not self.errors, self.errors

    async def _try_input(self, data: bytes) -> None:
        state, transport = ServerState(), MemoryTransport()
        protocol = WebSocketProtocol(self._config, state, {"budget": ConnectionBudget()})
        protocol.connection_made(transport)
        protocol.data_received(HANDSHAKE)
        for _ in range(MAX_TURNS):
            await asyncio.sleep(0)
            if transport.first:
                break
        assert transport.first.startswith(b"HTTP/1.1 101 "), "the handshake failed"
        half = len(data) // 2
        for part in (data[:half], data[half:]):
            if part and not transport.is_closing():
                protocol.data_received(part)
            await asyncio.sleep(0)
        num_bytes = transport.num_bytes
        protocol.connection_lost(None)
        if state.tasks:
            _, left = await asyncio.wait(state.tasks, timeout=20.0)
            assert not left, "a connection that was lost is still served"
        assert num_bytes < MAX_OUTPUT_BYTES, f"{num_bytes} bytes for an input of {len(data)}"
        assert not self._hub.live.subscribers, "a subscriber was left behind"

    def close(self) -> None:
        """End the hub and the loop."""
        self._hub.close()
        self._loop.close()


@contextmanager
def frame_target() -> Iterator[FrameTarget]:
    """Provide a target in a temporary directory."""
    with tempfile.TemporaryDirectory() as name:
        target = FrameTarget(Path(name))
        try:
            yield target
        finally:
            target.close()


def mutated(rng: random.Random) -> bytes:
    """Return some valid frames, with some of their bytes changed."""
    data = bytearray(b"".join(rng.choices(SEEDS, k=rng.randint(1, 4))))
    for _ in range(rng.randint(0, 6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data[: rng.randint(1, len(data))])
