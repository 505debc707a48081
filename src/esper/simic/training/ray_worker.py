"""A worker that is a Ray actor: bytes in, bytes out."""

import os
from contextlib import ExitStack

from esper.leyline.errors import ContractError
from esper.leyline.heap import share_one_heap
from esper.leyline.workers import encode
from esper.simic.training.assembly.machine import one_thread_per_worker
from esper.simic.training.worker_service import WorkerService, start_service
from esper.tolaria.pulse import Pulse
from esper.tolaria.ray_cluster import RayCluster

__all__ = ["RAY_CLUSTER", "RayWorker"]


class RayWorker:
    """The actor's class; Ray calls its methods, those of the side group beside the others."""

    def __init__(self) -> None:
        self._service: WorkerService | None = None
        self._settings = ExitStack()

    def place(self) -> tuple[str, int]:
        """Return the node and the process that the actor lives in."""
        import ray  # here it is always installed, elsewhere it need not be

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def start(self, spec: bytes) -> bytes:
        """Build the worker; return what it says of itself."""
        share_one_heap()
        self._settings.enter_context(one_thread_per_worker())
        started, self._service = start_service(spec, Pulse.local)
        return encode(started)

    def carry_out(self, request: bytes) -> bytes:
        """Carry a command out and return its answer."""
        return self._answer(request)

    def side(self, message: bytes) -> bytes:
        """Answer a message that does not wait for the command that is being carried out."""
        return self._answer(message)

    def _answer(self, message: bytes) -> bytes:
        if self._service is None:
            raise ContractError("the worker has not been started")
        answer = self._service.receive(message)
        return b"" if answer is None else encode(answer.result())


RAY_CLUSTER = RayCluster(RayWorker)
"""One for all runs of this process, as Ray has one connection per process."""
