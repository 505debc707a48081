"""A rule with thresholds: plant in turn, keep what contributes, remove what does not."""

from collections.abc import Iterator
from dataclasses import dataclass

from esper.leyline.actions import ActionSpec, AlphaTarget, Op
from esper.leyline.legality import ActionRules, is_legal
from esper.leyline.messages import EnvEvidence
from esper.leyline.reports import SeedReport
from esper.leyline.schedules import (
    ThresholdRule,
    blueprint_named,
    style_named,
)
from esper.tamiyo.controllers.baselines import choice_of, wait_in
from esper.tamiyo.controllers.protocol import Choice, Situation

__all__ = ["ThresholdController"]


@dataclass(eq=False, slots=True)
class ThresholdController:
    """Decides each env by a rule's thresholds, and by nothing that it remembers."""

    rules: ActionRules
    rule: ThresholdRule
    name: str = "rule"

    def begin_round(self, round_index: int) -> None:
        """Do nothing: there is no state to reset."""

    def choose(self, situation: Situation) -> Choice:
        """Choose each env's action independently."""
        return choice_of([self._for_env(env, situation.step) for env in situation.envs], situation)

    def _for_env(self, env: EnvEvidence | None, step: int) -> ActionSpec:
        reports = () if env is None else env.reports
        wanted = (*self._judged(reports), *self._planted(step), *self._whole(reports, step))
        legal = (action for action in wanted if is_legal(action, reports, self.rules))
        return next(legal, wait_in(self.rules))

    def _judged(self, reports: tuple[SeedReport, ...]) -> Iterator[ActionSpec]:
        """Yield what the contributions of old enough seeds ask for, removal first."""
        old = [
            (report.slot_id, report.contribution_pp)
            for report in reports
            if report.age_steps >= self.rule.after_steps and report.contribution_pp is not None
        ]
        for slot_id, contribution_pp in old:
            if contribution_pp < self.rule.prune_below_pp:
                yield ActionSpec(op=Op.PRUNE, slot_id=slot_id)
        for slot_id, contribution_pp in old:
            if contribution_pp >= self.rule.keep_above_pp:
                yield ActionSpec(op=Op.FOSSILIZE, slot_id=slot_id)

    def _planted(self, step: int) -> Iterator[ActionSpec]:
        if not self.rule.first_step <= step <= self.rule.last_step:
            return
        for slot_id in self.rule.slots:
            yield ActionSpec(
                op=Op.GERMINATE,
                slot_id=slot_id,
                blueprint=blueprint_named(self.rule.blueprint),
                style=style_named(self.rule.style),
                alpha_target=AlphaTarget.FULL if self._is_whole(step) else AlphaTarget.HALF,
            )

    def _whole(self, reports: tuple[SeedReport, ...], step: int) -> Iterator[ActionSpec]:
        """Yield what brings seeds that still run in part to full alpha."""
        if not self._is_whole(step):
            return
        for report in reports:
            if report.alpha.target not in (0.0, AlphaTarget.FULL.alpha):
                yield ActionSpec(
                    op=Op.SET_ALPHA_TARGET, slot_id=report.slot_id, alpha_target=AlphaTarget.FULL
                )

    def _is_whole(self, step: int) -> bool:
        return step >= self.rule.whole_from
