"""Topologies: the seeds of a network, its training cost, and how to build it directly."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
import torch
from torch.utils.flop_counter import FlopCounterMode

from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.seed import BLENDED_STAGES, GerminationRequest
from esper.kasmina.slot import SeedModules
from esper.leyline.actions import Blueprint, Style
from esper.leyline.alpha import AlphaState
from esper.leyline.errors import UsageError
from esper.leyline.payloads import TopologyManifestRecorded, TopologySlot
from esper.leyline.reports import SeedReport
from esper.leyline.stages import ACTIVE_STAGES, Stage
from esper.runtime.batches import Batch
from esper.simic.training.batch_ops import loss_and_correct
from esper.simic.training.env_factory import EnvFactoryContext, build_model
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.parallel_env_state import ParallelEnvState

__all__ = ["FlopMeter", "PlantedSeed", "StaticWork", "plant", "seeds_in"]

_COUNTING: Final = threading.Lock()
"""torch's FLOP counter has process-wide state, so only one may be active at a time."""

_STYLE_BY_ALGORITHM: Final = {style.algorithm: style for style in Style}
"""Alpha ramps do not change the cost, so one style represents all with the same blend."""


class PlantedSeed(NamedTuple):
    """A seed placed into a model directly in a given stage."""

    slot_id: str
    blueprint: Blueprint
    style: Style
    alpha: float
    stage: Stage


def seeds_in(manifest: TopologyManifestRecorded) -> tuple[PlantedSeed, ...]:
    """Return the seeds of a recorded network that contribute to its output."""
    seeds = (_seed_in(row) for row in manifest.slots)
    return tuple(seed for seed in seeds if seed.stage in BLENDED_STAGES and seed.alpha > 0.0)


def _seed_in(row: TopologySlot) -> PlantedSeed:
    try:
        return PlantedSeed(
            slot_id=row.slot_id,
            blueprint=Blueprint[row.blueprint.upper()],
            style=Style[row.style],
            alpha=row.alpha,
            stage=Stage[row.stage],
        )
    except KeyError as error:
        raise UsageError(
            f"slot {row.slot_id!r} of a recorded network: {error} is unknown"
        ) from None


def plant(model: MorphogeneticModel, seed: PlantedSeed, generator: torch.Generator) -> None:
    """Place a seed into a model."""
    slot = model.slot(seed.slot_id)
    request = GerminationRequest(
        seed_id=f"planted_{seed.slot_id}",
        blueprint=seed.blueprint,
        style=seed.style,
        alpha_target=seed.alpha,
    )
    outcome = model.germinate(seed.slot_id, request, generator)
    assert outcome.state is not None, f"slot {seed.slot_id} of a new model is empty"
    state = msgspec.structs.replace(
        outcome.state,
        stage=seed.stage,
        fossilized_at_step=0 if seed.stage is Stage.FOSSILIZED else None,
        alpha=AlphaState(alpha=seed.alpha, start=seed.alpha, target=seed.alpha),
    )
    slot.restore(state, SeedModules(slot.seed, slot.gate))


@dataclass(eq=False, kw_only=True, slots=True)
class StaticWork(TrainingWork):
    """Trains networks that have all their seeds from the first step."""

    topologies: Mapping[int, TopologyManifestRecorded]
    """Topologies by env; an env without one is the host only."""

    def build(self, round_index: int, env_id: int) -> ParallelEnvState:
        """Build an env with its seeds; its host is initialized as in the other arms."""
        # No `super()`: a slotted dataclass is a new class, which zero-argument super() rejects.
        env = TrainingWork.build(self, round_index, env_id)
        manifest = self.topologies.get(env_id)
        for seed in () if manifest is None else seeds_in(manifest):
            plant(env.model, seed._replace(stage=Stage.FOSSILIZED), env.seed_generator)
        # These seeds are not the result of a decision, so their events are dropped.
        env.outbox.clear()
        env.governor.take_snapshot()
        return env


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
