"""Equations between event counts, and closed forms for the counts of a completed run."""

from collections.abc import Iterator
from typing import Final

import msgspec

from esper.leyline.baselines import RunProfile
from esper.leyline.telemetry import (
    EVENT_SPECS,
    CountClass,
    CountPer,
    EventSpec,
    EventType,
    TelemetryLevel,
)

__all__ = ["Check", "check_profile"]


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One equation, and whether it holds for a profile."""

    name: str
    count_class: CountClass
    left: int
    right: int
    holds: bool


class _Equation(msgspec.Struct, frozen=True, kw_only=True):
    """`left = right`, or `left ≤ right`; each side is a sum of counts and terms."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    is_at_most: bool = False
    needs_whole_run: bool = False
    """Holds only for a completed run."""

    @property
    def name(self) -> str:
        sign = "≤" if self.is_at_most else "="
        return f"{' + '.join(self.left)} {sign} {' + '.join(self.right)}"


_EQUATIONS: Final = (
    _Equation(left=("SEED_FOSSILIZED",), right=("stage changes to FOSSILIZED",)),
    _Equation(left=("SEED_PRUNED",), right=("stage changes to PRUNED",)),
    _Equation(
        left=("SEED_GERMINATED",), right=("seeds germinated by round",), needs_whole_run=True
    ),
    _Equation(left=("passed gate evaluations",), right=("gated stage changes",)),
    _Equation(left=("causal proposal",), right=("causal verdict",)),
    _Equation(left=("causal mutation",), right=("causal approved verdict",)),
    _Equation(left=("causal dispatch",), right=("causal mutation",)),
    _Equation(
        left=("causal commit", "causal fossilization"), right=("causal dispatch",), is_at_most=True
    ),
    _Equation(left=("causal cooldown",), right=("causal rollback",)),
    _Equation(left=("causal audit",), right=("causal rollback",)),
)


def check_profile(profile: RunProfile) -> list[Check]:
    """Evaluate all closed forms and equations that apply to a log, in this order."""
    return [*_closed_forms(profile), *_equations(profile)]


def _equations(profile: RunProfile) -> Iterator[Check]:
    has_lifecycle = _level(profile) >= TelemetryLevel.NORMAL
    for equation in _EQUATIONS if has_lifecycle else ():
        if equation.needs_whole_run and profile.status != "completed":
            continue
        left = sum(_value(profile, name) for name in equation.left)
        right = sum(_value(profile, name) for name in equation.right)
        yield Check(
            name=equation.name,
            count_class=CountClass.IDENTITY,
            left=left,
            right=right,
            holds=left <= right if equation.is_at_most else left == right,
        )


def _value(profile: RunProfile, name: str) -> int:
    return profile.counts.get(name, 0) + profile.terms.get(name, 0)


def _level(profile: RunProfile) -> TelemetryLevel:
    """Return the telemetry level of a run; OFF for foreign logs, so that no equation applies."""
    names = {level.name.lower(): level for level in TelemetryLevel}
    level = "" if profile.started is None else profile.started.telemetry_level
    return names.get(level, TelemetryLevel.OFF)


def _closed_forms(profile: RunProfile) -> Iterator[Check]:
    if profile.started is None or profile.status != "completed":
        return
    level = _level(profile)
    for spec in EVENT_SPECS.values():
        expected = _expected(spec, profile)
        if expected is None or level < spec.level:
            continue
        count = profile.counts.get(spec.event_type, 0)
        # Per-step events can be switched off as a whole (lifecycle only, no phase profile).
        can_be_off = spec.per in (CountPer.ENV_STEP, CountPer.STEP_OR_UPDATE)
        yield Check(
            name=f"{spec.event_type} = {_form(spec)}",
            count_class=spec.count_class,
            left=count,
            right=expected,
            holds=count == expected or (can_be_off and count == 0),
        )


def _expected(spec: EventSpec, profile: RunProfile) -> int | None:
    """Return how many events of a type a completed run has; None where no closed form exists."""
    started = profile.started
    assert started is not None
    rounds = profile.terms.get("rounds completed", started.num_rounds)
    envs, steps = started.num_envs, started.num_steps
    match spec.event_type, spec.per:
        case EventType.PPO_UPDATE_COMPLETED, _:
            return rounds - profile.terms.get("skipped updates", 0)
        case EventType.LAST_ACTION, _:
            # A step that ends in a rollback has no LAST_ACTION.
            rolled_back = profile.counts.get(EventType.GOVERNOR_ROLLBACK, 0)
            return rounds * envs * steps - _missing_steps(profile, steps, "decided") - rolled_back
        case EventType.TOPOLOGY_MANIFEST_RECORDED, _:
            return rounds * envs - profile.terms.get("env failures", 0)
        case _, CountPer.ENV_STEP:
            return rounds * envs * steps - _missing_steps(profile, steps, "validated")
        case _, CountPer.RUN:
            return 1
        case _, CountPer.ROUND:
            return rounds
        case _, CountPer.EPISODE:
            return rounds * envs
        case _, CountPer.STEP_OR_UPDATE:
            return rounds * (steps + 1)
    return None


def _form(spec: EventSpec) -> str:
    match spec.event_type, spec.per:
        case EventType.PPO_UPDATE_COMPLETED, _:
            return "rounds - skipped updates"
        case EventType.LAST_ACTION, _:
            return "rounds x envs x steps - steps of failed envs - rollbacks"
        case EventType.TOPOLOGY_MANIFEST_RECORDED, _:
            return "rounds x envs - failed envs"
        case _, CountPer.ENV_STEP:
            return "rounds x envs x steps - steps of failed envs"
        case _, CountPer.EPISODE:
            return "rounds x envs"
        case _, CountPer.STEP_OR_UPDATE:
            return "rounds x (steps + 1)"
        case _, CountPer.ROUND:
            return "rounds"
    return "1"


def _missing_steps(profile: RunProfile, num_steps: int, what: str) -> int:
    """Return the number of steps that failed envs did not reach."""
    terms = profile.terms
    reached = terms.get(f"steps before failures, {what}", 0)
    return terms.get("env failures", 0) * num_steps - reached
