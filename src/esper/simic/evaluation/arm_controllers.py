"""Controllers of the arms that follow a schedule, a rule or the counts of another run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from esper.leyline.actions import Op
from esper.leyline.comparison import ArmRun
from esper.leyline.schedules import Schedule, actions_by_step
from esper.simic.evaluation.arms import Arm, ArmKind
from esper.simic.evaluation.evaluation_round import ROUND_INDEX
from esper.simic.training.assembly.run_setup import RunSetup
from esper.simic.training.contexts import context_of
from esper.tamiyo.controllers.open_loop import MatchedController, ScheduleController
from esper.tamiyo.controllers.threshold import ThresholdController

__all__ = ["with_controller_of", "with_matched_counts", "with_schedules"]


def with_controller_of(setup: RunSetup, arm: Arm) -> RunSetup:
    """Return the setup with the schedule or rule that an arm has, if it has any."""
    training = setup.job.training
    if arm.rule is not None:
        return replace(setup, controller=ThresholdController(setup.worker.rules, arm.rule))
    if arm.kind is ArmKind.SCHEDULE:
        return with_schedules(setup, [arm.schedule])
    if arm.kind is ArmKind.ORACLE:
        contexts = [
            context_of(setup.task, training, ROUND_INDEX, env_id)
            for env_id in range(training.n_envs)
        ]
        return with_schedules(setup, [arm.by_context[item.name] for item in contexts if item])
    return setup


def with_schedules(setup: RunSetup, schedules: Sequence[Schedule]) -> RunSetup:
    """Return the setup with one schedule for all envs, or one for each."""
    actions = [actions_by_step(schedule) for schedule in schedules]
    return replace(setup, controller=ScheduleController(setup.worker.rules, actions))


def with_matched_counts(setup: RunSetup, model: ArmRun) -> RunSetup:
    """Return the setup with a controller that acts at random, as often as a run of a policy did."""
    training = setup.job.training
    acts: list[Counter[Op]] = [Counter() for _ in range(training.n_envs)]
    for env in model.envs:
        acts[env.env_id].update(action.op for action in actions_by_step(env.actions).values())
    return replace(
        setup,
        controller=MatchedController(setup.worker.rules, training.seed, training.max_epochs, acts),
    )
