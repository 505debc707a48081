"""What driver and workers must share for equal bits: versions, machine kind, task and data."""

import hashlib
import platform

import msgspec

from esper.leyline.config import CompileMode
from esper.leyline.workers import WorkerIdentity, protocol_digest
from esper.runtime.datasets import TensorDataset
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
        task=hashlib.sha256(msgspec.json.encode(setup.task)).hexdigest(),
        data=materialize_data_digest(setup.dataset),
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
