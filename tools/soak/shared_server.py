"""`python -m tools.soak.shared_server`: visitors of a server that shares the run's own process.

What row L13 would be if the server were a thread of the run: with the same limits, and the same
visitors.
"""

import socket
import statistics
import sys
import threading
import time
from pathlib import Path

import anyio
from tools.soak.visiting import FLAGS, visit

from esper.karn.view.followed_log import follow, open_source
from esper.karn.web.run_server import RunServer
from esper.nissa.live.address import ServerAddress, dashboard_url, listen
from esper.nissa.live.security import Security
from esper.scripts.train import main as train

KINDS = ("scan", "search", "overlay", "select", "ping", "pipeline", "replay", "hold")
NUM_REPETITIONS = 3
SECONDS = 2.5
LOOK_S = 0.05


def serve_from_thread(folder: Path) -> None:
    """Serve the run of a folder as soon as it has a log."""
    address = ServerAddress("127.0.0.1", 0)
    listener = listen(address)
    print(f"dashboard at {dashboard_url(address.host, listener, None)}", flush=True)
    while not (logs := list(folder.glob("*/events.jsonl"))):
        time.sleep(LOOK_S)
    anyio.run(_serve, logs[0].parent, address.host, listener)


async def _serve(run_dir: Path, host: str, listener: socket.socket) -> None:
    server = RunServer(
        source=open_source(run_dir, run_id="served"),
        run_dir=run_dir,
        security=Security(host=host),
        listener=listener,
        follow=follow,
    )
    await server.run()


def compare() -> None:
    """Print the progress beside each kind of visitor, of that beside busy loops."""
    command = [sys.executable, "-m", "tools.soak.shared_server"]
    ratios, gained = visit(command, KINDS, NUM_REPETITIONS, SECONDS)
    for kind, found in ratios.items():
        print(f"{kind:<10} {statistics.median(found):.2f}")
    print(f"memory     {gained.tree / 2**20:.0f} MiB")


if __name__ == "__main__":
    if "--telemetry-dir" in sys.argv:
        threading.Thread(target=serve_from_thread, args=(Path(sys.argv[-1]),), daemon=True).start()
        sys.exit(train([*FLAGS, "--quiet", *sys.argv[1:]]))
    compare()
