"""The recurrent policy network: layers, initialisation, single steps and unrolled sequences.

Shapes: N envs, T steps, D observation, S slots, F features, H hidden, K heads, W widest head.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Final

import msgspec
import torch
from torch import Tensor, nn

from esper.leyline.actions import HEADS, NUM_OPS, Head, head_sizes
from esper.tamiyo.distributions import DEFAULT_MIXTURES, OP_ROW, ActionSpace
from esper.tamiyo.mask_types import ActionMasks

__all__ = [
    "Decision",
    "LstmState",
    "PolicyNetwork",
    "PolicyOutput",
    "PolicySpec",
    "draw_uniforms",
]

BLUEPRINT_DIM: Final = 4
HIDDEN_GAIN: Final = math.sqrt(2)
POLICY_GAIN: Final = 0.01
"""Gain of the last layer of each head; small, so that the initial policy is near uniform."""
CRITIC_GAIN: Final = 0.1


class PolicySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sizes of a policy network, and the uniform mixture weight ε of each head."""

    obs_dim: int
    num_slots: int
    added_blueprints: tuple[str, ...] = ()
    """The blueprints that the run adds, in the order of their choices."""
    feature_dim: int
    hidden_dim: int
    mixtures: tuple[float, ...] = DEFAULT_MIXTURES
    is_orthogonal: bool = True
    """Whether initial weights are orthogonal; else uniform, as PyTorch initialises layers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LstmState:
    """The LSTM state of each env."""

    h: Tensor  # [N, H]
    c: Tensor  # [N, H]

    def cleared(self, rows: Tensor) -> "LstmState":
        """Return the state with the rows of this bool mask [N] set to zero."""
        gone = rows.unsqueeze(-1)
        return LstmState(h=self.h.masked_fill(gone, 0.0), c=self.c.masked_fill(gone, 0.0))

    def replaced(self, rows: Tensor, after: "LstmState") -> "LstmState":
        """Return the state with the rows of this bool mask [N] taken from another state."""
        taken = rows.unsqueeze(-1)
        return LstmState(h=after.h.where(taken, self.h), c=after.c.where(taken, self.c))

    def select(self, rows: Tensor) -> "LstmState":
        """Return the state of these envs, in this order."""
        return LstmState(h=self.h[rows], c=self.c[rows])


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyOutput:
    """The network's outputs for observations with leading dims [N] or [N, T]."""

    logits: Tensor  # [..., K, W]
    values: Tensor  # [...], on the value normaliser's scale
    hidden: Tensor  # [..., H]
    state: LstmState
    """The LSTM state after the last step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """One decision for all envs, stacked so that few device-to-host copies are needed.

    Rows of `diagnostics`: K confidences, K normalised entropies, K numbers of valid choices, one
    probability per op, the value.
    """

    actions: Tensor  # int64 [K, N]
    log_probs: Tensor  # [K, N]
    diagnostics: Tensor  # [3 * K + ops + 1, N]
    state: LstmState

    @property
    def entropies(self) -> Tensor:
        """Return each head's normalised entropy, [K, N]."""
        return self.diagnostics[len(HEADS) : 2 * len(HEADS)]

    @property
    def op_probabilities(self) -> Tensor:
        """Return the probability of each op, [ops, N]."""
        return self.diagnostics[3 * len(HEADS) : -1]

    @property
    def values(self) -> Tensor:
        """Return the critic's value of each env's observation, [N]."""
        return self.diagnostics[-1]


