"""What the envs of one run of an arm came to: accuracy by step, growth, FLOPs, task return."""

from collections.abc import Sequence
from statistics import fmean
from typing import Final

import torch

from esper.leyline.comparison import EpisodeMeasure
from esper.leyline.messages import EnvEvidence
from esper.leyline.reports import EpisodeStatus
from esper.leyline.stages import Stage
from esper.runtime.batches import Batch
from esper.simic.evaluation.evaluation_round import ROUND_INDEX, EvaluationRound
from esper.simic.evaluation.flops import FlopMeter
from esper.simic.training.assembly.run_setup import RunSetup
from esper.simic.training.assembly.worker_assembly import env_context
from esper.simic.training.contexts import context_of

__all__ = ["measure_envs"]

FLOP_SAMPLES: Final = 2
"""Norm layers reject one sample in training mode; costs are per sample, so few suffice."""


def _sample(setup: RunSetup) -> Batch:
    inputs, targets = next(iter(setup.worker.val_batches.batches(round=0, step=0)))[0]
    return Batch(inputs[:FLOP_SAMPLES], targets[:FLOP_SAMPLES])


def measure_envs(setup: RunSetup, grown: EvaluationRound) -> tuple[EpisodeMeasure, ...]:
    """Measure every env that finished its episode."""
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
    return round(sum(_pass_flops(meter, env_id, env) for env in seen))


def _pass_flops(meter: FlopMeter, env_id: int, evidence: EnvEvidence) -> float:
    cost = meter.per_target(evidence.reports, env_id)
    return evidence.train_samples * cost.train + evidence.trial_samples * cost.trial


def _fossil_contributions(evidence: EnvEvidence) -> list[float]:
    fossils = (report for report in evidence.reports if report.stage is Stage.FOSSILIZED)
    found = (evidence.attribution.of(report.slot_id) for report in fossils)
    return [seed.contribution_pp for seed in found if seed is not None]
