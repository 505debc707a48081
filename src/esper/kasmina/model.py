"""A host with slots and seeds, its operations, and its counterfactual forward pass."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, cast

import msgspec
import torch
from torch import Tensor, nn

from esper.kasmina import lifecycle
from esper.kasmina.counterfactual import NOTHING_OFF, FusedOutput, PrefixWalk
from esper.kasmina.hosts.protocol import HostProtocol
from esper.kasmina.lifecycle import Transition
from esper.kasmina.seed import GerminationRequest, SeedState
from esper.kasmina.slot import Emit, SeedModules, SeedSlot, discard
from esper.leyline.attribution import Ablation
from esper.leyline.errors import ContractError, UnknownNameError
from esper.leyline.reports import SeedReport
from esper.leyline.slots import SlotConfig
from esper.leyline.stages import LifecycleRules, Stage

__all__ = ["STATE_VERSION", "MorphogeneticModel"]

STATE_VERSION: Final = 1


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

    def set_emit(self, emit: Emit) -> None:
        """Set the event callback of all slots."""
        for slot in self.all_slots():
            slot.emit = emit

    # --- Forward -----------------------------------------------------------------------------

    def forward(self, x: Tensor, ablation: Ablation = NOTHING_OFF) -> Tensor:
        """Map inputs to logits, with the ablation's seeds off."""
        previous: str | None = None
        for slot in self._slots_in_execution_order():
            # A slot without an active seed needs no segment boundary; the host runs on.
            if (slot.is_blended or slot.is_incubating) and slot.slot_id not in ablation.off:
                x = slot(self._route.forward_to_segment(slot.slot_id, x, previous))
                previous = slot.slot_id
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
        return PrefixWalk(self._route, blended, ablations).run(x)

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
        pending = [
            (slot, slot.apply_outcome(lifecycle.tick(slot.state, self.rules)))
            for slot in self.all_slots()
        ]
        for slot, payloads in pending:
            for payload in payloads:
                slot.emit(payload)

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

    def blended_slots(self) -> tuple[str, ...]:
        """Return the slots whose seeds change the output, in execution order."""
        slots = self._slots_in_execution_order()
        return tuple(slot.slot_id for slot in slots if slot.is_blended)

    def reports(self) -> dict[str, SeedReport]:
        """Return a report of every occupied slot, in action order.

        Upstream and downstream mean before and after in the forward pass.
        """
        order = self.slot_config.execution_order
        alphas = [self._blended_alpha(slot_id) for slot_id in order]
        reports: dict[str, SeedReport] = {}
        for slot_id in self.slot_config.slot_ids:
            index = order.index(slot_id)
            report = self.slot(slot_id).report(
                upstream_alpha_sum=sum(alphas[:index], 0.0),
                downstream_alpha_sum=sum(alphas[index + 1 :], 0.0),
            )
            if report is not None:
                reports[slot_id] = report
        return reports

    def _blended_alpha(self, slot_id: str) -> float:
        state = self.slot(slot_id).state
        return state.alpha.alpha if state is not None and state.is_blended else 0.0

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
