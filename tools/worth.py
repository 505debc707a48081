"""What an ablation measures: the worth of a seed, or the damage of foreign batch statistics.

`python -m tools.worth --task digits` trains a network with one seed, for every blueprint, at half
and at full alpha, and measures the seed's contribution to validation accuracy in three ways: with
the running statistics of the network with the seed, with the statistics of the validation batch
(what Esper does), and with running statistics that are estimated anew, on training data, for the
network without the seed.
"""

import argparse
import copy
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from esper.kasmina.counterfactual import PrefixWalk
from esper.kasmina.hosts import SegmentedHost, build_host
from esper.kasmina.hosts.statistics import batch_norms
from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.optimizers import SeedOptimizers, build_sgd
from esper.kasmina.slot import NO_MODULES
from esper.leyline.actions import Style
from esper.leyline.attribution import Ablation
from esper.leyline.stages import LifecycleRules, Stage
from esper.leyline.tasks import TaskSpec
from esper.runtime.batches import Batch
from esper.runtime.datasets import TensorDataset
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import load_dataset, registered_task
from esper.simic.training.batch_ops import backpropagate
from esper.simic.training.static_work import PlantedSeed, plant
from tools.isolation import all_blueprints, held_out, train_batches
from tools.markdown import table

__all__ = ["Worth", "main", "measure", "summary"]

ALPHAS: Final = (0.5, 1.0)
NUM_PASSES: Final = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Worth:
    """The contribution of a seed in percentage points, measured in three ways."""

    blueprint: str
    alpha: float
    running_pp: float
    batch_pp: float
    reestimated_pp: float


def measure(
    task: TaskSpec,
    dataset: TensorDataset,
    blueprint: str,
    *,
    alpha: float,
    slot_id: str = "r0c1",
    num_passes: int = NUM_PASSES,
) -> Worth:
    """Train a network with one seed and measure what it contributes."""
    batches = train_batches(task, dataset, 0)
    host = build_host(task.host, torch.Generator().manual_seed(0))
    model = MorphogeneticModel(host, (slot_id,), LifecycleRules())
    seed = PlantedSeed(slot_id, blueprint, Style.LINEAR_ADD, alpha, Stage.HOLDING)
    plant(model, seed, torch.Generator().manual_seed(0))
    host_optimizer = build_sgd(
        host.parameters(),
        lr=task.host_lr,
        momentum=task.momentum,
        weight_decay=task.host_weight_decay,
    )
    seed_optimizers = SeedOptimizers(lr=task.seed_lr, momentum=task.momentum)
    seed_optimizers.sync_with(model)
    for step in range(num_passes):
        for shares in batches.batches(round=0, step=step):
            host_optimizer.zero_grad()
            seed_optimizers.zero_grad()
            backpropagate(model.train(), shares[0])
            host_optimizer.step()
            seed_optimizers.step()
    sample = [shares[0] for shares in batches.batches(round=0, step=num_passes)]
    return _worth(model.eval(), blueprint, alpha, held_out(dataset), sample)


@torch.inference_mode()
def _worth(
    model: MorphogeneticModel,
    blueprint: str,
    alpha: float,
    batch: Batch,
    sample: Sequence[Batch],
) -> Worth:
    (slot,) = model.all_slots()
    without = Ablation(frozenset({slot.slot_id}))
    assert isinstance(model.host, SegmentedHost)
    on = _accuracy_pct(model, batch)
    (running,) = PrefixWalk(model.host, [slot], [without]).run(batch.inputs).logits
    estimated = copy.deepcopy(model)
    estimated.slot(slot.slot_id).restore(None, NO_MODULES)
    for norm in batch_norms(estimated.host):
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
    estimated.train()
    for part in sample:
        estimated(part.inputs)
    return Worth(
        blueprint=blueprint,
        alpha=alpha,
        running_pp=on - _correct_pct(running, batch.targets),
        batch_pp=on - _correct_pct(model(batch.inputs, without), batch.targets),
        reestimated_pp=on - _accuracy_pct(estimated.eval(), batch),
    )


def _accuracy_pct(model: Callable[[torch.Tensor], torch.Tensor], batch: Batch) -> float:
    return _correct_pct(model(batch.inputs), batch.targets)


def _correct_pct(logits: torch.Tensor, targets: torch.Tensor) -> float:
    return 100.0 * (logits.argmax(-1) == targets).float().mean().item()


def summary(found: Sequence[Worth]) -> str:
    """Return the table of all seeds, and the distances from the re-estimated contributions."""
    rows = [
        (
            f"`{worth.blueprint}`, alpha {worth.alpha}",
            f"{worth.running_pp:.1f}",
            f"{worth.batch_pp:.1f}",
            f"{worth.reestimated_pp:.1f}",
        )
        for worth in found
    ]
    running = [abs(worth.running_pp - worth.reestimated_pp) for worth in found]
    batch = [abs(worth.batch_pp - worth.reestimated_pp) for worth in found]
    rows.append(
        ("median distance", *(f"{statistics.median(of):.1f}" for of in (running, batch)), "")
    )
    rows.append(("largest distance", *(f"{max(of):.1f}" for of in (running, batch)), ""))
    return table(("seed", "running", "batch", "estimated anew"), rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table of a task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    task = registered_task(options.task).spec
    dataset = load_dataset(task.name, DataRequest(data_dir=options.data_dir))
    found = [
        measure(task, dataset, blueprint, alpha=alpha)
        for blueprint in all_blueprints(task.host.topology)
        for alpha in ALPHAS
    ]
    print(f"{task.name}, {dataset.origin.value} data\n")
    print(summary(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
