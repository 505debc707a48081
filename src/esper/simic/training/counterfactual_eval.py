"""The fused validation pass: evaluates the network and all its ablations in one pass."""

from collections.abc import Iterable, Sequence
from random import Random

import torch

from esper.leyline.attribution import AttributionEvidence
from esper.leyline.payloads import CoalitionResult
from esper.leyline.reports import SeedReport
from esper.leyline.rewards import RewardMode
from esper.leyline.stages import Stage
from esper.leyline.streams import StreamPurpose, stream_seed
from esper.runtime.batches import Batch
from esper.simic.attribution.configurations import AblationPlan, AblationStrategy, plan_ablations
from esper.simic.attribution.evidence import attribute_contributions
from esper.simic.attribution.shapley import antithetic_permutations
from esper.simic.training.batch_ops import Autocast, loss_and_correct
from esper.simic.training.parallel_env_state import ParallelEnvState

__all__ = [
    "build_ablation_plan",
    "coalitions_of",
    "materialize_attribution",
    "process_fused_val_batch",
]

NUM_PERMUTATIONS = 10
"""Permutations sampled for Shapley values where all coalitions are too many; each also reversed."""


def build_ablation_plan(
    reports: tuple[SeedReport, ...],
    *,
    is_last_step: bool,
    reward_mode: RewardMode,
    seed: int,
    round_index: int,
    env_id: int,
) -> AblationPlan:
    """Return the ablations that an env's validation pass evaluates.

    Fossils are ablated one by one on the last step, and on every step if the reward depends on
    their contribution.
    """
    plan = plan_ablations(
        reports, fossils_to_measure=_fossils_in(reports, is_last_step, reward_mode)
    )
    # The factorial contains every coalition, so that Shapley values are exact and need no sampling.
    if plan.strategy is AblationStrategy.FULL_FACTORIAL or not is_last_step:
        return plan
    source = stream_seed(seed, purpose=StreamPurpose.SHAPLEY, round=round_index, env=env_id)
    return plan_ablations(
        reports,
        fossils_to_measure=plan.fossils,
        permutations=antithetic_permutations(plan.active, NUM_PERMUTATIONS, Random(source)),
    )


def _fossils_in(
    reports: Iterable[SeedReport], is_last_step: bool, reward_mode: RewardMode
) -> tuple[str, ...]:
    if not (is_last_step or reward_mode is RewardMode.BASIC_PLUS):
        return ()
    return tuple(report.slot_id for report in reports if report.stage is Stage.FOSSILIZED)


def process_fused_val_batch(
    env: ParallelEnvState, batch: Batch, plan: AblationPlan, autocast: Autocast
) -> None:
    """Accumulate one batch's losses and correct predictions for every ablation of the plan."""
    with env.fence.entered(is_training=False):
        env.fence.await_transfers()
        env.fence.record_stream(batch.inputs, batch.targets)
        with autocast():
            output = env.model.fused_forward(batch.inputs, plan.ablations)
        results = [loss_and_correct(logits, batch.targets) for logits in output.logits]
        # One tensor for all ablations, so that a batch is accumulated in one operation each.
        losses = torch.stack([loss for loss, _ in results])
        correct = torch.stack([num_right for _, num_right in results])
        env.val.add(losses, correct, batch.targets.numel())


def materialize_attribution(
    env: ParallelEnvState, plan: AblationPlan
) -> tuple[list[float], list[float], AttributionEvidence]:
    """Read every ablation's mean loss and accuracy in one transfer and attribute contributions."""
    env.fence.synchronize()
    losses, accuracies = env.val.materialize_means()
    return losses, accuracies, attribute_contributions(plan, accuracies)


def coalitions_of(
    plan: AblationPlan, losses: Sequence[float], accuracies_pct: Sequence[float]
) -> tuple[CoalitionResult, ...]:
    """Return the accuracies of the active seeds' coalitions, for telemetry."""
    if not plan.active:
        return ()
    results = zip(plan.ablations, losses, accuracies_pct, strict=True)
    return tuple(
        CoalitionResult(seeds_on=plan.seeds_on(ablation), accuracy_pct=accuracy, loss=loss)
        for ablation, loss, accuracy in results
        if ablation.off <= set(plan.active)
    )
