"""Building the controller of a run: a policy, fresh or from a checkpoint, or a fixed rule."""

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
    if resumed is None:
        return _policy_around(_new_agent(job, device, parts), job, device, parts)
    try:
        return _restored_policy(resumed, job, device, parts)
    except UsageError:
        raise
    # Damaged or foreign contents may raise anything.
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise UnreadableFileError(
            resumed.path, f"does not contain the state of this run: {reason}"
        ) from None


def _policy_around(
    agent: PPOAgent, job: Job, device: torch.device, parts: RunParts
) -> PolicyController:
    config = job.training
    mode = compile_mode_for(config.compile_mode, device)
    if mode is not CompileMode.OFF:
        agent.network.compile_step(mode.value)
    return PolicyController(
        agent=agent,
        obs_normalizer=ObservationNormalizer(observation_size(len(config.slots)), device),
        reward_normalizer=parts.reward_normalizer(device),
        slot_ids=config.slots,
        seed=config.seed,
    )


def _restored_policy(
    resumed: LoadedRun, job: Job, device: torch.device, parts: RunParts
) -> PolicyController:
    agent = parts.agent.load(resumed.path, device=device, checkpoint=resumed.controller)
    policy = _policy_around(agent, job, device, parts)
    if resumed.controller is not None:
        policy.load_state_dict(resumed.controller)
    stored = resumed.job.training
    policy.agent.check_fits(n_envs=stored.n_envs, num_steps=stored.max_epochs)
    return policy


def _new_agent(job: Job, device: torch.device, parts: RunParts) -> PPOAgent:
    config = job.training
    source = stream_seed(config.seed, purpose=StreamPurpose.POLICY_INIT)
    anneal = calculate_entropy_anneal_steps(config.entropy_anneal_episodes, config.n_envs)
    return parts.agent.build(
        ppo_config_from(
            config, obs_dim=observation_size(len(config.slots)), entropy_anneal_updates=anneal
        ),
        generator=torch.Generator().manual_seed(source),
        device=device,
    )
