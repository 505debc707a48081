"""Controllers that learn nothing: wait, random-legal, periodic; what a policy has to beat."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from esper.leyline.actions import (
    BLUEPRINTS_BY_TOPOLOGY,
    ActionSpec,
    AlphaSpeed,
    AlphaTarget,
    Blueprint,
    CurveChoice,
    Op,
    Style,
    Tempo,
)
from esper.leyline.legality import ActionRules, is_legal
from esper.leyline.messages import EnvEvidence
from esper.leyline.reports import SeedReport
from esper.leyline.stages import ADVANCEABLE_STAGES, Stage
from esper.leyline.streams import StreamPurpose, stream_seed
from esper.tamiyo.controllers.protocol import Choice, Situation

__all__ = ["PeriodicController", "RandomController", "WaitController"]

DEFAULT_PERIOD: Final = 8


@dataclass(eq=False, slots=True)
class WaitController:
    """Never grows anything: the host alone."""

    rules: ActionRules
    name: str = "wait"

    def begin_round(self, round_index: int) -> None:
        """Remember nothing, so forget nothing."""

    def choose(self, situation: Situation) -> Choice:
        """Wait."""
        return _choice_of([_wait(self.rules) for _ in situation.envs], situation)


@dataclass(eq=False, slots=True)
class RandomController:
    """Takes a legal op at random, then a legal slot, then every other head at random."""

    rules: ActionRules
    seed: int
    name: str = "random"
    _random: Random = field(default_factory=Random)

    def begin_round(self, round_index: int) -> None:
        """Start the round's own stream of numbers."""
        source = stream_seed(self.seed, purpose=StreamPurpose.ACTION, round=round_index)
        self._random = Random(source)

    def choose(self, situation: Situation) -> Choice:
        """Draw one action per env; quarantined envs draw too, so that the others do not notice."""
        actions = [self._draw(() if env is None else env.reports) for env in situation.envs]
        return _choice_of(actions, situation)

    def _draw(self, reports: tuple[SeedReport, ...]) -> ActionSpec:
        action = ActionSpec(
            slot_id=self.rules.slot_ids[0],
            blueprint=self._random.choice(BLUEPRINTS_BY_TOPOLOGY[self.rules.topology]),
            style=self._random.choice(list(Style)),
            tempo=self._random.choice(list(Tempo)),
            alpha_target=self._random.choice(list(AlphaTarget)),
            alpha_speed=self._random.choice(list(AlphaSpeed)),
            alpha_curve=self._random.choice(list(CurveChoice)),
        )
        slots_by_op = {
            op: [
                candidate
                for slot_id in self.rules.slot_ids
                for candidate in [_with(action, op, slot_id)]
                if is_legal(candidate, reports, self.rules)
            ]
            for op in Op
        }
        legal = [candidates for candidates in slots_by_op.values() if candidates]
        return self._random.choice(self._random.choice(legal))


@dataclass(eq=False, slots=True)
class PeriodicController:
    """Germinates every few steps in a fixed rotation and takes each seed as far as gates let it."""

    rules: ActionRules
    period: int = DEFAULT_PERIOD
    name: str = "periodic"

    def begin_round(self, round_index: int) -> None:
        """Remember nothing, so forget nothing."""

    def choose(self, situation: Situation) -> Choice:
        """Decide for each env by itself."""
        step = situation.step
        return _choice_of([self._for_env(env, step) for env in situation.envs], situation)

    def _for_env(self, env: EnvEvidence | None, step: int) -> ActionSpec:
        reports = () if env is None else env.reports
        candidates = [*self._carried_on(reports), *self._planted(step)]
        legal = (action for action in candidates if is_legal(action, reports, self.rules))
        return next(legal, _wait(self.rules))

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
        rotation = BLUEPRINTS_BY_TOPOLOGY[self.rules.topology]
        blueprint = rotation[(step // self.period) % len(rotation)]
        return [
            ActionSpec(op=Op.GERMINATE, slot_id=slot_id, blueprint=blueprint)
            for slot_id in self.rules.slot_ids
        ]


def _is_ready(report: SeedReport) -> bool:
    """Tell whether asking the gate makes sense: a ramp under way cannot pass it."""
    return report.stage is not Stage.BLENDING or report.alpha.is_at_target


def _wait(rules: ActionRules) -> ActionSpec:
    return ActionSpec(slot_id=rules.slot_ids[0])


def _with(action: ActionSpec, op: Op, slot_id: str) -> ActionSpec:
    return ActionSpec(
        op=op,
        slot_id=slot_id,
        blueprint=action.blueprint if op is Op.GERMINATE else Blueprint.NOOP,
        style=action.style,
        tempo=action.tempo,
        alpha_target=action.alpha_target,
        alpha_speed=action.alpha_speed,
        alpha_curve=action.alpha_curve,
    )


def _choice_of(actions: Sequence[ActionSpec], situation: Situation) -> Choice:
    kept = zip(actions, situation.envs, strict=True)
    return Choice(
        actions=tuple(action if env is not None else None for action, env in kept),
        details=(None,) * len(actions),
    )
