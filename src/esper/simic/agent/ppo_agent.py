"""The PPO agent: its interface to the trainer and its checkpoint state."""

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import Tensor
from torch.optim import AdamW

from esper.kasmina.plain_optim import PlainAdamW
from esper.leyline.actions import Op
from esper.leyline.errors import UnreadableFileError
from esper.leyline.payloads import LstmHealth
from esper.simic.agent.gae import Advantages, compute_gae, discounted_returns
from esper.simic.agent.ppo_config import PPOConfig, coefficients_at
from esper.simic.agent.ppo_metrics import (
    LossMetrics,
    PPOMetrics,
    ReturnMetrics,
    materialize_figures,
    materialize_heads,
    materialize_lstm_health,
    reduced,
    reduced_heads,
)
from esper.simic.agent.ppo_update import (
    UpdateBatch,
    UpdateTrace,
    build_update_batch,
    run_update,
)
from esper.simic.agent.return_metrics import pack_return_metrics
from esper.simic.agent.rollout_buffer import RolloutBatch, RolloutBuffer
from esper.simic.normalizers import RewardNormalizer, ValueNormalizer
from esper.tamiyo.mask_types import ActionMasks
from esper.tamiyo.network import Decision, LstmState, PolicyNetwork

__all__ = ["AGENT_STATE_VERSION", "PPOAgent", "PreparedRound"]

AGENT_STATE_VERSION: Final = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class _BeforeUpdate:
    """Metrics from before the first optimizer step; empty if the round had no rows."""

    returns: ReturnMetrics | None = None
    op_q_values: tuple[float, ...] = ()
    num_usable_steps: int = 0
    has_low_return_variance: bool = False
    is_advantage_std_floored: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedRound:
    """A finished round, prepared for its updates and constant over all of them."""

    batch: UpdateBatch | None = None
    """None if the round had no rows."""
    before: _BeforeUpdate = field(default_factory=_BeforeUpdate)


