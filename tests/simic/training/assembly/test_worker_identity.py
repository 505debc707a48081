"""What a worker says of itself differs from what its driver expects, wherever results could."""

import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.simic.training.worker_runs import digits_job

from esper.leyline.config import Job
from esper.leyline.workers import (
    WorkerIdentity,
    WorkerReady,
    WorkerSpec,
    encode,
    identity_difference,
)
from esper.runtime.datasets import Split, TensorDataset
from esper.runtime.task_references import object_at
from esper.simic.training.assembly import (
    code_version,
    machine,
    worker_identity,
    worker_setup,
)
from esper.simic.training.assembly.machine import one_thread_per_worker
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.worker_setup import prepare_worker
from esper.simic.training.worker_service import start_service
from esper.tolaria.pulse import Pulse
from esper.tolaria.stopping import StopFlag

Patch = pytest.MonkeyPatch


def with_data(patch: Patch, change: Callable[[TensorDataset], TensorDataset]) -> None:
    load: Any = worker_setup.load_dataset
    patch.setattr(worker_setup, "load_dataset", lambda *arguments: change(load(*arguments)))


def relabelled(data: TensorDataset) -> TensorDataset:
    targets = data.test.targets.clone()
    targets[-1] = (targets[-1] + 1) % 10
    return replace(data, test=Split(inputs=data.test.inputs, targets=targets))


def turned(data: TensorDataset) -> TensorDataset:
    """Return the same bytes in another shape."""
    height, width = data.val.inputs.shape[-2:]
    inputs = data.val.inputs.reshape(*data.val.inputs.shape[:-2], 2 * height, width // 2)
    return replace(data, val=Split(inputs=inputs, targets=data.val.targets))


def with_other_task(patch: Patch) -> None:
    find: Any = worker_setup.registered_task

    def changed(name: str) -> Any:
        task = find(name)
        return replace(task, spec=msgspec.structs.replace(task.spec, host_lr=0.123))

    patch.setattr(worker_setup, "registered_task", changed)


CHANGES: dict[str, tuple[str, Callable[[Patch], None]]] = {
    "a label": ("data", lambda patch: with_data(patch, relabelled)),
    "a shape": ("data", lambda patch: with_data(patch, turned)),
    "a scale": ("data", lambda patch: with_data(patch, lambda data: replace(data, crop_padding=3))),
    "the task": ("task", with_other_task),
    "torch": ("machine kind", lambda patch: patch.setattr(torch, "__version__", "9.9")),
    "the CPU": ("machine kind", lambda patch: patch.setattr(machine, "cpu_model", lambda: "9")),
    "python": ("python", lambda patch: patch.setattr(platform, "python_version", lambda: "9")),
    "a message": (
        "protocol",
        lambda patch: patch.setattr(worker_identity, "protocol_digest", lambda: "9"),
    ),
    "the code": (
        "code",
        lambda patch: patch.setattr(code_version, "code_version", lambda: "9"),
    ),
    "esper": ("esper", lambda patch: patch.setattr(worker_identity, "__version__", "9")),
}


def expected_of(job: Job) -> WorkerIdentity:
    """Return what a driver expects of its workers."""
    setup = prepare_worker(job, StopFlag(), parts=RunParts())
    return worker_identity.worker_identity(setup)


def reported_of(job: Job) -> WorkerIdentity:
    """Return what a worker of one env reports."""
    spec = encode(WorkerSpec(index=0, job=job, env_ids=(1,), lanes=1))
    started, service = start_service(spec, Pulse.local)
    assert service is not None
    service._worker.close()
    assert isinstance(started, WorkerReady)
    return started.identity


def test_a_worker_of_the_same_kind_says_what_its_driver_expects(tmp_path: Path) -> None:
    job = digits_job(tmp_path)
    with one_thread_per_worker():
        assert reported_of(job) == expected_of(job)


@pytest.mark.parametrize("changed", CHANGES)
def test_any_difference_is_named_with_both_values(
    changed: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    name, change = CHANGES[changed]
    job = digits_job(tmp_path)
    with one_thread_per_worker():
        mine = expected_of(job)
        change(monkeypatch)
        theirs = reported_of(job)

    field = name.replace(" ", "_")
    assert identity_difference(mine, theirs) == (
        f"its {name} is {getattr(theirs, field)!r}, the driver's is {getattr(mine, field)!r}"
    )
    assert getattr(theirs, field) != getattr(mine, field)


BLUEPRINT = """
from torch import nn


class Scale(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.last = nn.Conv2d(channels, channels, 1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x):
        return x + {factor} * self.last(x)
"""


def test_a_plugin_with_other_code_under_the_same_name_is_noticed(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    digests = []
    for factor in (1.0, 2.0, 1.0):
        path = tmp_path / f"node-{len(digests)}" / "scales.py"
        path.parent.mkdir()
        path.write_text(BLUEPRINT.format(factor=factor), encoding="utf-8")
        blueprint = object_at(f"{path}:Scale")
        digests.append(code_version.digest_with_plugins([partial(blueprint)]))
        monkeypatch.delitem(sys.modules, "scales")

    assert digests[0] != digests[1]
    # Where it lies does not matter.
    assert digests[0] == digests[2]
    assert code_version.digest_with_plugins([]) not in digests