class PolicyNetwork(nn.Module):
    """Blueprint embedding, feature net, residual LSTM, eight heads, V, Q and contributions."""

    def __init__(self, spec: PolicySpec, generator: torch.Generator) -> None:
        super().__init__()
        self.spec = spec
        # On the meta device nothing is drawn, so the process-wide generator is never touched.
        with torch.device("meta"):
            self._build(spec)
        # `to_empty` would do the same, but imports torch's symbolic shapes: 36 MiB.
        rooms = {name: torch.empty(item.shape) for name, item in self.state_dict().items()}
        self.load_state_dict(rooms, assign=True)
        self._initialize(generator)
        self.space = ActionSpace(
            spec.num_slots, spec.mixtures, num_added=len(spec.added_blueprints)
        )
        self._run_step: Callable[[Tensor, Tensor, LstmState], PolicyOutput] = self.step

    def _build(self, spec: PolicySpec) -> None:
        hidden, half = spec.hidden_dim, spec.hidden_dim // 2
        # Row 0 is the empty slot: indices are shifted by one, and any other one is an error.
        # from_pretrained skips the default initialisation, which on the meta device would import
        # torch's compiler.
        sizes = head_sizes(spec.num_slots, len(spec.added_blueprints))
        rows = torch.empty(sizes[Head.BLUEPRINT] + 1, BLUEPRINT_DIM)
        self.blueprints = nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
            rows, freeze=False
        )
        self.features = nn.Sequential(
            nn.Linear(spec.obs_dim + BLUEPRINT_DIM * spec.num_slots, spec.feature_dim),
            nn.LayerNorm(spec.feature_dim),
            nn.ReLU(),
        )
        is_equal = spec.feature_dim == hidden
        self.projection = nn.Identity() if is_equal else nn.Linear(spec.feature_dim, hidden)
        self.lstm = nn.LSTM(hidden, hidden, batch_first=True)
        self.lstm_norm = nn.LayerNorm(hidden)
        self.heads = nn.ModuleDict(
            {
                head: _mlp(hidden, *((hidden, half) if head is Head.BLUEPRINT else (half,)), size)
                for head, size in sizes.items()
            }
        )
        # V shares the trunk with the policy; Q and the contributions read it detached, so that what
        # is only shown or auxiliary cannot shape the policy's features.
        self.value = _critic(hidden, hidden)
        self.q = _critic(hidden + NUM_OPS, hidden)
        self.contribution = nn.Sequential(
            nn.Linear(hidden, half),
            nn.LayerNorm(half),
            nn.ReLU(),
            *_mlp(half, half // 2, spec.num_slots),
        )

    def _initialize(self, generator: torch.Generator) -> None:
        critics = (self.value, self.q, self.contribution)
        gains = {_last_layer(head): POLICY_GAIN for head in self.heads.values()}
        gains |= {_last_layer(critic): CRITIC_GAIN for critic in critics}
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            elif isinstance(module, nn.Linear):
                self._draw(module.weight, generator, gain=gains.get(module, HIDDEN_GAIN))
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.blueprints.weight, std=0.02, generator=generator)
        hidden = self.spec.hidden_dim
        for name, parameter in self.lstm.named_parameters():
            if name.startswith("weight"):
                self._draw(parameter, generator, gain=1.0)
            else:
                nn.init.zeros_(parameter)
                nn.init.ones_(parameter[hidden : 2 * hidden])  # forget gate open at first

    def _draw(self, weight: Tensor, generator: torch.Generator, *, gain: float) -> None:
        """Initialise a matrix: orthogonal, or uniform within 1/sqrt(inputs), times its gain."""
        if self.spec.is_orthogonal:
            nn.init.orthogonal_(weight, gain, generator=generator)
        else:
            bound = gain / math.sqrt(weight.shape[1])
            nn.init.uniform_(weight, -bound, bound, generator=generator)

    @cached_property
    def parameter_groups(self) -> tuple[tuple[nn.Parameter, ...], ...]:
        """Return the parameters of each head, of the V and Q critics, and all others."""
        parts = (*self.heads.values(), self.value, self.q)
        groups = [tuple(part.parameters()) for part in parts]
        grouped = {parameter for group in groups for parameter in group}
        return (*groups, tuple(item for item in self.parameters() if item not in grouped))

    def initial_state(self, num_envs: int) -> LstmState:
        """Return the zero state that an episode starts from."""
        zeros = self.lstm_norm.weight.new_zeros(num_envs, self.spec.hidden_dim)
        return LstmState(h=zeros, c=zeros.clone())

    def compile_step(self, mode: str) -> None:
        """Compile the step of `decide`, with static shapes, which never change within a run."""
        compiled = torch.compile(self.step, mode=None if mode == "default" else mode, dynamic=False)
        # These modes record CUDA graphs, whose outputs the next call overwrites.
        is_graph = mode in ("reduce-overhead", "max-autotune")
        self._run_step = partial(_cloned_step, compiled) if is_graph else compiled

    @torch.no_grad()
    def warm_up(self, num_envs: int) -> None:
        """Run one step and discard it: the first call of a compiled step may take minutes."""
        state = self.initial_state(num_envs)
        obs = state.h.new_zeros(num_envs, self.spec.obs_dim)
        empty = torch.full((num_envs, self.spec.num_slots), -1, device=obs.device)
        self._run_step(obs, empty, state)

    def step(self, obs: Tensor, blueprints: Tensor, state: LstmState) -> PolicyOutput:
        """Run one step: obs [N, D], blueprints int64 [N, S] with -1 for empty.

        Never compiled, as the number of rows may differ from call to call.
        """
        # A sequence of one step, so that rollout and update run the same LSTM call.
        encoded = self._encode(obs, blueprints).unsqueeze(1)
        recurrent, state = self._recur(encoded, state)
        return self._read(encoded.squeeze(1), recurrent.squeeze(1), state)

    def unroll(
        self, obs: Tensor, blueprints: Tensor, starts: Tensor, cuts: Sequence[int]
    ) -> PolicyOutput:
        """Run whole sequences from a zero LSTM state; it is reset where a segment starts.

        Args:
            obs: [N, T, D].
            blueprints: int64 [N, T, S].
            starts: bool [N, T], whether a segment of the rollout buffer starts with this step.
            cuts: the steps after step 0 at which `starts` is true in any row, in order. A Python
                sequence, so that splitting the unroll into LSTM calls needs no device sync.
        """
        encoded = self._encode(obs, blueprints)
        state = self.initial_state(obs.shape[0])
        stretches = []
        for begin, end in pairwise((0, *cuts, obs.shape[1])):
            # Rows that start no segment at this cut keep their state: the cuts are those of all
            # rows together.
            state = state.cleared(starts[:, begin])
            recurrent, state = self._recur(encoded[:, begin:end], state)
            stretches.append(recurrent)
        return self._read(encoded, torch.cat(stretches, dim=1), state)

    def q_values(self, hidden: Tensor, ops: Tensor) -> Tensor:
        """Return Q of these ops; for telemetry only, so the hidden state is detached."""
        one_hot = nn.functional.one_hot(ops, NUM_OPS).to(hidden.dtype)
        q: Tensor = self.q(torch.cat((hidden.detach(), one_hot), dim=-1))
        return q.squeeze(-1).float()

    def contributions(self, hidden: Tensor) -> Tensor:
        """Return each slot's predicted contribution, [..., S]; the hidden state is detached."""
        predicted: Tensor = self.contribution(hidden.detach())
        return predicted.float()

    @torch.no_grad()
    def decide(
        self,
        obs: Tensor,
        blueprints: Tensor,
        masks: ActionMasks,
        state: LstmState,
        *,
        uniforms: Tensor | None,
    ) -> Decision:
        """Choose actions for all envs.

        An env's decision does not depend on the other rows, to the last bit: their number sets the
        shapes of all operations, their contents enter none of its sums.

        Args:
            obs: [N, D].
            blueprints: int64 [N, S] with -1 for empty.
            masks: the legal choices.
            state: the LSTM state before the step.
            uniforms: [N, K] from `draw_uniforms`, to sample with; None takes the most probable
                actions.
        """
        output = self._run_step(obs, blueprints, state)
        # The op first, because the legal choices of the other heads depend on it.
        ops_alone = self.space.op_distribution(output.logits, masks)
        ops = ops_alone.choose(uniforms).squeeze(-1)
        chosen = self.space.distributions(output.logits, self.space.choice_masks(masks, ops))
        actions = chosen.choose(uniforms)
        # The masks are conditioned on this op, so it must be the op that is stored.
        actions[:, OP_ROW] = ops
        diagnostics = (
            chosen.confidence(actions),
            chosen.entropy(),
            chosen.masks.sum(-1),
            ops_alone.probs[:, 0, :NUM_OPS],
            output.values.unsqueeze(-1),
        )
        return Decision(
            actions=actions.T.contiguous(),
            log_probs=chosen.log_prob(actions).T.contiguous(),
            diagnostics=torch.cat(diagnostics, dim=-1).T.contiguous(),
            state=output.state,
        )

    def _encode(self, obs: Tensor, blueprints: Tensor) -> Tensor:
        embedded = self.blueprints(blueprints + 1).flatten(-2)
        encoded: Tensor = self.projection(self.features(torch.cat((obs, embedded), dim=-1)))
        return encoded

    def _recur(self, encoded: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
        # float32 even under autocast: rounding errors would accumulate over the episode.
        with torch.autocast(encoded.device.type, enabled=False):
            recurrent, (h, c) = self.lstm(
                encoded.float(), (state.h.unsqueeze(0), state.c.unsqueeze(0))
            )
        return recurrent, LstmState(h=h.squeeze(0), c=c.squeeze(0))

    def _read(self, encoded: Tensor, recurrent: Tensor, state: LstmState) -> PolicyOutput:
        # A residual path around the LSTM: what it has not learned to carry is still visible.
        hidden = self.lstm_norm(recurrent) + encoded
        outputs = torch.cat([head(hidden) for head in self.heads.values()], dim=-1)
        return PolicyOutput(
            logits=self.space.pad(outputs),
            values=self.value(hidden).squeeze(-1).float(),
            hidden=hidden,
            state=state,
        )


def _cloned_step(
    compiled: Callable[[Tensor, Tensor, LstmState], PolicyOutput],
    obs: Tensor,
    blueprints: Tensor,
    state: LstmState,
) -> PolicyOutput:
    """Run a compiled step and copy its outputs out of the memory of its CUDA graph."""
    output = compiled(obs, blueprints, state)
    return PolicyOutput(
        logits=output.logits.clone(),
        values=output.values.clone(),
        hidden=output.hidden.clone(),
        state=LstmState(h=output.state.h.clone(), c=output.state.c.clone()),
    )


def draw_uniforms(num_envs: int, generator: torch.Generator) -> Tensor:
    """Draw one number in [0, 1) per env and head; the count does not depend on the masks."""
    # On the generator's device, the CPU: the same numbers whatever the policy runs on.
    return torch.rand((num_envs, len(HEADS)), generator=generator, device=generator.device)


def _mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size_in, size_out in pairwise(sizes):
        layers += [nn.Linear(size_in, size_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _critic(size_in: int, hidden: int) -> nn.Sequential:
    half, quarter, eighth = hidden // 2, hidden // 4, hidden // 8
    return nn.Sequential(
        nn.Linear(size_in, half),
        nn.LayerNorm(half),
        nn.ReLU(),
        nn.Linear(half, quarter),
        nn.LayerNorm(quarter),
        nn.ReLU(),
        *_mlp(quarter, eighth, 1),
    )


def _last_layer(net: nn.Module) -> nn.Linear:
    assert isinstance(net, nn.Sequential)
    last = net[-1]
    assert isinstance(last, nn.Linear)
    return last