@dataclass(eq=False, slots=True)
class PPOAgent:
    """A policy network with its optimizer, rollout buffer and schedule position."""

    config: PPOConfig
    network: PolicyNetwork
    device: torch.device
    num_updates: int = 0
    """Rounds with at least one optimizer step; the coefficient schedules depend on it."""
    optimizer: AdamW = field(init=False)
    buffer: RolloutBuffer = field(init=False)
    value_normalizer: ValueNormalizer = field(init=False)

    def __post_init__(self) -> None:
        self.network.to(self.device)
        self.optimizer = _build_optimizer(self.network, self.config)
        self.buffer = _build_buffer(self.config, self.device)
        self.value_normalizer = ValueNormalizer(self.device)
        self._scale_floors()

    @classmethod
    def build(
        cls,
        config: PPOConfig,
        *,
        generator: torch.Generator,
        device: torch.device | str = "cpu",
    ) -> "PPOAgent":
        """Return a new agent with initial weights drawn from this generator."""
        network = PolicyNetwork(config.policy, generator)
        return cls(config=config, network=network, device=torch.device(device))

    def fit_rollout(self, *, num_envs: int, num_steps: int) -> None:
        """Resize the rollout buffer for another number of envs or steps; the weights stay."""
        self.config = msgspec.structs.replace(self.config, num_envs=num_envs, num_steps=num_steps)
        self.buffer = _build_buffer(self.config, self.device)

    def initial_state(self) -> LstmState:
        """Return the initial LSTM state of all envs."""
        return self.network.initial_state(self.config.num_envs)

    def decide(
        self,
        obs: Tensor,
        blueprints: Tensor,
        masks: ActionMasks,
        state: LstmState,
        *,
        uniforms: Tensor | None,
    ) -> Decision:
        """Choose actions for all envs; without random numbers, take the most likely ones."""
        return self.network.decide(obs, blueprints, masks, state, uniforms=uniforms)

    @torch.no_grad()
    def bootstrap_values(self, obs: Tensor, blueprints: Tensor, state: LstmState) -> Tensor:
        """Return V of the states after truncated steps, given the LSTM state after these steps."""
        return self.network.step(obs, blueprints, state).values

    def prepare_round(self, reward_normalizer: RewardNormalizer) -> PreparedRound:
        """Return the finished round in the buffer, ready for its updates.

        Advantages, value targets and both scales are computed here once for all updates of the
        round. The reward normaliser scales the raw rewards and is updated with them.
        """
        batch = self.buffer.batch()
        if self.buffer.num_rows == 0:
            return PreparedRound()
        advantages = self.estimate_advantages(reward_normalizer)
        # Before the normaliser moves: the metrics describe the values that the rollout acted on.
        before = self._measure(batch, advantages)
        # Denormalised with the statistics of the rollout and normalised with the new ones, so that
        # old values and targets are on one scale.
        old_values = self.value_normalizer.denormalize(batch.values)
        self.value_normalizer.update(advantages.returns, batch.valid)
        prepared = build_update_batch(
            self.network,
            batch,
            cuts=self.buffer.cuts(),
            advantages=advantages,
            old_values=self.value_normalizer.normalize(old_values),
            value_targets=self.value_normalizer.normalize(advantages.returns),
            config=self.config,
        )
        return PreparedRound(batch=prepared, before=before)

    def update(
        self,
        prepared: PreparedRound,
        *,
        generator: torch.Generator,
        rollout_state: LstmState | None = None,
        check_cancelled: Callable[[], None] | None = None,
    ) -> PPOMetrics:
        """Run one PPO update on a prepared round; ratios are relative to the rollout's policy.

        Args:
            prepared: the round.
            generator: CPU generator for the order of env rows.
            rollout_state: the LSTM state at the end of the rollout, for the metrics.
            check_cancelled: called between minibatches; may raise to end the update.
        """
        trace = UpdateTrace()
        if prepared.batch is not None:
            trace = run_update(
                self.network,
                self.optimizer,
                prepared.batch,
                config=self.config,
                weights=coefficients_at(self.config, self.num_updates),
                generator=generator,
                check_cancelled=check_cancelled,
            )
        return self._metrics(prepared.before, trace, rollout_state)

    def finish_round(self, metrics: PPOMetrics) -> None:
        """Advance the schedules if the round took an optimizer step, and reset the buffer."""
        self.num_updates += metrics.has_learned
        self._scale_floors()
        self.buffer.reset()

    def _scale_floors(self) -> None:
        """Set the mixtures of the next rollout; they are constant until its last update."""
        scale = coefficients_at(self.config, self.num_updates).floor_scale
        self.network.space.scale_mixtures(scale)

    def estimate_advantages(self, reward_normalizer: RewardNormalizer) -> Advantages:
        """Return the advantages of the finished round; updates the reward normaliser once."""
        batch = self.buffer.batch()
        raw_returns = discounted_returns(
            batch.rewards.double(), ends=batch.ends, valid=batch.valid, gamma=self.config.gamma
        )
        # Rewards that a rollback has zeroed were never paid; they must not shrink the scale of the
        # rest.
        is_paid = batch.valid & ~batch.is_forfeited
        rewards = reward_normalizer.normalize_round(batch.rewards, raw_returns, is_paid)
        # No return can be larger than the largest reward paid at every step of the horizon.
        limit = self.config.horizon * rewards.abs().amax()
        following = self._returns_of(batch.bootstrap_values, limit)
        return compute_gae(
            rewards=rewards,
            values=self._returns_of(batch.values, limit),
            bootstrap_values=torch.where(batch.is_truncated, following, 0.0),
            ends=batch.ends,
            valid=batch.valid,
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
        )

    def _returns_of(self, values: Tensor, limit: Tensor) -> Tensor:
        """Denormalise value head outputs, clamped to the largest possible return.

        In short truncated episodes most of a return is its bootstrap value, whose scale in turn
        comes from the spread of such returns: without a bound this feedback diverges.
        """
        return self.value_normalizer.denormalize(values).clamp(-limit, limit)

    def state_dict(self) -> dict[str, Any]:
        """Return the agent's checkpoint state; loadable with weights_only.

        The buffer is not included: checkpoints are taken between rounds, when it is empty.
        """
        return {
            "version": AGENT_STATE_VERSION,
            "config": msgspec.to_builtins(self.config),
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "value_normalizer": self.value_normalizer.state_dict(),
            "num_updates": self.num_updates,
        }

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], *, device: torch.device | str = "cpu"
    ) -> "PPOAgent":
        """Return the agent restored from a `state_dict`."""
        if state["version"] != AGENT_STATE_VERSION:
            raise UnreadableFileError(
                "agent state",
                f"has version {state['version']}, this Esper reads {AGENT_STATE_VERSION}; "
                "train the policy again, or use the Esper that saved it",
            )
        config = msgspec.convert(state["config"], PPOConfig)
        # The initial weights are overwritten below, so the seed of this generator does not matter.
        agent = cls.build(config, generator=torch.Generator(), device=device)
        agent.network.load_state_dict(state["network"])
        # After the network has moved to its device: the optimizer's state follows the parameters'
        # device.
        agent.optimizer.load_state_dict(state["optimizer"])
        agent.value_normalizer.load_state_dict(state["value_normalizer"])
        agent.num_updates = state["num_updates"]
        agent._scale_floors()
        return agent

    def save(self, path: Path | str) -> None:
        """Save the agent, without a run, to a file that `load` reads."""
        torch.save({"agent": self.state_dict()}, path)

    def check_fits(self, *, n_envs: int, num_steps: int) -> None:
        """Raise if the restored state has another number of envs or steps, or invalid shapes."""
        found = (self.config.num_envs, self.config.num_steps)
        if found != (n_envs, num_steps):
            raise ValueError(f"policy of {found} envs and steps, not {(n_envs, num_steps)}")
        for parameter, state in self.optimizer.state.items():
            for name, value in state.items():
                if isinstance(value, Tensor) and value.shape not in (parameter.shape, ()):
                    raise ValueError(f"optimizer's {name} of shape {tuple(value.shape)}")

    @classmethod
    def load(
        cls,
        path: Path | str,
        *,
        device: torch.device | str = "cpu",
        checkpoint: Mapping[str, Any] | None = None,
    ) -> "PPOAgent":
        """Load the agent from a checkpoint of the agent or of a whole run.

        Args:
            path: of the checkpoint.
            device: where the agent computes.
            checkpoint: the contents of the file, if they were read already.
        """
        try:
            if checkpoint is None:
                checkpoint = torch.load(path, map_location="cpu", weights_only=True)
            state = checkpoint["agent"]
        except FileNotFoundError:
            raise UnreadableFileError(path, "no such checkpoint") from None
        # What torch and zipfile raise for files that are cut off, foreign or damaged.
        except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, TypeError) as error:
            raise UnreadableFileError(path, f"not a checkpoint of Esper: {error!r}") from None
        return cls.from_state(state, device=device)

    @torch.no_grad()
    def _measure(self, batch: RolloutBatch, advantages: Advantages) -> _BeforeUpdate:
        output = self.network.step(batch.obs[:, 0], batch.blueprints[:, 0], self.initial_state())
        ops = torch.arange(len(Op), device=self.device).expand(self.config.num_envs, -1)
        hidden = output.hidden.unsqueeze(1).expand(-1, len(Op), -1)
        q_values = self.value_normalizer.denormalize(self.network.q_values(hidden, ops).mean(0))
        values = self.value_normalizer.denormalize(batch.values)
        packed = pack_return_metrics(batch, advantages, values, q_values, self.config)
        (returns,) = materialize_figures(ReturnMetrics, [packed])
        return _BeforeUpdate(
            returns=returns,
            op_q_values=tuple(q_values.tolist()),
            num_usable_steps=int((batch.valid & ~batch.is_forced).sum()),
            has_low_return_variance=_is_below(
                returns.return_variance, self.config.return_variance_floor
            ),
            is_advantage_std_floored=_is_below(
                returns.advantage_std, self.config.advantage_std_floor
            ),
        )

    def _metrics(
        self, before: _BeforeUpdate, trace: UpdateTrace, rollout_state: LstmState | None
    ) -> PPOMetrics:
        weights = coefficients_at(self.config, self.num_updates)
        return PPOMetrics(
            losses=reduced(materialize_figures(LossMetrics, trace.losses))
            if trace.losses
            else None,
            heads=reduced_heads(materialize_heads(trace.heads)) if trace.heads else {},
            returns=before.returns,
            op_q_values=before.op_q_values,
            lstm_update=_health(trace.state),
            lstm_rollout=_health(rollout_state),
            learning_rate=weights.lr,
            entropy_coef=weights.entropy,
            value_coef=weights.value,
            has_low_return_variance=before.has_low_return_variance,
            is_advantage_std_floored=before.is_advantage_std_floored,
            num_updates=1,
            num_optimizer_steps=trace.num_optimizer_steps,
            num_finiteness_skips=trace.num_finiteness_skips,
            nan_gradient_count=trace.nan_gradient_count,
            inf_gradient_count=trace.inf_gradient_count,
            usable_steps=before.num_usable_steps,
            rollback_count=self.buffer.rollback_count,
            rollback_steps_forfeited=self.buffer.rollback_steps_forfeited,
            kl_stop_epoch=trace.kl_stop_epoch,
            kl_divergence=trace.kl_divergence,
            nonfinite=tuple(dict.fromkeys(trace.nonfinite)),
        )


def _build_buffer(config: PPOConfig, device: torch.device) -> RolloutBuffer:
    return RolloutBuffer(
        num_envs=config.num_envs,
        num_steps=config.num_steps,
        obs_dim=config.policy.obs_dim,
        num_slots=config.policy.num_slots,
        num_added=len(config.policy.added_blueprints),
        device=device,
    )


def _build_optimizer(network: PolicyNetwork, config: PPOConfig) -> AdamW:
    """Return AdamW over all parameters; weight decay, if any, applies to the critics only."""
    # Decay of the policy's heads would pull them towards uniform choices, beside the entropy bonus.
    critics = [*network.value.parameters(), *network.q.parameters()]
    known = set(critics)
    others = [parameter for parameter in network.parameters() if parameter not in known]
    groups = [
        {"params": others, "weight_decay": 0.0},
        {"params": critics, "weight_decay": config.weight_decay},
    ]
    return PlainAdamW(groups, lr=config.lr, eps=1e-5, fused=True)


def _health(state: LstmState | None) -> LstmHealth | None:
    return None if state is None else materialize_lstm_health(state)


def _is_below(figure: float | None, floor: float) -> bool:
    return figure is not None and figure < floor
