"""The training cost of a network, in FLOPs by its seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from esper.kasmina.seed import BLENDED_STAGES, PruneCause, Ramp
from esper.leyline.actions import Style
from esper.leyline.alpha import AlphaMode
from esper.leyline.reports import SeedReport
from esper.leyline.stages import COOLDOWN_STAGES, Stage
from esper.leyline.tasks import HostSpec
from esper.runtime.batches import Batch
from esper.simic.evaluation.evaluation_round import ROUND_INDEX
from esper.simic.training.batch_ops import backpropagate, try_seeds
from esper.simic.training.env_factory import EnvFactoryContext, build_model
from esper.simic.training.static_work import PlantedSeed, plant
from esper.tolaria.sharing import OneAtATime

__all__ = ["FlopMeter", "TargetCost"]

_COUNTING: Final = OneAtATime()
"""torch's FLOP counter has process-wide state, so only one may be active at a time."""

_STYLE_BY_ALGORITHM: Final = {style.algorithm: style for style in Style}
"""Alpha ramps do not change the cost, so one style represents all with the same blend."""


class TargetCost(NamedTuple):
    """FLOPs per target."""

    train: float
    trial: float
    """Of the trial of seeds in isolation after a pass; 0 without them."""


@dataclass(eq=False, kw_only=True, slots=True)
class FlopMeter:
    """Counts the training FLOPs per target of each topology, once per topology.

    Convolutions and matrix multiplications are counted, forward and backward; norms, activations
    and optimizers, which are small in comparison, are not.
    """

    context: EnvFactoryContext
    sample: Batch
    _known: dict[tuple[HostSpec, frozenset["_Cost"]], TargetCost] = field(default_factory=dict)

    def per_target(self, reports: Sequence[SeedReport], env_id: int = 0) -> TargetCost:
        """Return the training FLOPs per target of an env's host with these seeds."""
        living = (report for report in reports if report.stage not in COOLDOWN_STAGES)
        seeds = frozenset(_cost_of(report) for report in living)
        # The hosts of a task differ where its contexts change them.
        key = self.context.host_spec(ROUND_INDEX, env_id), seeds
        if key not in self._known:
            self._known[key] = self._count(seeds, env_id)
        return self._known[key]

    def _count(self, key: "frozenset[_Cost]", env_id: int) -> TargetCost:
        model = build_model(self.context, ROUND_INDEX, env_id).to(self.sample.inputs.device).train()
        for seed, is_frozen in key:
            plant(model, seed, torch.Generator().manual_seed(0))
            if is_frozen:
                model.slot(seed.slot_id).schedule_prune(Ramp(num_steps=1), PruneCause())
        # A seed may fit itself to its first batch, which the other batches do not repeat.
        backpropagate(model, self.sample)
        train = self._counted(partial(backpropagate, model, self.sample))
        return TargetCost(train, self._counted(partial(try_seeds, model, [self.sample])))

    def _counted(self, work: Callable[[], object]) -> float:
        counter = FlopCounterMode(display=False)
        counter.mod_tracker = _NoModules()  # type: ignore[assignment]
        with _COUNTING, counter:
            work()
        return counter.get_total_flops() / self.sample.targets.numel()


class _NoModules:
    """Replaces torch's module tracker, so that FLOPs are not counted per module.

    The tracker installs global module hooks, which would also run for envs that train on other
    threads.
    """

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


class _Cost(NamedTuple):
    """A seed with the same cost as a reported one."""

    seed: PlantedSeed
    is_frozen: bool


def _cost_of(report: SeedReport) -> _Cost:
    """Return what decides the cost of a seed: whether it is blended, and whether it learns."""
    is_blended = report.stage in BLENDED_STAGES and report.alpha.alpha > 0.0
    seed = PlantedSeed(
        slot_id=report.slot_id,
        blueprint=report.blueprint,
        style=_STYLE_BY_ALGORITHM[report.algorithm],
        alpha=1.0,
        stage=Stage.HOLDING if is_blended else Stage.TRAINING,
    )
    # Only a scheduled prune lets alpha fall to 0, and it freezes the seed.
    is_frozen = report.alpha.mode is AlphaMode.DOWN and report.alpha.target == 0.0
    return _Cost(seed, is_frozen=is_frozen)
