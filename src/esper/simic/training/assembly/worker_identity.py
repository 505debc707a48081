"""What driver and workers must share for equal bits: versions, machine kind, task and data."""

import hashlib
import platform
from importlib import import_module

import msgspec

from esper.kasmina.blueprints.registry import builders_of
from esper.leyline.config import CompileMode
from esper.leyline.tasks import ModuleHostSpec
from esper.leyline.workers import WorkerIdentity, protocol_digest
from esper.runtime.datasets import TensorDataset
from esper.runtime.tasks import registered_task
from esper.simic.training.assembly.code_version import digest_with_plugins
from esper.simic.training.assembly.machine import machine_kind
from esper.simic.training.assembly.worker_setup import WorkerSetup
from esper.version import __version__

__all__ = ["worker_identity"]


def worker_identity(setup: WorkerSetup) -> WorkerIdentity:
    """Return what driver and workers must share for equal bits."""
    return WorkerIdentity(
        esper=__version__,
        protocol=protocol_digest(),
        python=platform.python_version(),
        machine_kind=machine_kind(setup.devices, CompileMode.OFF),
        code=digest_with_plugins(_plugins_of(setup)),
        task=hashlib.sha256(msgspec.json.encode(setup.task)).hexdigest(),
        data=materialize_data_digest(setup.dataset),
    )


def _plugins_of(setup: WorkerSetup) -> tuple[object, ...]:
    """Return the functions and classes of others that this run calls."""
    training, host = setup.job.training, setup.task.host
    task = registered_task(training.task)
    factory = host.factory if isinstance(host, ModuleHostSpec) else None
    return (
        *(item for item in (task.load, task.build_host) if item is not None),
        *(() if factory is None else (import_module(factory.partition(":")[0]),)),
        *builders_of(host.topology, training.blueprints),
    )


def materialize_data_digest(dataset: TensorDataset) -> str:
    """Return the SHA-256 of a data set: its tensors with their shapes, and its scale."""
    digest = hashlib.sha256()
    for split in (dataset.train, dataset.val, dataset.test):
        for tensor in (split.inputs, split.targets):
            # With type and shape: the same bytes could be another tensor.
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
    digest.update(repr((dataset.pixel_scale, dataset.crop_padding)).encode())
    return digest.hexdigest()
