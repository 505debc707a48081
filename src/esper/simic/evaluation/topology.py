"""Topologies: what a network is made of, what training it costs, how it is built at once."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import torch
from torch.utils.flop_counter import FlopCounterMode

from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.seed import BLENDED_STAGES, Germination
from esper.kasmina.slot import SeedModules
from esper.leyline.alpha import AlphaState
from esper.leyline.comparison import Sprout
from esper.leyline.reports import SeedReport
from esper.leyline.stages import ACTIVE_STAGES, Stage
from esper.runtime.batches import Batch
from esper.simic.training.batch_ops import loss_and_correct
from esper.simic.training.env_factory import EnvFactoryContext, build_model
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.parallel_env_state import ParallelEnvState

__all__ = ["FlopMeter", "StaticWork", "plant", "topology_of"]

_COUNTING: Final = threading.Lock()
"""A counter is entered for the whole process in some respects, so one at a time is."""


def topology_of(reports: Iterable[SeedReport]) -> tuple[Sprout, ...]:
    """Return the seeds that take part in the output."""
    return tuple(
        _sprout(report)
        for report in reports
        if report.stage in BLENDED_STAGES and report.alpha.alpha > 0.0
    )


def plant(
    model: MorphogeneticModel, sprout: Sprout, stage: Stage, generator: torch.Generator
) -> None:
    """Put a seed into a model in a stage that it would otherwise have to grow into."""
    slot = model.slot(sprout.slot_id)
    wish = Germination(
        seed_id=f"planted_{sprout.slot_id}",
        blueprint=sprout.blueprint,
        style=sprout.style,
        alpha_target=sprout.alpha,
    )
    outcome = model.germinate(sprout.slot_id, wish, generator)
    assert outcome.state is not None, f"slot {sprout.slot_id} of a new model is empty"
    alpha = AlphaState(alpha=sprout.alpha, start=sprout.alpha, target=sprout.alpha)
    state = msgspec.structs.replace(outcome.state, stage=stage, alpha=alpha)
    slot.restore(state, SeedModules(slot.seed, slot.gate))


@dataclass(eq=False, kw_only=True, slots=True)
class StaticWork(TrainingWork):
    """Trains networks that have all their seeds from the first step on."""

    topologies: Mapping[int, Sequence[Sprout]]
    """By env."""

    def build(self, round_index: int, env_id: int) -> ParallelEnvState:
        """Build an env with its seeds in place; its host starts as that of any other arm."""
        # Named, as a dataclass with slots is a new class that `super()` does not know.
        env = TrainingWork.build(self, round_index, env_id)
        for sprout in self.topologies.get(env_id, ()):
            plant(env.model, sprout, Stage.FOSSILIZED, env.seed_generator)
        # Nobody has decided on these seeds, so nothing is told of them.
        env.outbox.clear()
        env.governor.take_snapshot()
        return env


@dataclass(eq=False, kw_only=True, slots=True)
class FlopMeter:
    """Knows what training on one target costs for each topology, by counting it once.

    Convolutions and matrix products are counted, forward and backward; norms, activations and
    optimizers, which are few beside them, are not. A seed on its way out counts as one that learns.
    """

    context: EnvFactoryContext
    sample: Batch
    _known: dict[frozenset[tuple[Sprout, Stage]], float] = field(default_factory=dict)

    def per_target(self, reports: Sequence[SeedReport]) -> float:
        """Return the operations that training on one target takes with these seeds."""
        # Alpha changes no cost, so it makes no topology of its own.
        key = frozenset(
            (
                msgspec.structs.replace(_sprout(report), alpha=1.0),
                Stage.FOSSILIZED if report.stage in BLENDED_STAGES else report.stage,
            )
            for report in reports
            if report.stage in ACTIVE_STAGES
        )
        if key not in self._known:
            self._known[key] = self._count(key)
        return self._known[key]

    def _count(self, key: frozenset[tuple[Sprout, Stage]]) -> float:
        model = build_model(self.context, 0, 0).to(self.sample.inputs.device).train()
        for sprout, stage in key:
            plant(model, sprout, stage, torch.Generator().manual_seed(0))
        counter = FlopCounterMode(display=False)
        counter.mod_tracker = _NoModules()  # type: ignore[assignment]
        with _COUNTING, counter:
            loss, _ = loss_and_correct(model(self.sample.inputs), self.sample.targets)
            loss.backward()  # type: ignore[no-untyped-call]
        return counter.get_total_flops() / self.sample.targets.numel()


class _NoModules:
    """Counts for no module in particular.

    The tracker that it replaces has hooks in every module of the process: envs that train on other
    threads would run into them.
    """

    parents = frozenset({"Global"})

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _sprout(report: SeedReport) -> Sprout:
    return Sprout(
        slot_id=report.slot_id,
        blueprint=report.blueprint,
        algorithm=report.algorithm,
        alpha=report.alpha.alpha,
    )
