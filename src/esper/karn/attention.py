"""Which envs to look at first, and why: an order that can be explained and does not jitter."""

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Final

from esper.karn.snapshot import EnvAttention, EnvView
from esper.karn.thresholds import Grade, grade

__all__ = ["rank_envs"]

PEER_GAP_PP: Final = 10.0
"""Below the median of the other envs by that much is an outlier."""


def rank_envs(envs: Iterable[EnvView]) -> tuple[EnvAttention, ...]:
    """Return the envs with the most reasons for concern first; equals stay in order of their ids.

    A score is a sum of whole numbers, one per reason, so that an env moves only when a reason
    comes or goes.
    """
    views = list(envs)
    measured = [env.accuracy_pct for env in views if env.accuracy_pct is not None]
    middle = median(measured) if measured else None
    ranked = [_attention(env, middle) for env in views]
    return tuple(sorted(ranked, key=lambda item: (-item.score, item.env_id)))


def _attention(env: EnvView, middle: float | None) -> EnvAttention:
    reasons = list(_reasons(env, middle))
    return EnvAttention(
        env_id=env.env_id,
        score=sum(score for score, _ in reasons),
        reasons=tuple(text for _, text in reasons),
    )


def _reasons(env: EnvView, middle: float | None) -> Iterator[tuple[int, str]]:
    if env.failure is not None:
        yield 100, "failed"
    if env.num_rollbacks:
        yield 50, f"{env.num_rollbacks} rollback{'s' * (env.num_rollbacks > 1)}"
    troubled = [slot.slot_id for slot in env.slots if slot.has_gradient_trouble]
    if troubled:
        yield 20, f"gradient trouble in {', '.join(troubled)}"
    if env.accuracy_pct is None:
        return
    drop_pp = (env.best_accuracy_pct or env.accuracy_pct) - env.accuracy_pct
    if grade("drop_from_best", drop_pp) in (Grade.WATCH, Grade.ACT):
        is_deep = grade("drop_from_best", drop_pp) is Grade.ACT
        yield 30 if is_deep else 15, "below its best" if not is_deep else "far below its best"
    if middle is not None and middle - env.accuracy_pct >= PEER_GAP_PP:
        yield 15, "behind its peers"
    if env.outcome is None and grade("steps_without_best", env.steps_since_best) is not Grade.OK:
        yield 5, "no new best for a while"
