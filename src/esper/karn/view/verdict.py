"""The verdict: is the run alive, is the policy learning, does anything need attention."""

from collections.abc import Iterator, Sequence

import msgspec

from esper.karn.view.snapshot import (
    AlarmView,
    BusView,
    PolicyView,
    ProgressView,
    Reason,
    RoundView,
    Verdict,
)
from esper.karn.view.thresholds import LIMITS, THRESHOLDS, Grade, grade, worst
from esper.karn.view.trend import Trend, find_trend
from esper.leyline.payloads import TrainingStarted
from esper.leyline.telemetry import EventType, Severity

__all__ = ["Evidence", "judge"]

MAX_REASONS = 5
USUAL_PAUSES = 3.0
"""Silence is unusual only beyond this multiple of the run's longest recent pause."""
RECENT_S = 300.0
"""How long an alarm without a round counts as recent."""
POLICY_NUMBERS = ("kl_divergence", "clip_fraction", "value_nrmse", "gradient_norm", "entropy")
LEARNING_CONTROLLER = "ppo"


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a verdict."""

    now: float
    facts: TrainingStarted | None
    progress: ProgressView
    rounds: Sequence[RoundView]
    """Completed rounds, in order."""
    policy: PolicyView | None
    alarms: Sequence[AlarmView]
    bus: BusView


class _Answer(msgspec.Struct, frozen=True):
    word: str
    grade: Grade
    reasons: tuple[Reason, ...]


def judge(evidence: Evidence) -> Verdict:
    """Return the verdict with the most severe reasons."""
    silence_s = _silence(evidence)
    alive = _is_alive(evidence.progress, silence_s)
    learning = _does_learn(evidence)
    attention = _needs_attention(evidence)
    reasons = sorted(
        (*alive.reasons, *attention.reasons, *learning.reasons),
        # Stable sorting keeps the order within a grade: alive, attention, learning.
        key=lambda reason: -reason.grade.rank,
    )
    return Verdict(
        headline=_headline(alive, learning, attention),
        grade=worst(alive.grade, learning.grade, attention.grade),
        alive=alive.word,
        alive_grade=alive.grade,
        learning=learning.word,
        learning_grade=learning.grade,
        attention=attention.word,
        attention_grade=attention.grade,
        silence_s=silence_s,
        reasons=tuple(reasons[:MAX_REASONS]),
    )


def _headline(alive: _Answer, learning: _Answer, attention: _Answer) -> str:
    if alive.word in ("waiting", "silent", "failed", "interrupted"):
        return {
            "waiting": "Waiting for the first event",
            "silent": "No recent events",
            "failed": "The run failed",
            "interrupted": "The run was interrupted",
        }[alive.word]
    prefix = "Finished" if alive.word == "completed" else "Running"
    # Before the trend: a policy that seems to learn while its numbers fail must not look well.
    if attention.grade is Grade.ACT:
        return f"{prefix}, needs attention"
    if learning.word == "collecting":
        return f"{prefix}, too early to judge"
    ending = {
        "rising": "task return rises",
        "rising, accuracy falling": "task return rises, accuracy falls",
        "flat": "no clear trend",
        "falling": "task return falls",
        "not learning": "fixed policy",
    }[learning.word]
    return f"{prefix}, {ending}"


def _silence(evidence: Evidence) -> float | None:
    last_ts = evidence.progress.last_event_ts
    return None if last_ts is None else max(evidence.now - last_ts, 0.0)


def _is_alive(progress: ProgressView, silence_s: float | None) -> _Answer:
    if progress.status == "waiting" or silence_s is None:
        return _Answer("waiting", Grade.UNKNOWN, ())
    if progress.status != "running":
        level = {"completed": Grade.OK, "interrupted": Grade.WATCH}.get(progress.status, Grade.ACT)
        why = (Reason(grade=level, text=progress.reason, panel="run"),) if progress.reason else ()
        return _Answer(progress.status, level, why)
    # Tasks with long steps have long pauses, so silence is compared with the run's own pauses.
    is_unusual = silence_s > USUAL_PAUSES * (progress.usual_pause_s or 0.0)
    level = grade("silence", silence_s) if is_unusual else Grade.OK
    word = {Grade.OK: "live", Grade.WATCH: "slow", Grade.ACT: "silent"}[level]
    if level is Grade.OK:
        return _Answer(word, level, ())
    text = f"no event for {silence_s:.0f} s (usual pause {progress.usual_pause_s or 0.0:.1f} s)"
    return _Answer(word, level, (Reason(grade=level, text=text, panel="bus"),))


def _does_learn(evidence: Evidence) -> _Answer:
    if evidence.facts is not None and evidence.facts.controller != LEARNING_CONTROLLER:
        text = f"the {evidence.facts.controller} controller does not learn"
        return _Answer("not learning", Grade.OK, (_learning_reason(Grade.OK, text),))
    returns = [value for row in evidence.rounds if (value := _return_of(row)) is not None]
    if len(returns) < LIMITS.rounds_to_judge:
        text = f"{len(returns)} of {LIMITS.rounds_to_judge} rounds needed to see a trend"
        return _Answer("collecting", Grade.UNKNOWN, (_learning_reason(Grade.UNKNOWN, text),))
    trend = find_trend(returns[-LIMITS.trend_rounds :])
    word = {"rises": "rising", "falls": "falling", "flat": "flat"}[trend.word]
    accuracy = _accuracy_trend(evidence.rounds)
    if word == "rising" and accuracy is not None and accuracy.word == "falls":
        word = "rising, accuracy falling"
    level = Grade.WATCH if "falling" in word else Grade.OK
    num_rounds = min(len(returns), LIMITS.trend_rounds)
    text = (
        f"task return {trend.early:+.2f} to {trend.late:+.2f} between the halves of the last "
        f"{num_rounds} rounds (p = {trend.p_value:.2g})"
    )
    if accuracy is not None:
        text += f"; accuracy {accuracy.early:.1f} to {accuracy.late:.1f} %"
    return _Answer(word, level, (_learning_reason(level, text),))


def _accuracy_trend(rounds: Sequence[RoundView]) -> Trend | None:
    values = [row.mean_accuracy_pct for row in rounds if row.mean_accuracy_pct is not None]
    enough = len(values) >= LIMITS.rounds_to_judge
    return find_trend(values[-LIMITS.trend_rounds :]) if enough else None


def _return_of(row: RoundView) -> float | None:
    """Return the round's mean task return; older logs have only the one with shaping."""
    return row.mean_reward if row.mean_task_return is None else row.mean_task_return


