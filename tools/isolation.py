"""What a seed is worth when it is switched fully on after k passes of isolation.

`python -m tools.isolation --task digits` compares the ways to train a seed that does not change its
host yet, over all blueprints, ways to blend and slots of a task. A host is not affected by seeds in
isolation, so all of them learn beside one host, from the same batches. Each figure is the change of
the validation loss by the seed when it is switched fully on, in percent of the host's own loss.
"""

import argparse
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from esper.kasmina.blueprints import OPTIONAL_SEEDS
from esper.kasmina.hosts import SegmentedHost, build_host
from esper.kasmina.optimizers import build_sgd, clip_gradients, gradients_of, sgd_step
from esper.kasmina.seed import GerminationRequest
from esper.kasmina.slot import SeedSlot
from esper.kasmina.trial import TRIAL_BATCHES, keep_what_helps
from esper.leyline.actions import BLUEPRINTS_BY_TOPOLOGY, Style, Topology
from esper.leyline.config import TrainingConfig
from esper.leyline.stages import LifecycleRules
from esper.leyline.tasks import TaskSpec
from esper.runtime.batches import Batch, SharedBatchIterator, batch_size_for
from esper.runtime.datasets import Part, TensorDataset
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import load_dataset, registered_task
from tools.markdown import table

__all__ = [
    "OBJECTIVES",
    "Figure",
    "all_blueprints",
    "held_out",
    "main",
    "measure",
    "tables",
    "train_batches",
]

PASSES: Final = (1, 5, 10, 20)
STYLES: Final = (Style.LINEAR_ADD, Style.LINEAR_MULTIPLY, Style.GATED_GATE)
"""One style per way to blend: ramps play no part in isolation."""
LOCAL_STEP: Final = 0.1
"""How far the local objective moves the features, relative to their size."""
TOLERANCE_PCT: Final = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Boundary:
    """What the host's own training step computed where a seed grows."""

    host: SegmentedHost
    features: Tensor  # detached
    gradient: Tensor  # of the host's loss
    targets: Tensor


Objective = Callable[[SeedSlot, Boundary], None]
"""Sets the gradients of a seed in isolation."""


def straight_through(slot: SeedSlot, at: Boundary) -> None:
    """Use the gradient as if the seed's output were added; the host never shows its effect."""
    assert slot.seed is not None
    torch.autograd.backward(slot.seed(at.features), at.gradient)


def side_loss(slot: SeedSlot, at: Boundary) -> None:
    """Use the loss of the network with the seed fully on, the rest of the host in evaluation."""
    at.host.eval()
    _side_loss(slot, at)
    at.host.train()


def side_loss_on_batch_statistics(slot: SeedSlot, at: Boundary) -> None:
    """Use the same loss with norms that use the batch's statistics and keep none of them."""
    kept = {name: buffer.clone() for name, buffer in at.host.named_buffers()}
    _side_loss(slot, at)
    for name, buffer in at.host.named_buffers():
        buffer.copy_(kept[name])


def local_target(slot: SeedSlot, at: Boundary) -> None:
    """Approach the features after a small step against the host's gradient."""
    scale = LOCAL_STEP * at.features.norm() / at.gradient.norm().clamp(min=1e-12)
    wanted = at.features - scale * at.gradient
    error = functional.mse_loss(_switched_on(slot, at.features), wanted)
    (error / at.features.square().mean().clamp(min=1e-12)).backward()  # type: ignore[no-untyped-call]


def _side_loss(slot: SeedSlot, at: Boundary) -> None:
    logits = at.host.forward_from_segment(slot.slot_id, _switched_on(slot, at.features))
    functional.cross_entropy(logits, at.targets).backward(  # type: ignore[no-untyped-call]
        inputs=list(slot.seed_parameters())
    )


def _switched_on(slot: SeedSlot, features: Tensor) -> Tensor:
    return slot.switched_on(features)


TRIED: Final = "side loss and trial"
"""What runs do: the side loss, and after each pass the trial of what was learned."""

