"""The learning controller: a PPO agent that acts, stores its rollout and updates on it."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from esper.leyline.actions import HEAD_SPECS, HEADS, ActionSpec, Head, Op
from esper.leyline.errors import ContractError
from esper.leyline.messages import DecisionDetail, LstmRow, PenaltyOutcome
from esper.leyline.payloads import HeadChoice
from esper.leyline.streams import StreamPurpose, stream_seed
from esper.simic.agent.ppo_agent import PPOAgent, PreparedRound
from esper.simic.agent.ppo_metrics import PPOMetrics
from esper.simic.agent.rollout_buffer import StepRows
from esper.simic.normalizers import ObservationNormalizer, RewardNormalizer
from esper.simic.seed_management import aggregate_ppo_metrics, run_ppo_updates
from esper.simic.training.action_execution import parse_sampled_action
from esper.tamiyo.controllers.protocol import Choice, Situation
from esper.tamiyo.features import ObservationBatch
from esper.tamiyo.mask_types import ActionMasks
from esper.tamiyo.network import Decision, LstmState, draw_uniforms

__all__ = ["PolicyController", "StepFacts", "masks_on"]

# Attributes of enum members are slow, and every decision names all of them.
_OP_NAMES: Final = tuple(op.name for op in Op)
_HEAD_NAMES: Final = tuple(head.value for head in HEADS)
_CHOICE_NAMES: Final = tuple(
    None if choices is None else tuple(choice.name for choice in choices)
    for choices in (HEAD_SPECS[head].choices for head in HEADS)
)
"""Of each head; None for slots and blueprints, which an action names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFacts:
    """The results of a step as stored in the rollout, one entry per env."""

    effective_ops: Sequence[Op]
    is_forced: Sequence[bool]
    rewards: Sequence[float]
    contributions: Tensor  # [N, S]
    is_measured: Tensor  # bool [N, S]
    env_ids: Sequence[int]
    """The envs that completed the step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """The map x -> offset + slope * x."""

    offset: float
    slope: float

    def at(self, x: float) -> float:
        return self.offset + self.slope * x


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pending:
    """The decisions of a step, whose outcomes are not yet known."""

    raw_obs: Tensor
    obs: Tensor
    blueprints: Tensor
    masks: ActionMasks
    decision: Decision
    is_decided: Tensor  # bool [N], on the CPU
    """Which rows mean anything."""

    def take(self, rows: Tensor, later: "_Pending") -> None:
        """Copy the rows of this bool mask from decisions that were made later in the step."""
        for ours, theirs in zip(self._by_env(), later._by_env(), strict=True):
            ours[rows] = theirs[rows]
        self.is_decided[rows] = True

    def _by_env(self) -> Iterator[Tensor]:
        """Yield all tensors with a row per env."""
        yield from (self.raw_obs, self.obs, self.blueprints)
        yield from (getattr(self.masks, item.name) for item in fields(self.masks))
        decision = self.decision
        yield from (decision.actions.T, decision.log_probs.T, decision.diagnostics.T)


@dataclass(eq=False, slots=True)
class PolicyController:
    """A recurrent policy for all envs; owns their LSTM states."""

    agent: PPOAgent
    obs_normalizer: ObservationNormalizer
    reward_normalizer: RewardNormalizer
    slot_ids: tuple[str, ...]
    seed: int
    is_greedy: bool = False
    """Takes the most likely actions instead of sampling."""
    name: str = "ppo"
    lstm_state: LstmState = field(init=False)
    _actions: torch.Generator = field(init=False)
    _value_unit: _Line = field(init=False)
    """Converts outputs of the value head to raw returns; constant within a round."""
    _round_index: int = 0
    _step: int | None = None
    """Of the last decision; None before the round's first."""
    _uniforms: Tensor | None = None
    """The random numbers of the step's decisions, also of those still to come; None if greedy."""
    _raw_obs: list[Tensor] = field(default_factory=list)
    last_observation: Tensor | None = None
    """The last normalised observations of the envs that have not failed."""
    _pending: _Pending | None = None

    def __post_init__(self) -> None:
        """Initialize the state of the first round."""
        self.begin_round(0)

    def begin_round(self, round_index: int) -> None:
        """Reset the LSTM states and pending data, and seed the round's action stream."""
        self._round_index = round_index
        self.lstm_state = self.agent.initial_state()
        # Per round, so that a resumed run samples as one that never stopped: no generator is saved.
        source = stream_seed(self.seed, purpose=StreamPurpose.ACTION, round=round_index)
        self._actions = torch.Generator().manual_seed(source)
        self._raw_obs.clear()
        self._step = self._pending = None
        # Both normalisers are frozen until the round's updates, so one transfer serves the whole
        # round.
        self._value_unit = materialize_value_unit(self.agent, self.reward_normalizer)

    def forget(self, env_ids: Iterable[int]) -> None:
        """Reset the LSTM state of some envs."""
        rows = torch.zeros(len(self.lstm_state.h), dtype=torch.bool, device=self.agent.device)
        rows[list(env_ids)] = True
        self.lstm_state = self.lstm_state.cleared(rows)

    def choose(self, situation: Situation) -> Choice:
        """Decide for the envs of the situation in one forward pass, with two transfers to the host.

        May be called several times in a step, each time for other envs.
        """
        if situation.step != self._step:
            self._begin_step(situation.step, len(situation.envs))
        is_live = torch.tensor([env is not None for env in situation.envs])
        raw = situation.observations
        obs, blueprints = self._seen(raw)
        masks = masks_on(situation.masks, self.agent.device)
        decision = self.agent.decide(
            obs, blueprints, masks, self.lstm_state, uniforms=self._uniforms
        )
        self.lstm_state = self.lstm_state.replaced(is_live.to(obs.device), decision.state)
        pending = _Pending(
            raw_obs=raw.observations,
            obs=obs,
            blueprints=blueprints,
            masks=masks,
            decision=decision,
            is_decided=is_live,
        )
        if self._pending is None:
            self._pending = pending
        else:
            self._pending.take(is_live, pending)
        indices = materialize_actions(decision)
        added = self.agent.config.policy.added_blueprints
        actions = tuple(
            None if env is None else parse_sampled_action(row, self.slot_ids, added)
            for env, row in zip(situation.envs, indices, strict=True)
        )
        return Choice(
            actions=actions,
            details=_details(indices, decision, actions, situation, self._value_unit),
        )

    def _begin_step(self, step: int, num_envs: int) -> None:
        self._step, self._pending = step, None
        if not self.is_greedy:
            drawn = draw_uniforms(num_envs, self._actions)
            self._uniforms = drawn.to(self.agent.device, non_blocking=True)

    def remember(self, step: int, facts: StepFacts) -> None:
        """Add a step to the rollout buffer."""
        pending = self._pending
        assert pending is not None, "no decision is pending"
        rows = StepRows(
            obs=pending.obs,
            blueprints=pending.blueprints,
            masks=pending.masks,
            decision=pending.decision,
            effective_ops=[int(op) for op in facts.effective_ops],
            is_forced=facts.is_forced,
            rewards=facts.rewards,
            contributions=facts.contributions.to(self.agent.device),
            is_measured=facts.is_measured.to(self.agent.device),
        )
        self.agent.buffer.record(step, rows, facts.env_ids)
        # The row of a quarantined env is a placeholder; it must not enter any statistics.
        self._raw_obs.append(pending.raw_obs[pending.is_decided])
        self.last_observation = pending.obs[pending.is_decided]
        self._pending = None

    def punish(self, env_id: int, penalty: float) -> PenaltyOutcome:
        """End an env's segment with the penalty of a rollback."""
        return self.agent.buffer.end_segment_with_penalty(env_id, penalty)

    def sync_memory(self, rows: Sequence[LstmRow]) -> None:
        """Zero the LSTM state of reset envs; that of the others must match their open segment."""
        for row in rows:
            num_open = self.agent.buffer.num_open_steps(row.index)
            # Updates unroll the LSTM over segments; if the rollout had carried its state any
            # further or less far, ratios would be wrong without any sign of it.
            if row.num_steps != num_open:
                raise ContractError(
                    f"env {row.index}: the policy's LSTM state spans {row.num_steps} steps, "
                    f"the open segment {num_open}"
                )
        emptied = [row.index for row in rows if row.num_steps == 0]
        if emptied:
            self.forget(emptied)

    def give_up(self, env_id: int) -> None:
        """Discard the open segment of a failed env."""
        self.agent.buffer.discard_segment(env_id)

    def terminate(self, env_ids: Iterable[int]) -> None:
        """End the episodes of these envs: nothing follows their last step."""
        for env_id in env_ids:
            self.agent.buffer.terminate(env_id)

    def bootstrap(self, targets: Sequence[tuple[int, int]], after: ObservationBatch) -> None:
        """Truncate the segments at these (env, step) pairs and bootstrap their values.

        Args:
            targets: pairs of env and step.
            after: the next observation of each of these envs, one row per target.
        """
        buffer = self.agent.buffer
        for env_id, step in targets:
            last = buffer.truncate(env_id)
            if last != step:
                raise ContractError(
                    f"env {env_id}: truncated at step {step}, the rollout's segment ends at {last}"
                )
        rows = torch.tensor([env_id for env_id, _ in targets], device=self.agent.device)
        obs, blueprints = self._seen(after)
        # With the LSTM state after the last step, which has seen everything but the state that is
        # valued.
        values = self.agent.bootstrap_values(obs, blueprints, self.lstm_state.select(rows))
        buffer.set_bootstrap_values(targets, values)

    def learn(self, num_updates: int, check_cancelled: Callable[[], None]) -> PPOMetrics:
        """Run up to `num_updates` PPO updates on the round; normalisers are updated once."""
        if self._raw_obs:
            # Once per round, after the rollout: during it all observations are normalised alike,
            # and the update sees them as they were stored.
            self.obs_normalizer.update(torch.cat(self._raw_obs).to(self.agent.device))
        prepared = self.agent.prepare_round(self.reward_normalizer)
        update = partial(self._update, prepared, check_cancelled)
        metrics = aggregate_ppo_metrics(run_ppo_updates(update, num_updates))
        self.agent.finish_round(metrics)
        return metrics

    def _update(
        self, prepared: PreparedRound, check_cancelled: Callable[[], None], index: int
    ) -> PPOMetrics:
        # The first update uses the round's stream, so it does not depend on `num_updates`.
        source = stream_seed(
            self.seed, purpose=StreamPurpose.UPDATE, round=self._round_index, step=index or None
        )
        return self.agent.update(
            prepared,
            generator=torch.Generator().manual_seed(source),
            rollout_state=self.lstm_state,
            check_cancelled=check_cancelled,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the agent and its normalisers."""
        return {
            "agent": self.agent.state_dict(),
            "obs_normalizer": self.obs_normalizer.state_dict(),
            "reward_normalizer": self.reward_normalizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the normalisers from a checkpoint; the agent is loaded separately."""
        self.obs_normalizer.load_state_dict(state["obs_normalizer"])
        self.reward_normalizer.load_state_dict(state["reward_normalizer"])

    def _seen(self, observed: ObservationBatch) -> tuple[Tensor, Tensor]:
        device = self.agent.device
        obs = self.obs_normalizer.normalize(observed.observations.to(device))
        return obs, observed.blueprint_indices.to(device)


def materialize_actions(decision: Decision) -> list[list[int]]:
    """Transfer the stacked actions to the CPU, one list of head indices per env."""
    rows: list[list[int]] = decision.actions.T.tolist()
    return rows


def materialize_value_unit(agent: PPOAgent, rewards: RewardNormalizer) -> _Line:
    """Return what a value of 0 and of 1 are worth in raw rewards, in one transfer."""
    values = agent.value_normalizer
    offset, slope = (torch.stack((values.mean, values.scale)) * rewards.scale).tolist()
    return _Line(offset=offset, slope=slope)


def materialize_diagnostics(decision: Decision) -> list[list[float]]:
    """Transfer the stacked diagnostics to the CPU, one list per env."""
    rows: list[list[float]] = decision.diagnostics.T.tolist()
    return rows


def _details(
    indices: list[list[int]],
    decision: Decision,
    actions: Sequence[ActionSpec | None],
    situation: Situation,
    value_unit: _Line,
) -> tuple[DecisionDetail | None, ...]:
    num_heads, num_ops = len(_HEAD_NAMES), len(_OP_NAMES)
    details: list[DecisionDetail | None] = [None] * len(actions)
    raw = situation.observations.observations
    for env_id, (action, chosen, row) in enumerate(
        zip(actions, indices, materialize_diagnostics(decision), strict=True)
    ):
        if action is None:
            continue
        confidences, entropies = row[:num_heads], row[num_heads : 2 * num_heads]
        num_valid = [int(number) for number in row[2 * num_heads : 3 * num_heads]]
        probabilities = row[3 * num_heads : 3 * num_heads + num_ops]
        heads = {
            name: HeadChoice(
                choice=_named_by(action, name) if names is None else names[chosen[place]],
                confidence=confidences[place],
                entropy=entropies[place],
                num_valid=num_valid[place],
            )
            for place, (name, names) in enumerate(zip(_HEAD_NAMES, _CHOICE_NAMES, strict=True))
        }
        is_waiting = action.op is Op.WAIT
        details[env_id] = DecisionDetail(
            value_estimate=value_unit.at(row[-1]),
            op_probabilities=dict(zip(_OP_NAMES, probabilities, strict=True)),
            heads=heads,
            observation_hash=None if is_waiting else _materialize_hash(raw[env_id]),
        )
    return tuple(details)


def _named_by(action: ActionSpec, head: str) -> str:
    """Return the choice of a head whose values are those of the run."""
    return action.slot_id if head == Head.SLOT else action.blueprint.upper()


def _materialize_hash(observation: Tensor) -> str:
    # Observations are built on the CPU, so this needs no device transfer.
    return hashlib.sha256(observation.numpy().tobytes()).hexdigest()[:16]


def masks_on(masks: ActionMasks, device: torch.device) -> ActionMasks:
    """Return masks on a device."""
    return ActionMasks(
        **{item.name: getattr(masks, item.name).to(device) for item in fields(masks)}
    )
