"""Building the controller of a run: a policy, fresh or from a checkpoint, or a fixed rule."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from esper.leyline.config import CompileMode, Job
from esper.leyline.errors import UnreadableFileError, UsageError
from esper.leyline.legality import ActionRules
from esper.leyline.streams import StreamPurpose, stream_seed
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.agent.ppo_config import ppo_config_from
from esper.simic.normalizers import ObservationNormalizer
from esper.simic.seed_management import calculate_entropy_anneal_steps
from esper.simic.training.assembly.machine import compile_mode_for
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.checkpoints.origins import check_same_shape
from esper.simic.training.policy_controller import PolicyController
from esper.tamiyo.controllers.baselines import (
    PeriodicController,
    RandomController,
    WaitController,
)
from esper.tamiyo.controllers.heuristic import HeuristicController
from esper.tamiyo.controllers.protocol import Controller
from esper.tamiyo.features import observation_size

__all__ = ["build_controller"]


def build_controller(
    job: Job,
    command: str,
    *,
    rules: ActionRules,
    device: torch.device,
    resumed: LoadedRun | None,
    begun_from: LoadedRun | None = None,
    parts: RunParts,
) -> Controller:
    """Build the controller that a command names.

    Args:
        job: the job.
        command: the controller's name.
        rules: what is legal.
        device: the policy's.
        resumed: the run whose controller is restored.
        begun_from: the run whose policy a new one begins with.
        parts: what the run is put together from.
    """
    match command:
        case "wait":
            return WaitController(rules)
        case "random":
            return RandomController(rules, job.training.seed)
        case "periodic":
            return PeriodicController(rules)
        case "heuristic":
            return HeuristicController(rules)
    builder = _PolicyBuilder(job, device, parts)
    if resumed is not None:
        with _foreign_contents(resumed):
            return builder.restored(resumed)
    policy = builder.new()
    if begun_from is not None:
        with _foreign_contents(begun_from):
            builder.begin_with(begun_from, policy)
    return policy


@contextmanager
def _foreign_contents(loaded: LoadedRun) -> Iterator[None]:
    """Name the checkpoint if its contents cannot be used; damaged ones may raise anything."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise UnreadableFileError(
            loaded.path, f"does not contain the state of this run: {reason}"
        ) from None


@dataclass(frozen=True, slots=True)
class _PolicyBuilder:
    """Builds the policy of a job on its device."""

    job: Job
    device: torch.device
    parts: RunParts

    def new(self) -> PolicyController:
        """Return a policy with initial weights."""
        config = self.job.training
        source = stream_seed(config.seed, purpose=StreamPurpose.POLICY_INIT)
        anneal = calculate_entropy_anneal_steps(config.entropy_anneal_episodes, config.n_envs)
        obs_dim = observation_size(len(config.slots))
        agent = self.parts.agent.build(
            ppo_config_from(config, obs_dim=obs_dim, entropy_anneal_updates=anneal),
            generator=torch.Generator().manual_seed(source),
            device=self.device,
        )
        return self._around(agent)

    def begin_with(self, origin: LoadedRun, policy: PolicyController) -> None:
        """Give a new policy the weights of another one, and the scales that belong to them.

        Without the scales of rewards and values, the critic's outputs would mean nothing.
        """
        stored = self.parts.agent.load(
            origin.path, device=self.device, checkpoint=origin.controller
        )
        check_same_shape(origin, stored.config.policy, policy.agent.config.policy)
        policy.agent.network.load_state_dict(stored.network.state_dict())
        policy.agent.value_normalizer.load_state_dict(stored.value_normalizer.state_dict())
        if origin.controller is not None:
            policy.load_state_dict(origin.controller)

    def restored(self, resumed: LoadedRun) -> PolicyController:
        """Return the policy of a checkpoint."""
        agent = self.parts.agent.load(
            resumed.path, device=self.device, checkpoint=resumed.controller
        )
        policy = self._around(agent)
        if resumed.controller is not None:
            policy.load_state_dict(resumed.controller)
        stored = resumed.job.training
        policy.agent.check_fits(n_envs=stored.n_envs, num_steps=stored.max_epochs)
        return policy

    def _around(self, agent: PPOAgent) -> PolicyController:
        config = self.job.training
        mode = compile_mode_for(config.compile_mode, self.device)
        if mode is not CompileMode.OFF:
            agent.network.compile_step(mode.value)
        obs_dim = observation_size(len(config.slots))
        return PolicyController(
            agent=agent,
            obs_normalizer=ObservationNormalizer(obs_dim, self.device),
            reward_normalizer=self.parts.reward_normalizer(self.device),
            slot_ids=config.slots,
            seed=config.seed,
        )
