"""Learning curves over the rounds of training runs, and the verdict on each run."""

from typing import TypeAlias

import msgspec

__all__ = ["LearningCurve", "LearningReport", "TrainingRun"]

Series: TypeAlias = tuple[float | None, ...]
"""One value per round, from round 0 on; None where a round has none."""


class LearningCurve(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of the training runs, round by round, with its spread over them."""

    name: str
    runs: tuple[Series, ...]
    """Run by run; one that was shorter ends earlier."""
    mean: Series
    """Over the runs that have a value, here and below."""
    low: Series
    high: Series


class TrainingRun(msgspec.Struct, frozen=True, kw_only=True):
    """One training run, as its log judges it."""

    run_id: str
    task: str
    seed: int
    num_rounds: int
    """That were completed."""
    status: str
    """`running` where the log has no end: the run was killed, or is still running."""
    verdict: str
    """As of the last event."""
    reasons: tuple[str, ...]
    """Of the verdict."""
    alarms: dict[str, int]
    """How often each alarm was raised over the whole run, by the type of its event."""


class LearningReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the policies of a comparison learned."""

    runs: tuple[TrainingRun, ...]
    curves: tuple[LearningCurve, ...]
    """Of the round's envs and of the policy's update."""
    entropies: tuple[LearningCurve, ...]
    """Of each head: normalised, over the steps at which it had a choice."""
