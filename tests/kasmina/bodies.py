"""Slots and models in every stage, for tests with real modules."""

import msgspec
import torch
from tests.kasmina.seeds import CAUSE, HEALTHY
from torch import nn
from torch.nn import functional

from esper.kasmina.hosts import build_host
from esper.kasmina.lifecycle import Transition, stage_of
from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.seed import GerminationRequest, Ramp
from esper.kasmina.slot import SeedSlot
from esper.leyline.actions import Blueprint, Style, Topology
from esper.leyline.stages import LifecycleRules, Stage
from esper.leyline.tasks import CnnHostSpec, HostSpec, TransformerHostSpec
from esper.runtime.batches import Batch

torch.set_num_threads(1)

EAGER = LifecycleRules(min_training_steps=0, min_blending_steps=0)
"""Rules under which a seed goes as far as it is asked to."""

AT_ONCE = Ramp(num_steps=0)
REQUEST = GerminationRequest(seed_id="s0", blueprint=Blueprint.NORM, tempo_steps=3)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bare_slot(
    topology: Topology = Topology.CNN, channels: int = 4, rules: LifecycleRules = EAGER
) -> SeedSlot:
    return SeedSlot(slot_id="r0c0", channels=channels, topology=topology, rules=rules)


def features(topology: Topology = Topology.CNN, channels: int = 4, seed: int = 1) -> torch.Tensor:
    shape = (3, channels, 6, 6) if topology is Topology.CNN else (3, 5, channels)
    return torch.randn(shape, generator=generator(seed))


def batch(topology: Topology, seed: int) -> Batch:
    """Return random inputs with random targets."""
    x = inputs(SPECS[topology], seed)
    shape = x.shape if topology is Topology.TRANSFORMER else x.shape[:1]
    targets = torch.randint(0, SPECS[topology].num_classes, shape, generator=generator(seed))
    return Batch(x, targets)


def disturb(slot: SeedSlot, scale: float = 0.3, seed: int = 7) -> None:
    """Move the seed away from the identity, as training would."""
    source = generator(seed)
    with torch.no_grad():
        for parameter in slot.seed_parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=source))


def plant(
    slot: SeedSlot,
    stage: Stage = Stage.GERMINATED,
    *,
    blueprint: str = Blueprint.NORM,
    style: Style = Style.SIGMOID_ADD,
    seed_id: str = "s0",
) -> None:
    """Germinate a seed and lead it, by legal steps, to a stage; BLENDING stands at alpha 0.5."""
    request = msgspec.structs.replace(REQUEST, blueprint=blueprint, style=style, seed_id=seed_id)
    granted(slot.germinate(request, generator(3)))
    lead(slot, stage)


def lead(slot: SeedSlot, stage: Stage) -> None:
    """Lead a planted seed on to a stage."""
    slot.record_gradient(HEALTHY)
    slot.record_contribution(2.0)
    if stage >= Stage.PRUNED:
        granted(slot.prune(CAUSE))
    while stage_of(slot.state) is not stage:
        if stage >= Stage.PRUNED:
            slot.tick()
        elif stage_of(slot.state) is Stage.HOLDING:
            granted(slot.fossilize())
        else:
            granted(slot.advance())
            if stage_of(slot.state) is Stage.BLENDING:
                _settle(slot, 0.5 if stage is Stage.BLENDING else 1.0)


def _settle(slot: SeedSlot, alpha: float) -> None:
    for _ in range(3):
        slot.tick()
    granted(slot.set_alpha_target(alpha, AT_ONCE))


def granted(outcome: Transition) -> None:
    assert outcome.succeeded, outcome.refusal


CNN = CnnHostSpec(
    in_channels=1, image_size=8, num_classes=5, base_channels=2, num_blocks=3, num_pools=2
)
TRANSFORMER = TransformerHostSpec(
    block_size=8, num_layers=3, num_heads=2, embed_dim=8, vocab_size=11, dropout=0.1
)
SPECS: dict[Topology, HostSpec] = {Topology.CNN: CNN, Topology.TRANSFORMER: TRANSFORMER}
BLUEPRINT = {Topology.CNN: Blueprint.CONV_LIGHT, Topology.TRANSFORMER: Blueprint.MLP_SMALL}
"""One blueprint of each topology with several layers."""


def grown(
    spec: HostSpec = CNN, *, seed: int = 0, slot_ids: tuple[str, ...] | None = None
) -> MorphogeneticModel:
    """Return a model without seeds."""
    host = build_host(spec, generator(seed))
    return MorphogeneticModel(host, spec.slot_ids if slot_ids is None else slot_ids, EAGER)


def inputs(spec: HostSpec = CNN, seed: int = 11, num_samples: int = 4) -> torch.Tensor:
    source = generator(seed)
    if isinstance(spec, CnnHostSpec):
        shape = (num_samples, spec.in_channels, spec.image_size, spec.image_size)
        return torch.randn(shape, generator=source)
    return torch.randint(0, spec.vocab_size, (num_samples, spec.block_size), generator=source)


def loss_of(model: nn.Module, spec: HostSpec = CNN, seed: int = 11) -> torch.Tensor:
    """Return the loss of one training batch, its dropout masks from a generator of its own."""
    host = model.host if isinstance(model, MorphogeneticModel) else model
    host.set_dropout_generator(generator(seed + 1))  # type: ignore[operator]
    logits = model(inputs(spec, seed)).flatten(0, -2)
    targets = torch.randint(0, spec.num_classes, (len(logits),), generator=generator(seed + 2))
    return functional.cross_entropy(logits, targets)
