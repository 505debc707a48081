"""A host with slots and seeds, its operations, and its counterfactual forward pass."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, cast

import msgspec
import torch
from torch import Tensor, nn

from esper.kasmina import lifecycle
from esper.kasmina.blueprints import SEEDS
from esper.kasmina.counterfactual import NOTHING_OFF, FusedOutput, PrefixWalk
from esper.kasmina.hosts.protocol import HostProtocol
from esper.kasmina.hosts.statistics import batch_norms
from esper.kasmina.lifecycle import Transition
from esper.kasmina.seed import GerminationRequest, SeedState
from esper.kasmina.slot import SeedModules, SeedSlot
from esper.kasmina.slot_operations import Emit, discard, reports_of, tick_slots
from esper.leyline.attribution import Ablation
from esper.leyline.errors import ContractError, UnknownNameError
from esper.leyline.reports import SeedReport
from esper.leyline.slots import SlotConfig
from esper.leyline.stages import LifecycleRules, Stage

__all__ = ["STATE_VERSION", "Incubation", "MorphogeneticModel"]

STATE_VERSION: Final = 2


class Incubation(NamedTuple):
    """A seed in isolation, and the features of one batch that it learns from."""

    slot: SeedSlot
    features: Tensor
    """Detached from the host's graph."""


