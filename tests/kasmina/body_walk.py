"""Random walks through the seed lifecycle in real models: nothing leaks."""

import random
import weakref
from dataclasses import dataclass, field

import torch
from tests.kasmina.lifecycle_walk import (
    CAUSE,
    OPERATIONS,
    TARGETS,
    WEIGHTS,
    check_outcome,
    measured_at_random,
    random_ramp,
    random_request,
    random_rules,
)
from torch import nn

from esper.kasmina import lifecycle
from esper.kasmina.hosts import build_host
from esper.kasmina.lifecycle import Transition
from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.optimizers import SeedOptimizers
from esper.kasmina.slot import SeedSlot
from esper.leyline.actions import BLUEPRINTS_BY_TOPOLOGY, Topology
from esper.leyline.stages import COOLDOWN_STAGES, Stage
from esper.leyline.tasks import CnnHostSpec
from esper.runtime.batches import Batch
from esper.simic.training.batch_ops import backpropagate

SPEC = CnnHostSpec(in_channels=1, image_size=4, num_classes=3, base_channels=2, num_blocks=2)
STEPS_BETWEEN_BATCHES = 25


@dataclass(eq=False, slots=True)
class BodyWalk:
    """Random operations on the slots of one model after another, with training batches between."""

    rng: random.Random
    num_changes: int = 0
    num_operations: int = 0
    _model: MorphogeneticModel = field(init=False)
    _host_optimizer: torch.optim.SGD = field(init=False)
    _seed_optimizers: SeedOptimizers = field(init=False)
    _generator: torch.Generator = field(default_factory=torch.Generator)
    _dropped: list[weakref.ref[nn.Module]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start with a fresh model."""
        self._build()

    def run(self, num_changes: int) -> None:
        """Run until `num_changes` stages have changed."""
        while self.num_changes < num_changes:
            if self._model.num_fossils == len(self._model.slots):
                self._build()
            operation = self.rng.choices(OPERATIONS, WEIGHTS)[0]
            self._do_one(operation, self.rng.choice(list(self._model.all_slots())))
            if self.num_operations % STEPS_BETWEEN_BATCHES == 0:
                self._train_batch()
                self._check_model()

    def _build(self) -> None:
        host = build_host(SPEC, self._generator)
        self._model = MorphogeneticModel(host, SPEC.slot_ids, random_rules(self.rng))
        self._host_optimizer = torch.optim.SGD(host.parameters(), lr=0.01, momentum=0.9)
        self._seed_optimizers = SeedOptimizers(lr=0.01)

    def _do_one(self, operation: str, slot: SeedSlot) -> None:
        if slot.state is not None and self.rng.random() < 0.5:
            slot.state = measured_at_random(self.rng, slot.state)
        before, seed = slot.state, slot.seed
        outcome = self._ask(operation, slot)
        assert slot.state is outcome.state
        self.num_changes += check_outcome(before, outcome, is_tick=operation == "tick")
        self.num_operations += 1
        check_slot(slot)
        if seed is not None and slot.seed is None:
            self._dropped.append(weakref.ref(seed))

    def _ask(self, operation: str, slot: SeedSlot) -> Transition:
        match operation:
            case "germinate":
                blueprints = BLUEPRINTS_BY_TOPOLOGY[Topology.CNN]
                request = random_request(self.rng, f"s{self.num_changes}", blueprints)
                return slot.germinate(request, self._generator)
            case "advance":
                return slot.advance()
            case "fossilize":
                return slot.fossilize()
            case "prune":
                return slot.prune(CAUSE)
            case "schedule":
                return slot.schedule_prune(random_ramp(self.rng), CAUSE)
            case "retarget":
                return slot.set_alpha_target(self.rng.choice(TARGETS), random_ramp(self.rng))
            case _:
                return slot.tick()

    def _train_batch(self) -> None:
        self._seed_optimizers.sync_with(self._model)
        self._host_optimizer.zero_grad()
        self._seed_optimizers.zero_grad()
        x = torch.randn((4, 1, 4, 4), generator=self._generator)
        y = torch.randint(0, SPEC.num_classes, (4,), generator=self._generator)
        backpropagate(self._model, Batch(x, y))
        self._host_optimizer.step()
        self._seed_optimizers.step()

    def _check_model(self) -> None:
        slots = list(self._model.all_slots())
        owned = {id(parameter) for slot in slots for parameter in slot.seed_parameters()}
        host = {id(parameter) for parameter in self._model.host_parameters()}
        assert {id(parameter) for parameter in self._model.parameters()} == owned | host
        stepped = {
            id(parameter)
            for optimizer in self._seed_optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        assert stepped == owned
        assert all(
            id(parameter) in owned
            for optimizer in self._seed_optimizers
            for parameter in optimizer.state
        )
        # Nothing but slot and optimizer may hold a seed, so that a dropped one dies at once.
        assert [ref for ref in self._dropped if ref() is not None] == []
        self._dropped.clear()


def check_slot(slot: SeedSlot) -> None:
    """Assert the invariants of a slot."""
    stage = lifecycle.stage_of(slot.state)
    assert (slot.seed is None) == (stage in COOLDOWN_STAGES | {Stage.DORMANT})
    parameters = list(slot.seed_parameters())
    assert slot.num_params == sum(parameter.numel() for parameter in parameters)
    is_frozen = slot.state is not None and slot.state.is_frozen
    assert all(parameter.requires_grad is not is_frozen for parameter in parameters)
    for module in slot.modules():
        assert not module._forward_hooks
        assert not module._backward_hooks
