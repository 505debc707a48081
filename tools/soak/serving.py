"""A live server on a thread of its own, for clients that mean no good."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from anyio.from_thread import start_blocking_portal

from esper.leyline.config import Job
from esper.nissa.hub import TelemetryHub
from esper.nissa.run_directory import build_manifest, create_run_directory
from esper.nissa.security import Security
from esper.nissa.server import ServerAddress, build_app, serve

LOOPBACK = "127.0.0.1"


class Served(NamedTuple):
    """A hub and the port that its server listens on."""

    hub: TelemetryHub
    port: int


@contextmanager
def served_hub(folder: Path, *, token: str | None = None) -> Iterator[Served]:
    """Serve a fresh run until the end of the block."""
    manifest = build_manifest(Job(), command="ppo", machine_kind="soak")
    hub = TelemetryHub(create_run_directory(folder, manifest), run_id=manifest.run_id)
    security = Security(host=LOOPBACK, token=token)
    app = build_app(source=hub.live, run_dir=hub.run_dir, security=security)
    with start_blocking_portal() as portal:
        running, address = portal.start_task(serve, app, ServerAddress(LOOPBACK, 0))
        try:
            yield Served(hub, address.port)
        finally:
            running.cancel()
    hub.close()
