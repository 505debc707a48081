"""The live server of a hub, in a process of its own as every served run has it."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from os import sysconf
from pathlib import Path

import anyio

from esper.karn.web.server_process import MODULE, run_server_process
from esper.leyline.live import ServeRequest
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.live.address import ServerAddress, listen

__all__ = ["cpu_seconds", "served_hub", "server_pid"]


@asynccontextmanager
async def served_hub(hub: TelemetryHub) -> AsyncIterator[str]:
    """Serve a hub; gives the address of its live tail."""
    listener = listen(ServerAddress("127.0.0.1", 0))
    host, port = listener.getsockname()
    request = ServeRequest(
        run_dir=str(hub.run_dir), run_id=hub.run_id, host=host, token=None, allowed_origins=()
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_server_process, listener, request, hub)
        yield f"ws://{host}:{port}/ws"
        tasks.cancel_scope.cancel()


def server_pid() -> int:
    """Return the server's process, once it has been started."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    commands = {int(pid): Path("/proc", pid, "cmdline").read_bytes() for pid in text.split()}
    (found,) = (pid for pid, command in commands.items() if MODULE.encode() in command)
    return found


def cpu_seconds(pid: int) -> float:
    """Return the processor time a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / sysconf("SC_CLK_TCK")
