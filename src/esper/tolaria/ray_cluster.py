"""The Ray cluster that this process uses: joined where RAY_ADDRESS says, else started here.

Ray is imported by the first connection, so that no other engine needs it.
"""

import atexit
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.util import Finalize
from typing import Any, Final

from esper.leyline.errors import ConfigError
from esper.leyline.extras import require_packages

__all__ = ["RayCluster", "one_line"]

ADDRESS_VARIABLE: Final = "RAY_ADDRESS"
OBJECT_STORE_BYTES: Final = 80 * 2**20
"""Near Ray's minimum: messages are small enough to travel without the object store."""
SIDE_GROUP: Final = "side"
"""Calls of this group are answered while a command is carried out."""
NUM_SIDE_CALLS: Final = 2
NODE_LABEL: Final = "ray.io/node-id"
COMPANIONS: Final = ("dashboard", "log_monitor", "monitor")
"""Processes that Ray starts with every cluster, by its own names."""
MAX_MESSAGE_CHARS: Final = 300


class RayCluster:
    """Starts workers as actors; connects with the first use and disconnects with this process."""

    def __init__(self, worker_class: type) -> None:
        """Name what an actor is.

        Args:
            worker_class: importable under the same name on every node.
        """
        self._worker_class = worker_class
        self._lock = threading.Lock()
        self._avoided: set[str] = set()
        """Nodes that did not answer; workers are started elsewhere if there is an elsewhere."""
        self._is_local = False
        self._temp_dir: str | None = None

    def connect(self) -> None:
        """Join the cluster that RAY_ADDRESS names, or start one on this machine.

        Uses a connection that exists already, and leaves that one open at the end.
        """
        require_packages("run.engine = 'ray'", "ray", alternative="use --engine processes")
        address = os.environ.get(ADDRESS_VARIABLE)
        if address is None:
            # Ray would otherwise write a token into the home directory, and report its use.
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            if "ray" not in sys.modules:  # it reads this one when it is imported
                os.environ.setdefault("RAY_AUTH_MODE", "token")
        import ray  # only this engine needs it, and it takes more than a second

        with self._lock:
            if ray.is_initialized():
                return
            self._is_local = address is None
            try:
                with _signal_handler_kept():
                    if address is None:
                        with _loopback_only():
                            ray.init(**self._local_options())
                    else:
                        ray.init(address=address)
            except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
                where = "could not be started" if address is None else f"at {address}"
                raise ConfigError(f"Ray {where}: {one_line(error)}") from None
            # Before Ray's own handler, which sleeps for half a second first.
            atexit.register(self.close)
            # Unlike atexit, this also works in the processes of a pool.
            Finalize(self, self.close, exitpriority=0)

    def num_cpus(self) -> int:
        """Return how many CPUs workers can be spread over."""
        import ray  # see connect

        if self._is_local:
            return os.cpu_count() or 1
        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    def start_worker(self, *, lanes: int) -> Any:
        """Return the handle of a new actor, which may still have to start."""
        import ray  # see connect

        options: dict[str, Any] = {
            # Workers of a local cluster share this machine's cores as other processes do.
            "num_cpus": 0 if self._is_local else lanes,
            "max_restarts": 0,  # a restarted actor would have lost its envs
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD",
            "concurrency_groups": {SIDE_GROUP: NUM_SIDE_CALLS},
        }
        if self._avoided and self._has_other_nodes():
            options["label_selector"] = {NODE_LABEL: f"!in({','.join(sorted(self._avoided))})"}
        return ray.remote(**options)(self._worker_class).remote()

    def report_waiting(self, index: int) -> None:
        """Log that a worker has not started yet; on a cluster of our own it only takes time."""
        if not self._is_local:
            logging.getLogger(__name__).warning(
                "worker %d has not started yet; 'ray status' shows whether a CPU is free", index
            )

    def end_worker(self, actor: Any) -> None:
        """End an actor, without waiting for it."""
        import ray  # see connect

        if ray.is_initialized():
            ray.kill(actor, no_restart=True)

    def avoid(self, node_id: str) -> None:
        """Start no more workers on a node that does not answer."""
        logging.getLogger(__name__).warning("Ray node %s does not answer", node_id)
        self._avoided.add(node_id)

    def close(self) -> None:
        """Disconnect; end a cluster that was started here and remove its files."""
        import ray  # see connect

        with self._lock:
            _kill_companions()
            ray.shutdown()
            if self._temp_dir is not None:
                shutil.rmtree(self._temp_dir, ignore_errors=True)
                self._temp_dir = None

    def _local_options(self) -> dict[str, Any]:
        self._temp_dir = tempfile.mkdtemp(prefix="esper-ray-")
        return {
            "address": "local",  # the default joins whatever cluster was recorded last
            "num_cpus": 0,  # so that no workers are started in advance
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "log_to_driver": False,  # what a worker prints must not mix with our own output
            "configure_logging": False,
            "_temp_dir": self._temp_dir,
            "_system_config": {"worker_niceness": 0},  # as fast as other processes
        }

    def _has_other_nodes(self) -> bool:
        import ray  # see connect

        return any(
            node["Alive"] and node["NodeID"] not in self._avoided and "CPU" in node["Resources"]
            for node in ray.nodes()
        )


def _kill_companions() -> None:
    """Kill the processes of a local cluster that do nothing for a run.

    `ray.shutdown` asks one process after another to end and waits up to a second for each; the
    dashboard's always takes that long.
    """
    import ray  # see connect

    node = ray._private.worker._global_node
    started = {} if node is None else node.all_processes
    for kind in COMPANIONS:
        for info in started.get(kind, ()):
            info.process.kill()


def one_line(error: object) -> str:
    """Return an error of Ray, which may have many lines, as a short one."""
    text = " ".join(str(error).split())
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Let Ray listen on the loopback address instead of all, as it does on macOS and Windows.

    A program that has imported Ray before gets no token.
    """
    from ray._private import ray_constants  # see connect

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _signal_handler_kept() -> Iterator[None]:
    """Keep our handler of SIGTERM, which Ray replaces twice while it connects.

    Not only afterwards: connecting takes seconds, in which a signal may come. It is handled when
    Ray has connected: an exception from a handler would be raised anywhere, also where Python holds
    the lock of its logging to fork, and leaves it locked. Other threads than the main one must not
    change handlers; there, a signal ends the process as Ray decides.
    """
    import ray  # see RayCluster.connect

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    utilities, worker = ray._private.utils, ray._private.worker
    register, connect = utilities.set_sigterm_handler, worker.connect
    # Ray's Python code: its handler raises SystemExit with the signal's number.
    utilities.set_sigterm_handler = _ignore_handler
    # Ray's C++ code: its handler prints a stack and aborts.
    worker.connect = partial(_connected, connect)
    try:
        yield
    finally:
        utilities.set_sigterm_handler, worker.connect = register, connect


def _ignore_handler(_: object) -> None:
    """Register nothing."""


def _connected(connect: Callable[..., object], *arguments: object, **options: object) -> None:
    """Connect while SIGTERM waits, and register our handler again before it is let through."""
    ours = signal.getsignal(signal.SIGTERM)
    # Only around the part that starts no process: a process would inherit the mask and could not
    # be asked to end. Threads may: none of Ray's has to receive this signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        connect(*arguments, **options)
    finally:
        signal.signal(signal.SIGTERM, ours)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
