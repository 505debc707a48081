"""Converts seed reports to the inputs of a reward."""

from collections.abc import Iterable

from esper.leyline.reports import SeedReport
from esper.leyline.rewards import RewardMemory, SeedRewardInputs, SlotMemory, SlotStage
from esper.simic.rewards.scheme import RewardScheme
from esper.simic.rewards.shaping import first_potential

__all__ = ["memory_at", "seed_inputs", "slot_stages"]


def seed_inputs(report: SeedReport, attributed_pp: float | None) -> SeedRewardInputs:
    """Return the reward inputs of a seed; a contribution counts only in the step measuring it."""
    is_fresh = report.steps_since_contribution == 0
    return SeedRewardInputs(
        slot_id=report.slot_id,
        seed_id=report.seed_id,
        stage=report.stage,
        steps_in_stage=report.steps_in_stage,
        age_steps=report.age_steps,
        alpha=report.alpha.alpha,
        num_params=report.num_params,
        contribution_pp=report.contribution_pp if is_fresh else None,
        attributed_pp=attributed_pp if is_fresh else None,
        stage_improvement_pp=report.stage_improvement_pp,
        progress_since_germination_pp=report.improvement_pp,
        interaction_sum_pp=report.interaction_sum_pp if is_fresh else None,
    )


def slot_stages(reports: Iterable[SeedReport]) -> tuple[SlotStage, ...]:
    """Return the data of each occupied slot that shaping depends on."""
    return tuple(
        SlotStage(stage=report.stage, steps_in_stage=report.steps_in_stage) for report in reports
    )


def memory_at(reports: Iterable[SeedReport], scheme: RewardScheme) -> RewardMemory:
    """Return the reward memory at the start of a segment, which may already have fossils."""
    listed = tuple(reports)
    return RewardMemory(
        potential=first_potential(slot_stages(listed), scheme),
        slots=tuple(
            SlotMemory(
                slot_id=report.slot_id,
                seed_id=report.seed_id,
                alpha=report.alpha.alpha,
                num_params=report.num_params,
            )
            for report in listed
        ),
    )
