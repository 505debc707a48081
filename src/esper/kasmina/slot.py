"""A slot: owns at most one seed's modules and applies lifecycle transitions to them."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from esper.kasmina import lifecycle
from esper.kasmina.blending import (
    GateNetwork,
    blend_add,
    blend_gate,
    blend_multiply,
)
from esper.kasmina.blueprints import build_seed
from esper.kasmina.lifecycle import Frozen, ModuleDropped, Transition
from esper.kasmina.seed import GerminationRequest, SeedState
from esper.kasmina.slot_operations import Emit, SlotOperations, discard
from esper.leyline.actions import Topology
from esper.leyline.alpha import AlphaAlgorithm
from esper.leyline.errors import ContractError, UsageError
from esper.leyline.payloads import Payload
from esper.leyline.stages import COOLDOWN_STAGES, LifecycleRules

__all__ = ["NO_MODULES", "SeedModules", "SeedSlot"]


class SeedModules(NamedTuple):
    """The modules of a seed; only seeds blended by GATE have a gate network."""

    seed: nn.Module | None = None
    gate: nn.Module | None = None


NO_MODULES: Final = SeedModules()


class SeedSlot(SlotOperations, nn.Module):
    """A place in a host that one seed can grow in; owns the seed's modules."""

    seed: nn.Module | None
    gate: nn.Module | None

    def __init__(
        self,
        *,
        slot_id: str,
        channels: int,
        topology: Topology,
        rules: LifecycleRules,
        emit: Emit = discard,
    ) -> None:
        super().__init__()
        self.slot_id = slot_id
        self.channels = channels
        self.topology = topology
        self.rules = rules
        self.emit = emit
        self.state: SeedState | None = None
        self.num_params = 0
        # Alpha as a tensor on the features' device, built on first use and dropped with every new
        # state: a copy from the host per batch would synchronize a GPU.
        self._alpha: Tensor | None = None
        # The seed's parameters before its first step, which make it the identity.
        self._birth: list[Tensor] = []
        self._is_newborn = False
        self.register_module("seed", None)
        self.register_module("gate", None)

    # --- Forward -----------------------------------------------------------------------------

    @property
    def is_blended(self) -> bool:
        """Return whether the seed changes the slot's output."""
        return self.state is not None and self.state.is_blended

    @property
    def is_incubating(self) -> bool:
        """Return whether the seed learns from the slot's features without changing them."""
        return self.state is not None and self.state.is_incubating

    @property
    def is_sterile(self) -> bool:
        """Return whether the slot has a seed that never learns."""
        return self.state is not None and self.state.is_sterile

    def forward(self, h: Tensor) -> Tensor:
        """Map the host's features to the slot's output, including the seed's contribution."""
        if self.is_blended:
            return self.compose(h, self._alpha_like(h))
        return h

    def switched_on(self, h: Tensor) -> Tensor:
        """Map the host's features to the output that the slot has once its seed is fully on."""
        return self.compose(h, torch.ones((), device=h.device))

    def compose(self, h: Tensor, alpha: Tensor) -> Tensor:
        """Blend the seed's output into `h`; alpha is a scalar or has one entry per sample."""
        assert self.seed is not None, f"{self.slot_id} has no module"
        s = self.seed(h)
        match self.occupant().style.algorithm:
            case AlphaAlgorithm.ADD:
                return blend_add(h, s, alpha)
            case AlphaAlgorithm.MULTIPLY:
                # The host's features are both what is scaled and what the seed was given.
                return blend_multiply(h, s, h, alpha)
            case AlphaAlgorithm.GATE:
                assert self.gate is not None, f"{self.slot_id} lacks its gate network"
                return blend_gate(h, s, self.gate(h), alpha)

    def _alpha_like(self, h: Tensor) -> Tensor:
        if self._alpha is None or self._alpha.device != h.device:
            # Validation runs in inference mode, and autograd cannot use tensors created there.
            with torch.inference_mode(False):
                self._alpha = torch.full((), self.occupant().alpha.alpha, device=h.device)
        return self._alpha

    # --- Operations --------------------------------------------------------------------------

    def germinate(
        self,
        request: GerminationRequest,
        generator: torch.Generator,
        device: torch.device | None = None,
    ) -> Transition:
        """Germinate a seed, drawing its parameters from `generator`; on failure change nothing."""
        outcome = lifecycle.germinate(self.state, request, self.rules)
        if outcome.state is not None and outcome.succeeded:
            # Built before the state is set: a blueprint that does not fit raises here, and the slot
            # is still empty.
            self._plant(self._build(outcome.state, generator, device))
            self._is_newborn = True
        return self.commit(outcome)

    def apply_outcome(self, outcome: Transition) -> tuple[Payload, ...]:
        """Apply a lifecycle outcome to state and modules; return the event payloads."""
        # The payloads report the parameters that the seed has before its module is dropped.
        payloads = self.payloads_of(outcome)
        for effect in outcome.effects:
            match effect:
                case ModuleDropped():
                    self._plant(NO_MODULES)
                case Frozen():
                    self._freeze(is_frozen=True)
        self._set_state(outcome.state)
        return payloads

    @torch.no_grad()
    def scramble(self, generator: torch.Generator) -> None:
        """Put the entries of each of the seed's parameters into a random order."""
        for parameter in self.seed_parameters():
            order = torch.randperm(parameter.numel(), generator=generator)
            parameter.copy_(parameter.flatten()[order.to(parameter.device)].view_as(parameter))

    def seed_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of the seed and its gate network."""
        for module in (self.seed, self.gate):
            if module is not None:
                yield from module.parameters()

    def weights(self) -> list[Tensor]:
        """Return a copy of the parameters of the seed and its gate network."""
        return [parameter.detach().clone() for parameter in self.seed_parameters()]

    def record_birth(self) -> None:
        """Record the weights between a new seed's first batch and its first step.

        Some seeds fit themselves to that batch; what they learn begins there.
        """
        if self._is_newborn:
            self._birth, self._is_newborn = self.weights(), False

    @torch.no_grad()
    def set_weights_between(self, learned: Iterable[Tensor], share: Tensor) -> None:
        """Move the parameters from those at birth, by a share of the way, to what was learned."""
        for parameter, start, end in zip(self.seed_parameters(), self._birth, learned, strict=True):
            parameter.copy_(start.lerp(end, share))

    def check_blueprint(self, blueprint: str) -> None:
        """Raise if a seed of this blueprint could not be germinated here."""
        try:
            self._probe(build_seed(self.topology, blueprint, self.channels, torch.Generator()))
        except Exception as error:  # a blueprint may be code of the user's own
            raise UsageError(
                f"slot {self.slot_id!r} with {self.channels} channels: blueprint "
                f"{str(blueprint)!r} does not fit: {error}"
            ) from error

    # --- Restoring ---------------------------------------------------------------------------

    def modules_for(
        self, state: SeedState | None, device: torch.device | None = None
    ) -> SeedModules:
        """Return modules for a stored state, built from its blueprint; weights come later.

        A live seed with the same id keeps its modules, so its parameters stay the same objects.
        """
        if state is None or state.stage in COOLDOWN_STAGES:
            return NO_MODULES
        # The optimizer of a seed knows its parameters by identity; new objects would lose its
        # moments.
        if self.seed is not None and self.occupant().seed_id == state.seed_id:
            return SeedModules(self.seed, self.gate)
        # Any generator will do, as the weights are overwritten; it only keeps the draw away from
        # the seed's own stream and from torch's global one.
        return self._build(state, torch.Generator(), device)

    def restore(self, state: SeedState | None, modules: SeedModules) -> None:
        """Set a stored state and the modules built for it."""
        self._plant(modules)
        self._set_state(state)
        self._freeze(is_frozen=state is not None and state.is_frozen)

    # --- Internals ---------------------------------------------------------------------------

    def _set_state(self, state: SeedState | None) -> None:
        self.state = state
        self._alpha = None

    def _build(
        self, state: SeedState, generator: torch.Generator, device: torch.device | None
    ) -> SeedModules:
        seed = build_seed(self.topology, state.blueprint, self.channels, generator)
        seed = seed.to(device)
        self._probe(seed, device)
        if state.style.algorithm is not AlphaAlgorithm.GATE:
            return SeedModules(seed)
        gate = GateNetwork(self.channels, self.topology, generator)
        return SeedModules(seed, gate.to(device))

    def _probe(self, seed: nn.Module, device: torch.device | None = None) -> None:
        is_cnn = self.topology is Topology.CNN
        shape = (1, self.channels, 8, 8) if is_cnn else (2, 8, self.channels)
        with torch.no_grad():
            output = seed(torch.zeros(shape, device=device))
        if output.shape != shape:
            raise ContractError(
                f"slot {self.slot_id!r}: the seed maps shape {shape} to {tuple(output.shape)}; "
                "a seed must preserve the shape"
            )

    def _plant(self, modules: SeedModules) -> None:
        is_new = modules.seed is not self.seed
        self.seed, self.gate = modules
        if is_new:
            self._birth, self._is_newborn = self.weights(), False
        # A new module is in training mode, wherever the rest of the network is.
        self.train(self.training)
        self.num_params = sum(parameter.numel() for parameter in self.seed_parameters())

    def _freeze(self, *, is_frozen: bool) -> None:
        for parameter in self.seed_parameters():
            # Optimizers skip parameters without a gradient; with one, weight decay and momentum
            # would go on moving a seed that is being removed.
            parameter.requires_grad_(not is_frozen)
            if is_frozen:
                parameter.grad = None
