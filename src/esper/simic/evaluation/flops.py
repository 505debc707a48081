"""The training cost of a network, in FLOPs by its seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch.utils.flop_counter import FlopCounterMode

from esper.kasmina.seed import BLENDED_STAGES
from esper.leyline.actions import Style
from esper.leyline.reports import SeedReport
from esper.leyline.stages import ACTIVE_STAGES, Stage
from esper.runtime.batches import Batch
from esper.simic.training.batch_ops import loss_and_correct
from esper.simic.training.env_factory import EnvFactoryContext, build_model
from esper.simic.training.static_work import PlantedSeed, plant
from esper.tolaria.sharing import OneAtATime

__all__ = ["FlopMeter"]

_COUNTING: Final = OneAtATime()
"""torch's FLOP counter has process-wide state, so only one may be active at a time."""

_STYLE_BY_ALGORITHM: Final = {style.algorithm: style for style in Style}
"""Alpha ramps do not change the cost, so one style represents all with the same blend."""


@dataclass(eq=False, kw_only=True, slots=True)
class FlopMeter:
    """Counts the training FLOPs per target of each topology, once per topology.

    Convolutions and matrix multiplications are counted, forward and backward; norms, activations
    and optimizers, which are small in comparison, are not. A seed that is being removed counts as
    one that is trained.
    """

    context: EnvFactoryContext
    sample: Batch
    _known: dict[frozenset[PlantedSeed], float] = field(default_factory=dict)

    def per_target(self, reports: Sequence[SeedReport]) -> float:
        """Return the training FLOPs per target with these seeds."""
        key = frozenset(_cost_of(report) for report in reports if report.stage in ACTIVE_STAGES)
        if key not in self._known:
            self._known[key] = self._count(key)
        return self._known[key]

    def _count(self, key: frozenset[PlantedSeed]) -> float:
        model = build_model(self.context, 0, 0).to(self.sample.inputs.device).train()
        for seed in key:
            plant(model, seed, torch.Generator().manual_seed(0))
        counter = FlopCounterMode(display=False)
        counter.mod_tracker = _NoModules()  # type: ignore[assignment]
        with _COUNTING, counter:
            loss, _ = loss_and_correct(model(self.sample.inputs), self.sample.targets)
            loss.backward()  # type: ignore[no-untyped-call]
        return counter.get_total_flops() / self.sample.targets.numel()


class _NoModules:
    """Replaces torch's module tracker, so that FLOPs are not counted per module.

    The tracker installs global module hooks, which would also run for envs that train on other
    threads.
    """

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _cost_of(report: SeedReport) -> PlantedSeed:
    """Return a seed with the same cost as the reported one; alpha does not affect it."""
    return PlantedSeed(
        slot_id=report.slot_id,
        blueprint=report.blueprint,
        style=_STYLE_BY_ALGORITHM[report.algorithm],
        alpha=1.0,
        stage=Stage.FOSSILIZED if report.stage in BLENDED_STAGES else report.stage,
    )