class MorphogeneticModel(nn.Module):
    """A host network with slots for seeds."""

    def __init__(
        self,
        host: nn.Module,
        slot_ids: Iterable[str],
        rules: LifecycleRules,
        *,
        emit: Emit = discard,
    ) -> None:
        super().__init__()
        self.host = host
        self.rules = rules
        self.slot_config = SlotConfig.from_specs(
            self._route.injection_specs(), self._route.execution_order(), slot_ids
        )
        self.num_host_params = sum(parameter.numel() for parameter in host.parameters())
        """Constant: growth adds parameters to the slots only."""
        channels = self.slot_config.channels_by_id()
        self.slots = nn.ModuleDict(
            {
                slot_id: SeedSlot(
                    slot_id=slot_id,
                    channels=channels[slot_id],
                    topology=self._route.topology,
                    rules=rules,
                    emit=emit,
                )
                for slot_id in self.slot_config.slot_ids
            }
        )

    @property
    def _route(self) -> HostProtocol:
        return cast(HostProtocol, self.host)

    # --- Slots -------------------------------------------------------------------------------

    def slot(self, slot_id: str) -> SeedSlot:
        """Return a slot by its id."""
        if slot_id not in self.slots:
            raise UnknownNameError("slot", slot_id, self.slot_config.slot_ids)
        return cast(SeedSlot, self.slots[slot_id])

    def all_slots(self) -> Iterator[SeedSlot]:
        """Yield the slots in action order."""
        return (self.slot(slot_id) for slot_id in self.slot_config.slot_ids)

    def check_blueprints(self, added: tuple[str, ...]) -> None:
        """Raise if a blueprint of every run or an added one does not fit one of the slots."""
        for slot in self.all_slots():
            for blueprint in (*SEEDS[slot.topology], *added):
                slot.check_blueprint(blueprint)

    def set_emit(self, emit: Emit) -> None:
        """Set the event callback of all slots."""
        for slot in self.all_slots():
            slot.emit = emit

    # --- Forward -----------------------------------------------------------------------------

    def forward(self, x: Tensor, ablation: Ablation = NOTHING_OFF) -> Tensor:
        """Map inputs to logits, with the ablation's seeds off."""
        if ablation.off:
            (logits,) = self.fused_forward(x, [ablation]).logits
            return logits
        # A slot without a seed that takes part needs no segment boundary; the host runs on.
        return self._run(x, [slot for slot in self._slots_in_execution_order() if slot.is_blended])

    def forward_and_features(self, x: Tensor) -> tuple[Tensor, tuple[Incubation, ...]]:
        """Map inputs to logits, and return the features that seeds in isolation learn from."""
        slots = self._slots_in_execution_order()
        at_work = [slot for slot in slots if slot.is_blended or slot.is_incubating]
        seen: list[Incubation] = []
        return self._run(x, at_work, seen=seen), tuple(seen)

    def forward_switched_on(self, incubation: Incubation) -> Tensor:
        """Map a slot's features to the logits of the network with its seed fully on.

        Other seeds in isolation take no part. The host is in evaluation mode: its statistics stay
        those of the network without the seed, which validation would use, and no dropout mask is
        drawn from the host's generator.
        """
        slot, features = incubation
        slots = list(self._slots_in_execution_order())
        later = [other for other in slots[slots.index(slot) + 1 :] if other.is_blended]
        was_training = self.host.training
        self.host.eval()
        try:
            return self._run(slot.switched_on(features), later, previous=slot.slot_id)
        finally:
            self.host.train(was_training)

    def _run(
        self,
        x: Tensor,
        slots: Sequence[SeedSlot],
        *,
        previous: str | None = None,
        seen: list[Incubation] | None = None,
    ) -> Tensor:
        """Run from raw input, or from the slot `previous`, to the logits, through these slots."""
        for slot in slots:
            x = self._route.forward_to_segment(slot.slot_id, x, previous)
            previous = slot.slot_id
            if slot.is_blended:
                x = slot(x)
            elif seen is not None:
                seen.append(Incubation(slot, x.detach()))
        if previous is None:
            return self._route.forward(x)
        return self._route.forward_from_segment(previous, x)

    def fused_forward(self, x: Tensor, ablations: Sequence[Ablation]) -> FusedOutput:
        """Map inputs to logits under every ablation, computing shared prefixes once.

        The ablations form a tree over the blended seeds in execution order. It is walked depth
        first, at the plain batch size, so that each ablation's logits equal its own `forward` bit
        for bit. Incubating seeds learn nothing here.
        """
        for slot_id in set[str]().union(*(ablation.off for ablation in ablations)):
            self.slot(slot_id)
        blended = [slot for slot in self._slots_in_execution_order() if slot.is_blended]
        return PrefixWalk(self._route, blended, ablations, batch_norms(self.host)).run(x)

    def _slots_in_execution_order(self) -> Iterator[SeedSlot]:
        # Looked up once: attribute access on an nn.Module is slow, and this runs for every batch.
        slots = self.slots
        return (cast(SeedSlot, slots[slot_id]) for slot_id in self.slot_config.execution_order)

    # --- Operations --------------------------------------------------------------------------

    def germinate(
        self, slot_id: str, request: GerminationRequest, generator: torch.Generator
    ) -> Transition:
        """Germinate a seed, drawing its parameters from `generator`; on failure change nothing."""
        return self.slot(slot_id).germinate(request, generator, self._device)

    def tick(self) -> None:
        """Advance every slot by one step; emit the events after all slots have advanced."""
        tick_slots(self.all_slots())

    # --- Parameters and reports --------------------------------------------------------------

    def host_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the host's parameters, each shared one once."""
        return self.host.parameters()

    @property
    def num_seed_params(self) -> int:
        """Return the number of parameters of all seeds and gate networks, frozen ones included."""
        return sum(slot.num_params for slot in self.all_slots())

    @property
    def num_fossils(self) -> int:
        """Return the number of fossilized seeds."""
        stages = (lifecycle.stage_of(slot.state) for slot in self.all_slots())
        return sum(stage is Stage.FOSSILIZED for stage in stages)

    @property
    def is_incubating(self) -> bool:
        """Return whether a seed learns from the host's features without changing the output."""
        return any(slot.is_incubating for slot in self.all_slots())

    def blended_slots(self) -> tuple[str, ...]:
        """Return the slots whose seeds change the output, in execution order."""
        slots = self._slots_in_execution_order()
        return tuple(slot.slot_id for slot in slots if slot.is_blended)

    def reports(self) -> dict[str, SeedReport]:
        """Return a report of every occupied slot, in action order."""
        return reports_of(self.all_slots(), self.slot_config.execution_order)

    # --- Saving and loading ------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return primitives and tensors from which `load_state` can restore this model.

        The tensors are not copied: copy or write them before training continues.
        """
        return {
            "version": STATE_VERSION,
            "seeds": {
                slot.slot_id: None if slot.state is None else msgspec.to_builtins(slot.state)
                for slot in self.all_slots()
            },
            "weights": self.state_dict(),
        }

    def load_state(self, stored: dict[str, Any]) -> None:
        """Load a stored state: build the seeds from their blueprints, then load the weights.

        The host's parameters stay the same objects, as do those of a live seed with the same id.
        A state that does not match raises before anything has changed.
        """
        seeds, weights = self._stored_seeds(stored), stored["weights"]
        modules = {
            slot_id: self.slot(slot_id).modules_for(state, self._device)
            for slot_id, state in seeds.items()
        }
        self._check_weights(weights, modules)
        for slot_id, state in seeds.items():
            self.slot(slot_id).restore(state, modules[slot_id])
        self.load_state_dict(weights)

    def _check_weights(
        self, weights: Mapping[str, Tensor], modules: Mapping[str, SeedModules]
    ) -> None:
        parts = {"host": self.host}
        for slot_id, (seed, gate) in modules.items():
            parts |= {f"slots.{slot_id}.seed": seed} if seed is not None else {}
            parts |= {f"slots.{slot_id}.gate": gate} if gate is not None else {}
        expected = {
            (f"{prefix}.{name}", tensor.shape)
            for prefix, part in parts.items()
            for name, tensor in part.state_dict().items()
        }
        differing = expected ^ {(name, tensor.shape) for name, tensor in weights.items()}
        if differing:
            name, shape = min(differing)
            raise ContractError(
                f"stored weights do not match this model: {name} with shape {tuple(shape)} exists "
                "in only one of them"
            )

    def _stored_seeds(self, stored: dict[str, Any]) -> dict[str, SeedState | None]:
        if stored["version"] != STATE_VERSION:
            raise ContractError(
                f"the model was stored in version {stored['version']}, this is {STATE_VERSION}"
            )
        if set(stored["seeds"]) != set(self.slots):
            raise ContractError(
                f"the model was stored with slots {sorted(stored['seeds'])}, this one has "
                f"{sorted(self.slots)}"
            )
        try:
            return msgspec.convert(stored["seeds"], dict[str, SeedState | None])
        except msgspec.ValidationError as error:
            raise ContractError(f"a stored seed cannot be read: {error}") from error

    @property
    def _device(self) -> torch.device:
        return next(chain(self.host.parameters(), self.host.buffers())).device
