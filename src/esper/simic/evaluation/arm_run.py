"""Runs one arm of a comparison on the envs of one seed, and measures it step by step."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Final

import msgspec
import torch

from esper.leyline.actions import Op
from esper.leyline.comparison import ArmRun, EpisodeMeasure
from esper.leyline.config import Job
from esper.leyline.errors import UsageError
from esper.leyline.messages import EnvEvidence
from esper.leyline.reports import EpisodeStatus
from esper.leyline.schedules import Schedule, actions_by_step
from esper.leyline.stages import Stage
from esper.runtime.batches import Batch
from esper.runtime.datasets import TensorDataset
from esper.simic.evaluation.arms import Arm, ArmKind, check_topologies
from esper.simic.evaluation.evaluation_round import (
    ROUND_INDEX,
    EvaluationRound,
    evaluate_round,
)
from esper.simic.evaluation.flops import FlopMeter
from esper.simic.training.assembly.gpu_math import deterministic_gpu_math
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import RunSetup, prepare_run
from esper.simic.training.assembly.worker_assembly import Topologies, env_context
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.contexts import context_of
from esper.simic.training.env_factory import build_model
from esper.simic.training.policy_controller import PolicyController
from esper.tamiyo.controllers.open_loop import MatchedController, ScheduleController
from esper.tamiyo.controllers.threshold import ThresholdController
from esper.tolaria.event_loop import run_event_loop
from esper.tolaria.stopping import StopFlag

__all__ = ["run_arm"]

YOKE_OFFSET: Final = 1_000_003
"""From a seed to the one whose actions are replayed on it; far from all that are compared."""
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
            setup = _scheduled(setup, schedules)
        if arm.kind is ArmKind.MATCHED:
            assert model is not None, "it copies a policy's run"
            setup = _matched(setup, model)
        topologies = _topologies(arm, model, training.n_envs)
        if topologies:
            _check_hosts(setup, arm, topologies)
        grown = run_event_loop(
            partial(evaluate_round, setup, topologies=topologies, is_tested_each_step=True), stop
        )
        wall_s = time.perf_counter() - start
        envs = _measures(setup, grown)
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
    return _with_found(setup, arm)


def _with_found(setup: RunSetup, arm: Arm) -> RunSetup:
    """Return the setup with the schedule or rule that an arm has, if it has any."""
    training = setup.job.training
    if arm.rule is not None:
        return replace(setup, controller=ThresholdController(setup.worker.rules, arm.rule))
    if arm.kind is ArmKind.SCHEDULE:
        return _scheduled(setup, [arm.schedule])
    if arm.kind is ArmKind.ORACLE:
        contexts = [
            context_of(setup.task, training, ROUND_INDEX, env_id)
            for env_id in range(training.n_envs)
        ]
        return _scheduled(setup, [arm.by_context[item.name] for item in contexts if item])
    return setup


def _scheduled(setup: RunSetup, schedules: Sequence[Schedule]) -> RunSetup:
    actions = [actions_by_step(schedule) for schedule in schedules]
    return replace(setup, controller=ScheduleController(setup.worker.rules, actions))


def _matched(setup: RunSetup, model: ArmRun) -> RunSetup:
    training = setup.job.training
    acts: list[Counter[Op]] = [Counter() for _ in range(training.n_envs)]
    for env in model.envs:
        acts[env.env_id].update(action.op for action in actions_by_step(env.actions).values())
    return replace(
        setup,
        controller=MatchedController(setup.worker.rules, training.seed, training.max_epochs, acts),
    )


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


def _sample(setup: RunSetup) -> Batch:
    inputs, targets = next(iter(setup.worker.val_batches.batches(round=0, step=0)))[0]
    return Batch(inputs[:FLOP_SAMPLES], targets[:FLOP_SAMPLES])


def _measures(setup: RunSetup, grown: EvaluationRound) -> tuple[EpisodeMeasure, ...]:
    meter = None
    if setup.worker.probe is None:
        meter = FlopMeter(context=env_context(setup.worker), sample=_sample(setup))
    whole = [
        env_id
        for env_id, episode in sorted(grown.episodes.items())
        if episode.status is not EpisodeStatus.FAILED
    ]
    # Counting FLOPs needs a backward pass; `enable_grad` restores the mode of this thread.
    with torch.enable_grad():
        return tuple(_measure(setup, grown, env_id, meter) for env_id in whole)


def _measure(
    setup: RunSetup, grown: EvaluationRound, env_id: int, meter: FlopMeter | None
) -> EpisodeMeasure:
    seen = [env for step in grown.steps if (env := step.envs[env_id]) is not None]
    tests = [test for step in grown.tested if (test := step[env_id]) is not None]
    curve = tuple(test.accuracy_pct for test in tests)
    # Chosen by validation, reported on the test split: choosing the best test accuracy would favour
    # arms with noisy curves.
    best_step = max(range(len(seen)), key=lambda step: seen[step].signals.val_accuracy_pct)
    episode, last = grown.episodes[env_id], seen[-1]
    contributions = _fossil_contributions(last)
    context = context_of(setup.task, setup.job.training, ROUND_INDEX, env_id)
    return EpisodeMeasure(
        env_id=env_id,
        curve_pct=curve,
        final_pct=curve[-1],
        best_pct=curve[best_step],
        mean_pct=fmean(curve),
        num_params_added=last.total_params - last.host_params,
        train_flops=0 if meter is None else _train_flops(meter, env_id, seen),
        num_germinated=episode.num_germinated,
        num_fossilized=episode.num_fossilized,
        num_pruned=episode.num_pruned,
        num_fossils_measured=len(contributions),
        num_fossils_positive=sum(value > 0.0 for value in contributions),
        total_reward=episode.total_reward,
        task_return=episode.task_return,
        topology=grown.topologies[env_id],
        context=None if context is None else context.name,
        actions=grown.actions[env_id],
    )


def _train_flops(meter: FlopMeter, env_id: int, seen: Sequence[EnvEvidence]) -> int:
    return round(sum(env.train_samples * meter.per_target(env.reports, env_id) for env in seen))


def _fossil_contributions(evidence: EnvEvidence) -> list[float]:
    fossils = (report for report in evidence.reports if report.stage is Stage.FOSSILIZED)
    found = (evidence.attribution.of(report.slot_id) for report in fossils)
    return [seed.contribution_pp for seed in found if seed is not None]
