"""Runs one arm of a comparison on the envs of one seed, and measures it step by step."""

import time
from functools import partial
from statistics import fmean
from typing import Final

import msgspec
import torch

from esper.leyline.comparison import ArmRun, EpisodeMeasure
from esper.leyline.config import Job
from esper.leyline.errors import UsageError
from esper.leyline.messages import EnvEvidence
from esper.leyline.reports import EpisodeStatus
from esper.leyline.stages import Stage
from esper.runtime.batches import Batch
from esper.runtime.datasets import TensorDataset
from esper.simic.evaluation.arms import Arm, check_topologies
from esper.simic.evaluation.evaluation_round import EvaluationRound, evaluate_round
from esper.simic.evaluation.flops import FlopMeter
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

FLOP_SAMPLES: Final = 2
"""Norm layers reject one sample in training mode; costs are per sample, so few suffice."""


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
        model: the run that a static arm copies.
        dataset: the job's data, if already loaded.
    """
    training = msgspec.structs.replace(job.training, seed=seed)
    policy = arm.policies[stratum] if arm.policies else None
    _check_slots(job, policy)
    its_job = msgspec.structs.replace(job, training=training)
    with deterministic_gpu_math(training):
        setup = prepare_run(its_job, arm.command, policy, stop, parts=RunParts(), dataset=dataset)
        if isinstance(setup.controller, PolicyController):
            setup.controller.is_greedy = greedy
            # The comparison may have another number of envs or steps than the policy's training.
            setup.controller.agent.fit_rollout(
                num_envs=training.n_envs, num_steps=training.max_epochs
            )
        if setup.worker.probe is not None:
            raise UsageError(
                f"{training.task}: a probe has no network whose accuracy and FLOPs could be "
                "compared; python -m tools.probes measures policies on probes"
            )
        topologies, context = _topologies(arm, model), env_context(setup.worker)
        check_topologies(setup.job, arm, topologies, build_model(context, 0, 0).num_host_params)
        start = time.perf_counter()
        grown = run_event_loop(
            partial(evaluate_round, setup, topologies=topologies, is_tested_each_step=True), stop
        )
        wall_s = time.perf_counter() - start
        envs = _measures(grown, FlopMeter(context=context, sample=_sample(setup)))
    return ArmRun(
        arm=arm.name,
        stratum=stratum,
        seed=seed,
        wall_s=wall_s,
        envs=envs,
        num_failed=training.n_envs - len(envs),
    )


def _check_slots(job: Job, policy: LoadedRun | None) -> None:
    if policy is not None and policy.job.training.slots != job.training.slots:
        raise UsageError(
            f"{policy.path}: the policy has the slots {' '.join(policy.job.training.slots)} and "
            f"the comparison has {' '.join(job.training.slots)}; choose the same with --slots"
        )


def _topologies(arm: Arm, model: ArmRun | None) -> Topologies:
    """Return the networks that a static arm trains, by env; empty for the other arms."""
    if model is not None:
        return {env.env_id: env.topology for env in model.envs}
    return dict(enumerate(arm.recorded))


def _sample(setup: RunSetup) -> Batch:
    inputs, targets = next(iter(setup.worker.val_batches.batches(round=0, step=0)))[0]
    return Batch(inputs[:FLOP_SAMPLES], targets[:FLOP_SAMPLES])


def _measures(grown: EvaluationRound, meter: FlopMeter) -> tuple[EpisodeMeasure, ...]:
    whole = [
        env_id
        for env_id, episode in sorted(grown.episodes.items())
        if episode.status is not EpisodeStatus.FAILED
    ]
    # Counting FLOPs needs a backward pass; `enable_grad` restores the mode of this thread.
    with torch.enable_grad():
        return tuple(_measure(grown, env_id, meter) for env_id in whole)


def _measure(grown: EvaluationRound, env_id: int, meter: FlopMeter) -> EpisodeMeasure:
    seen = [env for step in grown.steps if (env := step.envs[env_id]) is not None]
    tests = [test for step in grown.tested if (test := step[env_id]) is not None]
    curve = tuple(test.accuracy_pct for test in tests)
    # Chosen by validation, reported on the test split: choosing the best test accuracy would favour
    # arms with noisy curves.
    best_step = max(range(len(seen)), key=lambda step: seen[step].signals.val_accuracy_pct)
    episode, last = grown.episodes[env_id], seen[-1]
    contributions = _fossil_contributions(last)
    return EpisodeMeasure(
        env_id=env_id,
        curve_pct=curve,
        final_pct=curve[-1],
        best_pct=curve[best_step],
        mean_pct=fmean(curve),
        num_params_added=last.total_params - last.host_params,
        train_flops=round(sum(env.train_samples * meter.per_target(env.reports) for env in seen)),
        num_germinated=episode.num_germinated,
        num_fossilized=episode.num_fossilized,
        num_pruned=episode.num_pruned,
        num_fossils_measured=len(contributions),
        num_fossils_positive=sum(value > 0.0 for value in contributions),
        total_reward=episode.total_reward,
        task_return=episode.task_return,
        topology=grown.topologies[env_id],
    )


def _fossil_contributions(evidence: EnvEvidence) -> list[float]:
    fossils = (report for report in evidence.reports if report.stage is Stage.FOSSILIZED)
    found = (evidence.attribution.of(report.slot_id) for report in fossils)
    return [seed.contribution_pp for seed in found if seed is not None]
