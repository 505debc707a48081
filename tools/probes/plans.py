"""The best rule and the best schedule of the probes that model real jobs, found by search.

Their hidden draws are too many for the exhaustive search. What is searched instead are plans: what
to plant in each slot, when to judge a seed by its contribution, and how little of it to run until
the last steps, as rent is paid for the share of a seed that is blended in. A plan that judges
nothing is a schedule.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import fmean
from typing import Final

from esper.leyline.actions import (
    BLUEPRINTS_BY_TOPOLOGY,
    ActionSpec,
    AlphaTarget,
    Op,
    Style,
    Tempo,
    Topology,
)
from esper.leyline.legality import ActionRules, is_legal
from esper.leyline.messages import EnvEvidence
from esper.leyline.reports import SeedReport
from esper.simic.training.assembly.machine import one_thread_per_worker
from esper.tamiyo.controllers.baselines import choice_of, wait_in
from esper.tamiyo.controllers.protocol import Choice, Situation
from esper.tolaria.event_loop import run_event_loop
from tools.probes.learning import HELD_OUT_SEEDS, job_of, play_round, setup_of

__all__ = ["PLANNED", "Plan", "PlanController", "best_plan", "mean_return"]

PLANNED: Final = frozenset({"growth", "contexts"})
"""The probes that plans are for."""
SEARCH_SEEDS: Final = (2000, 2001)
"""Neither those that policies are trained on nor those that they are played on."""
SEARCH_ENVS: Final = 64
"""Under each of them."""
MAX_PASSES: Final = 3
NEVER: Final = 99


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to plant, when to remove it, and how much of it to run."""

    blueprints: tuple[str | None, ...]
    """By slot; None leaves it empty."""
    last_step: int = 26
    """Of planting."""
    judged_at_age: int = 6
    prune_below_pp: float = 1.0
    whole_from: int = 0
    """Step from which seeds run at full alpha; at half of it before."""


@dataclass(eq=False, slots=True)
class PlanController:
    """Carries out a plan in every env."""

    rules: ActionRules
    plan: Plan
    name: str = "plan"

    def begin_round(self, round_index: int) -> None:
        """Do nothing: there is no state to reset."""

    def choose(self, situation: Situation) -> Choice:
        """Choose each env's action independently."""
        return choice_of([self._for_env(env, situation.step) for env in situation.envs], situation)

    def _for_env(self, env: EnvEvidence | None, step: int) -> ActionSpec:
        reports = () if env is None else env.reports
        wanted = (*self._removals(reports), *self._plantings(step), *self._retargets(reports, step))
        legal = (action for action in wanted if is_legal(action, reports, self.rules))
        return next(legal, wait_in(self.rules))

    def _removals(self, reports: Sequence[SeedReport]) -> Iterator[ActionSpec]:
        for report in reports:
            is_judged = report.age_steps >= self.plan.judged_at_age
            contribution = report.contribution_pp
            if is_judged and contribution is not None and contribution < self.plan.prune_below_pp:
                yield ActionSpec(op=Op.PRUNE, slot_id=report.slot_id)

    def _plantings(self, step: int) -> Iterator[ActionSpec]:
        if step > self.plan.last_step:
            return
        for slot_id, blueprint in zip(self.rules.slot_ids, self.plan.blueprints, strict=True):
            if blueprint is not None:
                yield ActionSpec(
                    op=Op.GERMINATE,
                    slot_id=slot_id,
                    blueprint=blueprint,
                    style=Style.LINEAR_ADD,
                    tempo=Tempo.FAST,
                    alpha_target=self._target(step),
                )

    def _retargets(self, reports: Sequence[SeedReport], step: int) -> Iterator[ActionSpec]:
        target = self._target(step)
        for report in reports:
            if report.alpha.target not in (target.alpha, 0.0):
                yield ActionSpec(
                    op=Op.SET_ALPHA_TARGET, slot_id=report.slot_id, alpha_target=target
                )

    def _target(self, step: int) -> AlphaTarget:
        return AlphaTarget.FULL if step >= self.plan.whole_from else AlphaTarget.HALF


def mean_return(
    name: str, plan: Plan, seeds: Sequence[int] = HELD_OUT_SEEDS, **training: object
) -> float:
    """Return what a plan earns on a probe, on average over all envs of these seeds."""
    returns: list[float] = []
    for seed in seeds:
        setup = setup_of(job_of(name, seed=seed, **training))
        setup = replace(setup, controller=PlanController(setup.worker.rules, plan))
        with one_thread_per_worker():
            done = run_event_loop(partial(play_round, setup), setup.worker.stop)
        returns += [episode.task_return for step in done for episode in step.record.ended]
    return fmean(returns)


@cache
def best_plan(name: str, *, is_open_loop: bool = False) -> Plan:
    """Return the best plan found by changing one choice at a time, until none is better."""
    value = partial(mean_return, name, seeds=SEARCH_SEEDS, n_envs=SEARCH_ENVS)
    start = Plan(blueprints=("conv_light",) * 3, judged_at_age=NEVER if is_open_loop else 6)
    best, earned = start, value(start)
    for _ in range(MAX_PASSES):
        before = best
        for change in _changes(is_open_loop=is_open_loop):
            for plan in change(best):
                if plan != best and (found := value(plan)) > earned:
                    best, earned = plan, found
        if best == before:
            break
    return best


_Change = Callable[[Plan], Iterator[Plan]]


def _changes(*, is_open_loop: bool) -> Iterator[_Change]:
    """Yield what varies one choice of a plan each."""
    yield from (partial(_other_blueprints, slot) for slot in range(3))
    yield partial(_other_values, "whole_from", (0, 28, 32, 34, 36, NEVER))
    if not is_open_loop:
        yield partial(_other_values, "prune_below_pp", (0.0, 1.0, 2.0, 4.0, 8.0))
        yield partial(_other_values, "judged_at_age", (6, 7, 8, 10))
        yield partial(_other_values, "last_step", (14, 18, 22, 26, 30))


def _other_blueprints(slot: int, plan: Plan) -> Iterator[Plan]:
    for blueprint in (None, *map(str, BLUEPRINTS_BY_TOPOLOGY[Topology.CNN])):
        changed = (*plan.blueprints[:slot], blueprint, *plan.blueprints[slot + 1 :])
        yield replace(plan, blueprints=changed)


def _other_values(field: str, values: Sequence[float], plan: Plan) -> Iterator[Plan]:
    for value in values:
        yield replace(plan, **{field: value})
