"""Baseline controllers that do not learn: wait, random (legal actions only), periodic."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from esper.leyline.actions import (
    HEADS,
    ActionSpec,
    AlphaSpeed,
    AlphaTarget,
    CurveChoice,
    Head,
    Op,
    Style,
    Tempo,
    causal_heads,
)
from esper.leyline.legality import ActionRules, is_legal
from esper.leyline.messages import EnvEvidence
from esper.leyline.reports import SeedReport
from esper.leyline.stages import ADVANCEABLE_STAGES, Stage
from esper.leyline.streams import StreamPurpose, stream_seed
from esper.tamiyo.controllers.protocol import Choice, Situation

__all__ = [
    "PeriodicController",
    "RandomController",
    "WaitController",
    "choice_of",
    "legal_targets",
    "random_request",
    "wait_in",
]

DEFAULT_PERIOD: Final = 8
_DETAILS: Final = frozenset(HEADS) - {Head.OP, Head.SLOT}
"""The heads whose values are fields of `ActionSpec` with the same name."""


@dataclass(eq=False, slots=True)
class WaitController:
    """Always waits, so that the host trains without seeds."""

    rules: ActionRules
    name: str = "wait"

    def begin_round(self, round_index: int) -> None:
        """Do nothing: there is no state to reset."""

    def choose(self, situation: Situation) -> Choice:
        """Return WAIT for every env."""
        return choice_of([wait_in(self.rules) for _ in situation.envs], situation)


@dataclass(eq=False, slots=True)
class RandomController:
    """Samples a legal op uniformly, then a legal slot, then the other heads that the op uses."""

    rules: ActionRules
    seed: int
    name: str = "random"

    def begin_round(self, round_index: int) -> None:
        """Do nothing: there is no state to reset."""

    def choose(self, situation: Situation) -> Choice:
        """Sample one action per env, each from its own random stream."""
        actions = [
            self._draw(() if env is None else env.reports, self._stream(situation, env_id))
            for env_id, env in enumerate(situation.envs)
        ]
        return choice_of(actions, situation)

    def _stream(self, situation: Situation, env_id: int) -> Random:
        # An env's samples must not depend on the number of choices in another env.
        source = stream_seed(
            self.seed,
            purpose=StreamPurpose.ACTION,
            round=situation.round,
            env=env_id,
            step=situation.step,
        )
        return Random(source)

    def _draw(self, reports: tuple[SeedReport, ...], random: Random) -> ActionSpec:
        request = random_request(random, self.rules)
        targets = [legal_targets(request, op, reports, self.rules) for op in Op]
        # The op first: over all actions at once, ops with many legal slots would be chosen more
        # often.
        return random.choice(random.choice([legal for legal in targets if legal]))


def random_request(random: Random, rules: ActionRules) -> ActionSpec:
    """Draw every head but op and slot; used or not, so that later draws do not depend on the op."""
    return ActionSpec(
        slot_id=rules.slot_ids[0],
        blueprint=random.choice(rules.blueprints),
        style=random.choice(list(Style)),
        tempo=random.choice(list(Tempo)),
        alpha_target=random.choice(list(AlphaTarget)),
        alpha_speed=random.choice(list(AlphaSpeed)),
        alpha_curve=random.choice(list(CurveChoice)),
    )


def legal_targets(
    request: ActionSpec, op: Op, reports: Sequence[SeedReport], rules: ActionRules
) -> list[ActionSpec]:
    """Return the op with a request's heads for each legal slot; once if it uses no slot."""
    matters = causal_heads(op)
    slot_ids = rules.slot_ids if Head.SLOT in matters else rules.slot_ids[:1]
    effective = {head.value: getattr(request, head.value) for head in _DETAILS & matters}
    aimed = (ActionSpec(op=op, slot_id=slot_id, **effective) for slot_id in slot_ids)
    return [action for action in aimed if is_legal(action, reports, rules)]


@dataclass(eq=False, slots=True)
class PeriodicController:
    """Germinates blueprints in a fixed rotation at fixed intervals, and advances every seed."""

    rules: ActionRules
    period: int = DEFAULT_PERIOD
    name: str = "periodic"

    def begin_round(self, round_index: int) -> None:
        """Do nothing: there is no state to reset."""

    def choose(self, situation: Situation) -> Choice:
        """Choose each env's action independently."""
        step = situation.step
        return choice_of([self._for_env(env, step) for env in situation.envs], situation)

    def _for_env(self, env: EnvEvidence | None, step: int) -> ActionSpec:
        reports = () if env is None else env.reports
        candidates = [*self._planted(step), *_in_turn(self._carried_on(reports), step)]
        legal = (action for action in candidates if is_legal(action, reports, self.rules))
        return next(legal, wait_in(self.rules))

    def _carried_on(self, reports: Sequence[SeedReport]) -> list[ActionSpec]:
        ops = dict.fromkeys(ADVANCEABLE_STAGES, Op.ADVANCE) | {Stage.HOLDING: Op.FOSSILIZE}
        return [
            ActionSpec(op=ops[report.stage], slot_id=report.slot_id)
            for report in reports
            if report.stage in ops and _is_ready(report)
        ]

    def _planted(self, step: int) -> list[ActionSpec]:
        if step % self.period:
            return []
        rotation = self.rules.blueprints
        blueprint = rotation[(step // self.period) % len(rotation)]
        return [
            ActionSpec(op=Op.GERMINATE, slot_id=slot_id, blueprint=blueprint)
            for slot_id in self.rules.slot_ids
        ]


def _is_ready(report: SeedReport) -> bool:
    """Return whether the gate may pass: in BLENDING it fails until the ramp is complete."""
    return report.stage is not Stage.BLENDING or report.alpha.is_at_target


def wait_in(rules: ActionRules) -> ActionSpec:
    """Return the action that does nothing."""
    return ActionSpec(slot_id=rules.slot_ids[0])


def _in_turn(candidates: list[ActionSpec], step: int) -> list[ActionSpec]:
    """Rotate the candidates by the step, so that a seed whose gate fails does not block others."""
    first = step % max(len(candidates), 1)
    return candidates[first:] + candidates[:first]


def choice_of(actions: Sequence[ActionSpec], situation: Situation) -> Choice:
    """Return the actions, without those of quarantined envs."""
    kept = zip(actions, situation.envs, strict=True)
    return Choice(
        actions=tuple(action if env is not None else None for action, env in kept),
        details=(None,) * len(actions),
    )
