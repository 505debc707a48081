"""Shared prefixes against tiling the batch: `python -m tools.bench.counterfactual`."""

import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from esper.kasmina.counterfactual import full_factorial
from esper.kasmina.hosts import build_host
from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.seed import GerminationRequest
from esper.leyline.actions import Blueprint, Tempo
from esper.leyline.attribution import Ablation
from esper.leyline.reports import GradientReading
from esper.leyline.stages import LifecycleRules
from esper.leyline.tasks import CnnHostSpec
from tools.bench.rows import Row, bench

__all__ = ["grown_model", "rows", "tiled_forward"]

TARGET = 0.5
"""Of the tiled time, with three seeds."""
HOST = CnnHostSpec(in_channels=3, image_size=32, num_classes=10, base_channels=8, num_blocks=4)
BATCH_SIZE = 64
HEALTHY = GradientReading(norm=1.0, ratio=1.0, health=1.0, has_vanishing=False, has_exploding=False)


def grown_model(num_seeds: int) -> MorphogeneticModel:
    """Return a model with seeds at half alpha in its first slots before the pools."""
    generator = torch.Generator().manual_seed(0)
    slot_ids = HOST.slot_ids[: HOST.num_blocks]
    rules = LifecycleRules(min_training_steps=0)
    model = MorphogeneticModel(build_host(HOST, generator), slot_ids, rules)
    for slot_id in slot_ids[:num_seeds]:
        request = GerminationRequest(
            seed_id=slot_id,
            blueprint=Blueprint.CONV_LIGHT,
            tempo_steps=Tempo.STANDARD.steps,
            alpha_target=0.5,
        )
        model.germinate(slot_id, request, generator)
        model.slot(slot_id).record_gradient(HEALTHY)
        model.slot(slot_id).advance()
        model.slot(slot_id).advance()
    for _ in range(Tempo.STANDARD.steps):
        model.tick()
    assert model.blended_slots() == slot_ids[:num_seeds]
    return model.eval()


def tiled_forward(
    model: MorphogeneticModel, x: Tensor, ablations: tuple[Ablation, ...]
) -> tuple[Tensor, ...]:
    """Evaluate every ablation at once on a batch repeated for each, as the alternative does."""
    host: nn.Module = model.host
    h, previous = x.repeat(len(ablations), 1, 1, 1), None
    for slot_id in model.slot_config.execution_order:
        h = host.forward_to_segment(slot_id, h, from_segment=previous)
        slot = model.slot(slot_id)
        if slot.is_blended:
            alphas = [0.0 if slot_id in ablation.off else 0.5 for ablation in ablations]
            per_sample = torch.tensor(alphas).repeat_interleave(len(x))
            h = slot.compose(h, per_sample.view(-1, 1, 1, 1))
        previous = slot_id
    return host.forward_from_segment(previous, h).chunk(len(ablations))


@bench("T5")
def rows(quick: bool) -> Iterator[Row]:
    """Measure one to four active seeds, full factorial."""
    torch.set_num_threads(1)
    x = torch.randn((BATCH_SIZE, 3, 32, 32), generator=torch.Generator().manual_seed(1))
    for num_seeds in range(1, 5):
        model = grown_model(num_seeds)
        ablations = full_factorial(model.blended_slots())
        with torch.inference_mode():
            counts = model.fused_forward(x, ablations).evaluated
        yield Row(
            name=f"T5 shared prefixes / tiled, active seeds: {num_seeds}",
            measured=_ratio(model, x, ablations, num_repetitions=3 if quick else 9),
            target=TARGET if num_seeds == 3 else 1.0,
            unit="ratio",
            note=f"{len(ablations)} ablations, {counts.num_segments} segments and "
            f"{counts.num_seeds} seeds run",
        )


def _ratio(
    model: MorphogeneticModel, x: Tensor, ablations: tuple[Ablation, ...], *, num_repetitions: int
) -> float:
    shared, tiled = [], []
    with torch.inference_mode():
        for _ in range(num_repetitions + 1):
            shared.append(_seconds(model.fused_forward, x, ablations))
            tiled.append(_seconds(tiled_forward, model, x, ablations))
    # The first repetition of each warms up.
    return statistics.median(shared[1:]) / statistics.median(tiled[1:])


def _seconds(function: Callable[..., object], *arguments: object) -> float:
    started = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - started


def main() -> int:
    """Print the rows."""
    for row in rows(quick="--quick" in sys.argv[1:]):
        print(f"{row.name}: {row.measured:.3f} (target {row.target}; {row.note})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