OBJECTIVES: Final[Mapping[str, Objective]] = {
    "straight-through": straight_through,
    "local target": local_target,
    "side loss, batch statistics": side_loss_on_batch_statistics,
    "side loss": side_loss,
    TRIED: side_loss,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """The change of the validation loss by one seed that is switched fully on."""

    objective: str
    blueprint: str
    style: Style
    slot_id: str
    num_passes: int
    change_pct: float


@dataclass(eq=False, kw_only=True, slots=True)
class Candidate:
    """A seed in isolation."""

    objective: str
    slot: SeedSlot
    optimizer: torch.optim.Optimizer

    def learn(self, at: Boundary) -> None:
        """Take one optimizer step."""
        self.optimizer.zero_grad()
        OBJECTIVES[self.objective](self.slot, at)
        self.slot.record_birth()
        _step(self.optimizer)

    def finish_pass(self, host: SegmentedHost, batch: Batch) -> None:
        """Keep what helps, in a host in evaluation mode."""
        if self.objective == TRIED:
            own_loss = functional.cross_entropy(host(batch.inputs), batch.targets)
            keep_what_helps(self.slot, own_loss, partial(self.loss, host, batch))

    def loss(self, host: SegmentedHost, batch: Batch) -> Tensor:
        """Return the loss of the host with the seed fully on."""
        features = host.forward_to_segment(self.slot.slot_id, batch.inputs)
        logits = host.forward_from_segment(self.slot.slot_id, _switched_on(self.slot, features))
        return functional.cross_entropy(logits, batch.targets)


def measure(
    task: TaskSpec,
    dataset: TensorDataset,
    *,
    repetition: int,
    slots: Sequence[str],
    passes: Sequence[int] = PASSES,
    objectives: Sequence[str] = tuple(OBJECTIVES),
    seed_lr: float | None = None,
    blueprints: Sequence[str] | None = None,
) -> list[Figure]:
    """Train one host with all seeds in isolation and return their figures."""
    host = build_host(task.host, torch.Generator().manual_seed(repetition))
    optimizer = build_sgd(
        host.parameters(),
        lr=task.host_lr,
        momentum=task.momentum,
        weight_decay=task.host_weight_decay,
    )
    candidates = [
        _candidate(task, host, *choice, seed_lr or task.seed_lr, repetition)
        for choice in product(
            objectives, slots, blueprints or all_blueprints(host.topology), STYLES
        )
    ]
    batches = train_batches(task, dataset, repetition)
    figures: list[Figure] = []
    for num_done in range(1, max(passes) + 1):
        host.train()
        last = deque[Batch](maxlen=TRIAL_BATCHES)
        for shares in batches.batches(round=0, step=num_done - 1):
            last.append(shares[0])
            seen = _train_host(host, optimizer, shares[0], slots)
            for candidate in candidates:
                candidate.learn(seen[candidate.slot.slot_id])
        _finish_pass(host.eval(), candidates, last)
        if num_done in passes:
            figures += _figures(host, candidates, held_out(dataset), num_done)
    return figures


def all_blueprints(topology: Topology) -> tuple[str, ...]:
    """Return the blueprints of every run and the optional ones."""
    return (*BLUEPRINTS_BY_TOPOLOGY[topology], *OPTIONAL_SEEDS[topology])


def _candidate(
    task: TaskSpec,
    host: SegmentedHost,
    objective: str,
    slot_id: str,
    blueprint: str,
    style: Style,
    lr: float,
    repetition: int,
) -> Candidate:
    (spec,) = (spec for spec in host.injection_specs() if spec.slot_id == slot_id)
    slot = SeedSlot(
        slot_id=slot_id, channels=spec.channels, topology=host.topology, rules=LifecycleRules()
    )
    request = GerminationRequest(seed_id="seed", blueprint=blueprint, style=style)
    slot.germinate(request, torch.Generator().manual_seed(repetition))
    optimizer = build_sgd(slot.seed_parameters(), lr=lr, momentum=task.momentum)
    return Candidate(objective=objective, slot=slot, optimizer=optimizer)


def _train_host(
    host: SegmentedHost, optimizer: torch.optim.Optimizer, batch: Batch, slots: Sequence[str]
) -> dict[str, Boundary]:
    """Take one step of the host; return what it computed at the slots."""
    optimizer.zero_grad()
    x, previous, seen = batch.inputs, None, dict[str, Tensor]()
    for slot_id in host.execution_order():
        if slot_id in slots:
            x = host.forward_to_segment(slot_id, x, previous)
            x.retain_grad()
            seen[slot_id], previous = x, slot_id
    assert previous is not None, "no slots"
    logits = host.forward_from_segment(previous, x)
    functional.cross_entropy(logits, batch.targets).backward()  # type: ignore[no-untyped-call]
    boundaries = {}
    for slot_id, h in seen.items():
        assert h.grad is not None
        boundaries[slot_id] = Boundary(
            host=host, features=h.detach(), gradient=h.grad, targets=batch.targets
        )
    _step(optimizer)
    return boundaries


def _step(optimizer: torch.optim.Optimizer) -> None:
    gradients = gradients_of(optimizer)
    if gradients:
        clip_gradients(gradients, 1.0)
        sgd_step(optimizer)


@torch.no_grad()
def _finish_pass(
    host: SegmentedHost, candidates: Sequence[Candidate], last: Iterable[Batch]
) -> None:
    inputs, targets = (torch.cat(parts) for parts in zip(*last, strict=True))
    for candidate in candidates:
        candidate.finish_pass(host, Batch(inputs, targets))


@torch.inference_mode()
def _figures(
    host: SegmentedHost, candidates: Sequence[Candidate], batch: Batch, num_passes: int
) -> Iterator[Figure]:
    own = functional.cross_entropy(host(batch.inputs), batch.targets)
    for candidate in candidates:
        slot, loss = candidate.slot, candidate.loss(host, batch)
        yield Figure(
            objective=candidate.objective,
            blueprint=slot.occupant().blueprint,
            style=slot.occupant().style,
            slot_id=slot.slot_id,
            num_passes=num_passes,
            change_pct=100 * (loss / own - 1).item(),
        )


def train_batches(task: TaskSpec, dataset: TensorDataset, repetition: int) -> SharedBatchIterator:
    """Return the training batches of a repetition."""
    return SharedBatchIterator(
        dataset,
        n_envs=1,
        batch_size_per_env=batch_size_for(task, TrainingConfig(), len(dataset.train)),
        seed=repetition,
        max_batches=task.max_train_batches,
    )


def held_out(dataset: TensorDataset) -> Batch:
    """Return the validation split as one batch."""
    size = len(dataset.val)
    held_out = SharedBatchIterator(
        dataset, n_envs=1, batch_size_per_env=size, seed=0, part=Part.VAL
    )
    (shares,) = held_out.batches(round=0, step=0)
    return shares[0]


def tables(figures: Sequence[Figure]) -> str:
    """Return the comparison of the objectives, and the worst figures of each seed by the last."""
    passes = sorted({figure.num_passes for figure in figures})
    objectives = list(dict.fromkeys(figure.objective for figure in figures))
    head = [f"after {num_passes}" for num_passes in passes]
    by_objective = [
        (name, *(_spread([f for f in at if f.objective == name]) for at in _by_passes(figures)))
        for name in objectives
    ]
    chosen = [figure for figure in figures if figure.objective == objectives[-1]]
    seeds = dict.fromkeys((figure.blueprint, figure.style) for figure in chosen)
    by_seed = [
        (
            f"`{seed[0]}`, {seed[1].algorithm.name}",
            *(
                _worst([f for f in at if (f.blueprint, f.style) == seed])
                for at in _by_passes(chosen)
            ),
        )
        for seed in seeds
    ]
    return "\n\n".join(
        (
            table(("objective: median, worst", *head), by_objective),
            table((f"{objectives[-1]}: worst of each seed", *head), by_seed),
        )
    )


def _by_passes(figures: Sequence[Figure]) -> Iterator[list[Figure]]:
    for num_passes in sorted({figure.num_passes for figure in figures}):
        yield [figure for figure in figures if figure.num_passes == num_passes]


def _spread(figures: Sequence[Figure]) -> str:
    changes = [figure.change_pct for figure in figures]
    num_within = sum(change <= TOLERANCE_PCT for change in changes)
    return (
        f"{statistics.median(changes):+.1f}, {max(changes):+.1f} ({num_within} of {len(changes)})"
    )


def _worst(figures: Sequence[Figure]) -> str:
    return f"{max(figure.change_pct for figure in figures):+.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables of a task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--slot", action="append", help="default: the first three")
    parser.add_argument("--seed-lr", type=float, help="default: the task's")
    parser.add_argument("--objective", action="append", choices=OBJECTIVES, help="default: all")
    parser.add_argument("--blueprint", action="append", help="default: all, optional ones too")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    task = registered_task(options.task).spec
    dataset = load_dataset(task.name, DataRequest(data_dir=options.data_dir))
    figures: list[Figure] = []
    for repetition in range(options.repetitions):
        figures += measure(
            task,
            dataset,
            repetition=repetition,
            slots=options.slot or TrainingConfig().slots,
            objectives=options.objective or tuple(OBJECTIVES),
            seed_lr=options.seed_lr,
            blueprints=options.blueprint,
        )
    print(f"{task.name}, {dataset.origin.value} data, {options.repetitions} repetitions\n")
    print(tables(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
