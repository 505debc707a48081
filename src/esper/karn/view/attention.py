"""Ranks envs by how much attention they need, with reasons, in a stable order."""

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Final, NamedTuple

from esper.karn.view.snapshot import EnvAttention, EnvView
from esper.karn.view.thresholds import Grade, grade, worst

__all__ = ["rank_envs"]

PEER_GAP_PP: Final = 10.0
"""An env this far below the median accuracy of all envs is an outlier."""


def rank_envs(envs: Iterable[EnvView]) -> tuple[EnvAttention, ...]:
    """Return the envs sorted by descending score, then by id.

    A score is a sum of fixed integers, one per reason, so that an env changes its place only when
    a reason appears or disappears.
    """
    views = list(envs)
    measured = [env.accuracy_pct for env in views if env.accuracy_pct is not None]
    middle = median(measured) if measured else None
    ranked = [_attention(env, middle) for env in views]
    return tuple(sorted(ranked, key=lambda item: (-item.score, item.env_id)))


def _attention(env: EnvView, middle: float | None) -> EnvAttention:
    reasons = list(_reasons(env, middle))
    if not reasons:  # most envs, in every patch
        return EnvAttention(env_id=env.env_id, score=0, grade=Grade.OK, reasons=())
    return EnvAttention(
        env_id=env.env_id,
        score=sum(reason.score for reason in reasons),
        grade=worst(Grade.OK, *(reason.grade for reason in reasons)),
        reasons=tuple(reason.text for reason in reasons),
    )


class _Concern(NamedTuple):
    score: int
    grade: Grade
    text: str


def _reasons(env: EnvView, middle: float | None) -> Iterator[_Concern]:
    if env.failure is not None:
        yield _Concern(100, Grade.ACT, "failed")
    if env.num_rollbacks:
        plural = "s" if env.num_rollbacks > 1 else ""
        yield _Concern(50, Grade.ACT, f"{env.num_rollbacks} rollback{plural}")
    troubled = [slot.slot_id for slot in env.slots if slot.has_gradient_trouble]
    if troubled:
        yield _Concern(20, Grade.WATCH, f"gradient trouble in {', '.join(troubled)}")
    if env.accuracy_pct is None:
        return
    drop_pp = (env.best_accuracy_pct or env.accuracy_pct) - env.accuracy_pct
    drop_grade = grade("drop_from_best", drop_pp)
    if drop_grade is Grade.ACT:
        yield _Concern(30, drop_grade, "far below its best")
    elif drop_grade is Grade.WATCH:
        yield _Concern(15, drop_grade, "below its best")
    if middle is not None and middle - env.accuracy_pct >= PEER_GAP_PP:
        yield _Concern(15, Grade.WATCH, "behind its peers")
    if env.outcome is None and grade("steps_without_best", env.steps_since_best) is not Grade.OK:
        yield _Concern(5, Grade.WATCH, "no new best for a while")
