"""Networks that have all their seeds from the first step: seeds placed directly, and the work."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import torch

from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.seed import BLENDED_STAGES, GerminationRequest
from esper.kasmina.slot import SeedModules
from esper.leyline.actions import Style
from esper.leyline.alpha import AlphaState
from esper.leyline.errors import UsageError
from esper.leyline.payloads import TopologyManifestRecorded, TopologySlot
from esper.leyline.stages import Stage
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.parallel_env_state import ParallelEnvState

__all__ = ["PlantedSeed", "StaticWork", "plant", "seeds_in"]


class PlantedSeed(NamedTuple):
    """A seed placed into a model directly in a given stage."""

    slot_id: str
    blueprint: str
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
            blueprint=row.blueprint,
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
    # Germinated first, for its modules, then put into its stage directly: the gates in between ask
    # for measurements that a planted seed does not have.
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

    @classmethod
    def of(
        cls, work: TrainingWork, topologies: Mapping[int, TopologyManifestRecorded]
    ) -> "StaticWork":
        """Return the same work on networks with these topologies."""
        return cls(
            context=work.context,
            rules=work.rules,
            action_rules=work.action_rules,
            masker=work.masker,
            validation=work.validation,
            testing=work.testing,
            sabotage_step=work.sabotage_step,
            topologies=topologies,
        )

    def build(self, round_index: int, env_id: int) -> ParallelEnvState:
        """Build an env with its seeds; its host is initialized as in the other arms."""
        # No `super()`: a slotted dataclass is a new class, which zero-argument super() rejects.
        env = TrainingWork.build(self, round_index, env_id)
        manifest = self.topologies.get(env_id)
        for seed in () if manifest is None else seeds_in(manifest):
            plant(env.model, seed._replace(stage=Stage.FOSSILIZED), env.seed_generator)
        # These seeds are not the result of a decision, so their events are dropped.
        env.outbox.clear()
        # The first snapshot was taken before the seeds, and a rollback needs the weights of every
        # fossil.
        env.governor.take_snapshot()
        return env
