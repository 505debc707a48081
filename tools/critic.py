"""Compares what a policy's critic predicts with what held-out envs return.

V of a step is the critic's value of the state before the step's decision, in raw reward units; G
is what the episode really paid from that step on: r + gamma * r' + ..., shaping included, as the
critic learns it. The error is the mean of |V - G| over all steps of all episodes, divided by the
return: the mean of |G| of the first step. It is also printed relative to the mean of |G| over all
steps, which is small where shaping has paid early what it takes back at the end. Episodes with a
rollback or a failure are left out and counted.

The critic values the policy that it was trained with, which samples its actions; with --greedy the
policy is played as claims are made, and earns more than it was trained to expect.

Usage: python -m tools.critic [CHECKPOINT] [--seeds 1000-1003] [--envs 8] [--greedy]
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Final

import msgspec

from esper.scripts.train_compare import seeds_from
from esper.simic.training.assembly.machine import one_thread_per_worker
from esper.simic.training.checkpoints.builtin import checkpoint_at
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.checkpoints.resuming import load_run
from esper.simic.training.policy_controller import PolicyController
from esper.simic.training.step import StepResult
from esper.tolaria.event_loop import run_event_loop
from tools.probes.learning import play_round, setup_of

__all__ = ["MAX_ERROR", "Predicted", "discounted", "main", "predictions"]

MAX_ERROR: Final = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """The values and returns of some episodes, step by step."""

    values: tuple[tuple[float, ...], ...]
    returns: tuple[tuple[float, ...], ...]
    num_left_out: int

    @property
    def error(self) -> float:
        """Return the mean absolute error over all steps, relative to the returns of episodes."""
        return self._mean_error() / fmean(abs(paid[0]) for paid in self.returns)

    @property
    def error_by_step(self) -> float:
        """Return the mean absolute error, relative to what is paid from each step on."""
        return self._mean_error() / fmean(abs(rest) for paid in self.returns for rest in paid)

    def _mean_error(self) -> float:
        return fmean(
            abs(value - rest)
            for values, paid in zip(self.values, self.returns, strict=True)
            for value, rest in zip(values, paid, strict=True)
        )

    @property
    def first(self) -> tuple[float, float]:
        """Return the mean value and the mean return at the first step."""
        return fmean(values[0] for values in self.values), fmean(paid[0] for paid in self.returns)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the error and return 0 if it is small enough."""
    parser = argparse.ArgumentParser(prog="python -m tools.critic", description=__doc__)
    parser.add_argument("checkpoint", nargs="?", default="builtin:digits_growth")
    parser.add_argument("--seeds", default="1000-1003")
    parser.add_argument("--envs", type=int, default=8, help="of each seed (default: %(default)s)")
    parser.add_argument("--greedy", action="store_true")
    arguments = parser.parse_args(argv)
    policy = load_run(checkpoint_at(arguments.checkpoint))
    found = predictions(
        policy, seeds_from([arguments.seeds]), num_envs=arguments.envs, is_greedy=arguments.greedy
    )
    value, paid = found.first
    print(
        f"{arguments.checkpoint}, {'greedy' if arguments.greedy else 'sampled'} actions, "
        f"seeds {arguments.seeds}: {len(found.values)} episodes, {found.num_left_out} left out; "
        f"mean |V - G| is {found.error:.1%} of the return, {found.error_by_step:.1%} of mean |G|; "
        f"at the first step V {value:.2f}, G {paid:.2f}"
    )
    return int(found.error > MAX_ERROR)


def predictions(
    policy: LoadedRun, seeds: Sequence[int], *, num_envs: int, is_greedy: bool
) -> Predicted:
    """Play a policy on fresh envs of its own job; return what was predicted and what was paid."""
    values: list[tuple[float, ...]] = []
    returns: list[tuple[float, ...]] = []
    for seed in seeds:
        training = msgspec.structs.replace(policy.job.training, seed=seed, n_envs=num_envs)
        job = msgspec.structs.replace(policy.job, training=training)
        setup = setup_of(job, command="ppo", loaded=policy)
        assert isinstance(setup.controller, PolicyController)
        setup.controller.is_greedy = is_greedy
        setup.controller.agent.fit_rollout(num_envs=num_envs, num_steps=training.max_epochs)
        with one_thread_per_worker():
            steps = run_event_loop(partial(play_round, setup), setup.worker.stop)
        for env_id in range(num_envs):
            episode = _episode(steps, env_id)
            if episode is not None:
                values.append(tuple(value for value, _ in episode))
                returns.append(discounted([reward for _, reward in episode], training.gamma))
    return Predicted(
        values=tuple(values),
        returns=tuple(returns),
        num_left_out=len(seeds) * num_envs - len(values),
    )


def discounted(rewards: Sequence[float], gamma: float) -> tuple[float, ...]:
    """Return what is paid from each step on."""
    paid = [0.0]
    for reward in reversed(rewards):
        paid.append(reward + gamma * paid[-1])
    return tuple(reversed(paid[1:]))


def _episode(steps: Sequence[StepResult], env_id: int) -> list[tuple[float, float]] | None:
    """Return value and reward of each step, or None if one of them is missing."""
    found = []
    for step in steps:
        detail, reward = step.decision.details[env_id], step.record.rewards[env_id]
        if detail is None or detail.value_estimate is None or reward is None:
            return None
        found.append((detail.value_estimate, reward))
    return found


if __name__ == "__main__":
    raise SystemExit(main())
