"""Building the controller of a run: a policy, fresh or from a checkpoint, or a fixed rule."""

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
    parts: RunParts,
) -> Controller:
    """Build the controller that a command names; a resumed run's is restored."""
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
    if resumed is None:
        return builder.new()
    try:
        return builder.restored(resumed)
    except UsageError:
        raise
    # Damaged or foreign contents may raise anything.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise UnreadableFileError(
            resumed.path, f"does not contain the state of this run: {reason}"
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
