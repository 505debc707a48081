"""A live server on a thread of its own, for clients that mean no good."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
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
def served_hub(
    folder: Path, *, token: str | None = None, max_arrivals_per_s: float = 1e6
) -> Iterator[Served]:
    """Serve a fresh run until the end of the block, to clients that come as fast as they can."""
    manifest = build_manifest(Job(), command="ppo", machine_kind="soak")
    hub = TelemetryHub(create_run_directory(folder, manifest), run_id=manifest.run_id)
    security = Security(host=LOOPBACK, token=token)
    app = build_app(source=hub.live, run_dir=hub.run_dir, security=security)
    with start_blocking_portal() as portal:
        serving = partial(serve, max_arrivals_per_s=max_arrivals_per_s)
        running, address = portal.start_task(serving, app, ServerAddress(LOOPBACK, 0))
        try:
            yield Served(hub, address.port)
        finally:
            running.cancel()
    hub.close()