def _learning_reason(level: Grade, text: str) -> Reason:
    return Reason(grade=level, text=text, panel="rounds")


def _needs_attention(evidence: Evidence) -> _Answer:
    reasons = (
        *_alarm_reasons(evidence),
        *_policy_reasons(evidence.policy),
        *_bus_reasons(evidence.bus),
        *_data_reasons(evidence.facts),
    )
    level = worst(Grade.OK, *(reason.grade for reason in reasons))
    return _Answer({Grade.OK: "none"}.get(level, level.value), level, reasons)


def _alarm_reasons(evidence: Evidence) -> Iterator[Reason]:
    """Yield a reason for each recent alarm; older ones remain in the alarm list only."""
    for alarm in evidence.alarms:
        if not _is_recent(alarm, evidence):
            continue
        is_grave = Severity(alarm.severity).rank >= Severity.ERROR.rank and not _is_contained(alarm)
        where = "" if alarm.env_id is None else f"env {alarm.env_id}: "
        yield Reason(
            grade=Grade.ACT if is_grave else Grade.WATCH, text=where + alarm.text, panel="alarms"
        )


def _is_contained(alarm: AlarmView) -> bool:
    """Return whether the run has dealt with an alarm itself: a host that is rolled back goes on."""
    is_rollback = alarm.event_type == EventType.GOVERNOR_ROLLBACK
    return is_rollback and alarm.count < LIMITS.rollbacks_to_act


def _is_recent(alarm: AlarmView, evidence: Evidence) -> bool:
    if alarm.round is not None:
        # The round before counts too: alarms about its update are emitted at its end.
        return alarm.round >= (evidence.progress.round or 0) - 1
    # Operational alarms, such as a slow subscriber, do not belong to a round.
    return evidence.now - alarm.last_ts <= RECENT_S


def _policy_reasons(policy: PolicyView | None) -> Iterator[Reason]:
    if policy is None:
        return
    for name in POLICY_NUMBERS:
        value = getattr(policy, name)
        level = grade(name, value)
        if level in (Grade.WATCH, Grade.ACT):
            threshold = THRESHOLDS[name]
            text = f"{threshold.label} {value:.3g}: {threshold.meaning}"
            # One update above a threshold is never graded ACT; the detectors raise the alarms.
            yield Reason(grade=Grade.WATCH, text=text, panel="policy")


def _bus_reasons(bus: BusView) -> Iterator[Reason]:
    if bus.num_missed:
        text = f"{bus.num_missed} events are missing from the log"
        yield Reason(grade=Grade.ACT, text=text, panel="bus")
    if bus.num_unreadable:
        text = f"{bus.num_unreadable} lines of the log are unreadable"
        yield Reason(grade=Grade.ACT, text=text, panel="bus")


def _data_reasons(facts: TrainingStarted | None) -> Iterator[Reason]:
    if facts is not None and facts.data_source == "synthetic":
        yield Reason(grade=Grade.WATCH, text="trained on synthetic data", panel="run")
