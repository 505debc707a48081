"""A live server on its own thread, for hostile clients."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from anyio.from_thread import start_blocking_portal

from esper.leyline.config import Job
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.live.address import ServerAddress, listen
from esper.nissa.live.app import build_app
from esper.nissa.live.security import Security
from esper.nissa.live.server import serve
from esper.nissa.storage.run_directory import build_manifest, create_run_directory

LOOPBACK = "127.0.0.1"


class Served(NamedTuple):
    """A hub and the port that its server listens on."""

    hub: TelemetryHub
    port: int


@contextmanager
def served_hub(
    folder: Path, *, token: str | None = None, max_arrivals_per_s: float = 1e6
) -> Iterator[Served]:
    """Serve a new run until the end of the block, without limiting the rate of connections."""
    manifest = build_manifest(Job(), command="ppo", machine_kind="soak")
    hub = TelemetryHub(create_run_directory(folder, manifest), run_id=manifest.run_id)
    security = Security(host=LOOPBACK, token=token)
    app = build_app(source=hub.live, run_dir=hub.run_dir, security=security)
    with start_blocking_portal() as portal:
        serving = partial(serve, max_arrivals_per_s=max_arrivals_per_s)
        running, address = portal.start_task(serving, app, listen(ServerAddress(LOOPBACK, 0)))
        try:
            yield Served(hub, address.port)
        finally:
            running.cancel()
    hub.close()
