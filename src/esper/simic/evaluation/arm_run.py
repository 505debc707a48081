"""Runs one arm of a comparison on the envs of one seed, and measures it step by step."""

import time
from functools import partial
from typing import Final

import msgspec

from esper.leyline.comparison import ArmRun
from esper.leyline.config import Job
from esper.leyline.errors import UsageError
from esper.runtime.datasets import TensorDataset
from esper.simic.evaluation.arm_controllers import (
    with_controller_of,
    with_matched_counts,
    with_schedules,
)
from esper.simic.evaluation.arm_measures import measure_envs
from esper.simic.evaluation.arms import Arm, ArmKind, check_topologies
from esper.simic.evaluation.evaluation_round import (
    ROUND_INDEX,
    evaluate_round,
)
from esper.simic.training.assembly.gpu_math import deterministic_gpu_math
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import RunSetup, prepare_run
from esper.simic.training.assembly.worker_assembly import Topologies, env_context
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.env_factory import build_model
from esper.simic.training.policy_controller import PolicyController
from esper.tolaria.event_loop import run_event_loop
from esper.tolaria.stopping import StopFlag

__all__ = ["run_arm"]

YOKE_OFFSET: Final = 1_000_003
"""From a seed to the one whose actions are replayed on it; far from all that are compared."""


def run_arm(
    job: Job,
    arm: Arm,
    *,
    stratum: int,
    seed: int,
    stop: StopFlag,
    greedy: bool = False,
    model: ArmRun | None = None,
    dataset: TensorDataset | None = None,
) -> ArmRun:
    """Run an arm on the envs of one seed, with a test after every step.

    Args:
        job: the job to run; its own seed and rounds are ignored.
        arm: the arm.
        stratum: index of its policy.
        seed: seed of all random streams; arms with the same seed share hosts and data order.
        stop: requests an end at the next cancellation point.
        greedy: a policy takes the most likely actions instead of sampling.
        model: the run that a static or matched arm copies.
        dataset: the job's data, if already loaded.
    """
    policy = arm.policies[stratum] if arm.policies else None
    _check_action_space(job, arm, policy)
    its_job = _job_under(job, arm, policy, seed)
    training = its_job.training
    with deterministic_gpu_math(training):
        prepare = partial(_prepare, arm=arm, policy=policy, stop=stop, greedy=greedy)
        setup = prepare(its_job, dataset=dataset)
        start = time.perf_counter()
        if arm.kind is ArmKind.YOKED:
            donor = prepare(_job_under(job, arm, policy, seed + YOKE_OFFSET), dataset=dataset)
            grown = run_event_loop(partial(evaluate_round, donor), stop)
            schedules = [grown.actions[env_id] for env_id in range(training.n_envs)]
            setup = with_schedules(setup, schedules)
        if arm.kind is ArmKind.MATCHED:
            assert model is not None, "it copies a policy's run"
            setup = with_matched_counts(setup, model)
        topologies = _topologies(arm, model, training.n_envs)
        if topologies:
            _check_hosts(setup, arm, topologies)
        grown = run_event_loop(
            partial(evaluate_round, setup, topologies=topologies, is_tested_each_step=True), stop
        )
        wall_s = time.perf_counter() - start
        envs = measure_envs(setup, grown)
    return ArmRun(
        arm=arm.name,
        stratum=stratum,
        seed=seed,
        wall_s=wall_s,
        envs=envs,
        num_failed=training.n_envs - len(envs),
    )


def _job_under(job: Job, arm: Arm, policy: LoadedRun | None, seed: int) -> Job:
    """Return the job under a seed; a policy that was trained blind is blind here."""
    is_blind = arm.kind is ArmKind.BLIND or (policy is not None and policy.job.training.blind)
    if is_blind and job.training.n_envs < 2:
        raise UsageError(
            f"{arm.name}: a blind policy is shown the observations of other envs; choose at least "
            "two with --envs"
        )
    training = msgspec.structs.replace(job.training, seed=seed, blind=is_blind)
    return msgspec.structs.replace(job, training=training)


def _prepare(
    job: Job,
    *,
    arm: Arm,
    policy: LoadedRun | None,
    stop: StopFlag,
    greedy: bool,
    dataset: TensorDataset | None,
) -> RunSetup:
    """Return the setup of an arm, with its controller."""
    setup = prepare_run(job, arm.command, policy, stop, parts=RunParts(), dataset=dataset)
    if isinstance(setup.controller, PolicyController):
        setup.controller.is_greedy = greedy
        # The comparison may have another number of envs or steps than the policy's training.
        training = job.training
        setup.controller.agent.fit_rollout(num_envs=training.n_envs, num_steps=training.max_epochs)
    return with_controller_of(setup, arm)


def _check_hosts(setup: RunSetup, arm: Arm, topologies: Topologies) -> None:
    if setup.worker.probe is not None:
        raise UsageError(f"{arm.name}: {setup.task.name} has no network to train from scratch")
    context = env_context(setup.worker)
    host_params = {
        env_id: build_model(context, ROUND_INDEX, env_id).num_host_params for env_id in topologies
    }
    check_topologies(setup.job, arm, topologies, host_params)


def _check_action_space(job: Job, arm: Arm, policy: LoadedRun | None) -> None:
    unknown = {row.slot for row in arm.schedule} - set(job.training.slots)
    if unknown:
        raise UsageError(
            f"{arm.name}: acts on {' '.join(sorted(unknown))} and the comparison has the slots "
            f"{' '.join(job.training.slots)}; choose the same with --slots"
        )
    if policy is None:
        return
    for what in ("slots", "blueprints"):
        its = " ".join(getattr(policy.job.training, what)) or "of every run only"
        asked = " ".join(getattr(job.training, what)) or "of every run only"
        if its != asked:
            raise UsageError(
                f"{policy.path}: the policy has the {what} {its} and the comparison has {asked}; "
                f"choose the same with --{what}"
            )


def _topologies(arm: Arm, model: ArmRun | None, n_envs: int) -> Topologies:
    """Return the networks that a static arm trains, by env; empty for the other arms."""
    if arm.kind is not ArmKind.STATIC:
        return {}
    if model is not None:
        return {env.env_id: env.topology for env in model.envs}
    # The recorded run may have had more envs than the comparison.
    return dict(enumerate(arm.recorded[:n_envs]))
