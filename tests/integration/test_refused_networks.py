"""Networks that cannot be hosts: one sentence from the command, before anything is created."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.builders.tiny_tasks import image_split, tiny_task
from torch import Tensor, nn

from esper.leyline.actions import Topology
from esper.leyline.tasks import ModuleHostSpec, TaskKind, TaskSpec
from esper.runtime import tasks
from esper.runtime.datasets import TensorDataset
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import RegisteredTask, TaskRegistry
from esper.scripts.train import main


class Network(nn.Module):
    """A network that can be a host."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x)).mean(dim=(2, 3)))


class Reusing(Network):
    def forward(self, x: Tensor) -> Tensor:
        early = self.first(x)
        return self.head((self.second(early) + early).mean(dim=(2, 3)))


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


class WithTuple(Network):
    def __init__(self) -> None:
        super().__init__()
        self.second = Pair()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x))[0].mean(dim=(2, 3)))


class Thinning(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, ::2] if self.training else x


class WithThinning(Network):
    def __init__(self) -> None:
        super().__init__()
        self.second = Thinning()


class Sequence(nn.Module):
    """Features of a width that the heads of an attention seed do not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x.squeeze(1)).mean(dim=1))


def host(network: str, **changes: Any) -> ModuleHostSpec:
    facts: dict[str, Any] = {
        "factory": f"{__name__}:{network}",
        "after": ("first",),
        "sample_shape": (1, 8, 8),
        "num_classes": 3,
    }
    return ModuleHostSpec(**{**facts, **changes})


def load_images(_: TaskSpec, __: DataRequest) -> TensorDataset:
    train, val, test = (image_split(24, seed) for seed in range(3))
    return TensorDataset(train=train, val=val, test=test)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TaskRegistry:
    monkeypatch.chdir(tmp_path)
    registry = TaskRegistry(find_plugins=lambda: ())
    monkeypatch.setattr(tasks, "_REGISTRY", registry)
    return registry


REFUSED = {
    "cut through a residual block": (
        host("Reusing", after=("second",)),
        "'first' from before is used again by",
    ),
    "unknown submodule": (host("Network", after=("third",)), "has no submodule 'third'"),
    "tuple": (host("WithTuple", after=("second",)), "'second' puts out a tuple"),
    "shape that changes": (host("WithThinning", after=("second",)), "the shape behind it changes"),
    "logits": (host("Network", num_classes=5), "puts out 3 logits"),
    "kind": (host("Network", topology=Topology.TRANSFORMER), "its spec says transformer"),
    "sample": (host("Network", sample_shape=(3, 8, 8)), "cannot run a batch of shape (2, 3, 8, 8)"),
    "data": (host("Network", sample_shape=(1, 9, 9)), "its data have inputs of shape (1, 8, 8)"),
    "factory": (host("Nothing"), "cannot be imported and called"),
    "seed": (
        host("Sequence", topology=Topology.TRANSFORMER),
        "slot 'r0c0' with 6 channels: blueprint 'attention' does not fit",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_network_is_refused_in_one_line_and_nothing_is_created(
    case: str, registry: TaskRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, reason = REFUSED[case]
    task = tiny_task("mine", TaskKind.CLASSIFICATION, spec)
    registry.register(RegisteredTask(spec=task, load=load_images))

    assert main(["wait", "--task", "mine"]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert reason in line
    assert list(tmp_path.iterdir()) == []


def test_same_network_without_the_mistake_trains(registry: TaskRegistry, tmp_path: Path) -> None:
    task = tiny_task("mine", TaskKind.CLASSIFICATION, host("Network"))
    registry.register(RegisteredTask(spec=task, load=load_images))

    assert main(["wait", "--task", "mine", "--quiet", "--rounds", "1"]) == 0

    assert torch.load(next(tmp_path.glob("runs/*/grown.pt")))["header"]["input_shape"] == (1, 8, 8)


PLUGIN = """
import sys
from esper.leyline.tasks import *
from esper.runtime.tasks import load_dataset, register_task

HOST = ModuleHostSpec(
    factory={factory!r}, after=("0",), sample_shape=(1, 8, 8), num_classes=10
)

def register():
    task = TaskSpec(
        name="mine", summary="", kind=TaskKind.CLASSIFICATION, dataset="digits", host=HOST,
        batch_size={batch_size}, batch_mode=BatchMode.BROADCAST,
        baseline_loss=2.3, target_loss=0.3, loss_delta_std=0.05,
        defaults={{"slots": HOST.slot_ids}},
    )
    register_task(task, load=lambda spec, request: load_dataset("digits", request))
"""
NETWORK = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(1, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""
DRIVER = """
import sys
from esper.scripts.train import main
sys.exit(main(["wait", "--task", "mine", "--engine", "processes", "--workers", "1"]))
"""


@pytest.mark.timeout(400)  # three processes import torch
@pytest.mark.parametrize(
    ("home", "batch_size", "reason"),
    [
        # The directory of the script is on the driver's path, not on that of the workers.
        ("scripts", "50", "host 'own_network:build': cannot be imported and called"),
        ("site", "50 if sys.argv[0].endswith('drive.py') else 25", "its task is"),
    ],
)
def test_worker_that_lacks_the_factory_or_has_another_task_is_refused(
    home: str, batch_size: str, reason: str, tmp_path: Path
) -> None:
    metadata = tmp_path / "site" / "mine-1.dist-info"
    metadata.mkdir(parents=True)
    (tmp_path / "scripts").mkdir()
    plugin = PLUGIN.format(factory="own_network:build", batch_size=batch_size)
    (tmp_path / "site" / "mine_plugin.py").write_text(plugin)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[esper.tasks]\nmine = mine_plugin:register\n")
    (tmp_path / home / "own_network.py").write_text(NETWORK)
    (tmp_path / "scripts" / "drive.py").write_text(DRIVER)

    done = subprocess.run(
        [sys.executable, "scripts/drive.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "worker 0" in line
    assert reason in line
    assert not (tmp_path / "runs").exists()
