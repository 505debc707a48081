"""Searches for what a policy has to beat: the best fixed schedule, and the best threshold rule."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from esper.leyline.actions import BLUEPRINTS_BY_TOPOLOGY, Op, Style, Topology
from esper.leyline.config import Job
from esper.leyline.errors import UnreadableFileError, UsageError
from esper.leyline.extras import require_packages
from esper.leyline.schedules import Schedule, ScheduledAction, ThresholdRule, actions_by_step
from esper.nissa.storage.files import FileSystem, read_limited, write_atomically
from esper.runtime.datasets import TensorDataset
from esper.runtime.tasks import registered_task
from esper.simic.evaluation.arms import Arm, ArmKind
from esper.simic.evaluation.code_version import code_version
from esper.simic.evaluation.evaluation_round import evaluate_round
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import prepare_run
from esper.simic.training.contexts import is_drawn
from esper.tamiyo.controllers.open_loop import ScheduleController
from esper.tamiyo.controllers.protocol import Controller
from esper.tamiyo.controllers.threshold import ThresholdController
from esper.tolaria.event_loop import run_event_loop
from esper.tolaria.stopping import StopFlag

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import Trial

__all__ = ["Found", "Searcher"]

NUM_SEEDS: Final = 4
"""Training seeds that trials take turns on; the best are tried on as many others."""
FINAL_SHARE: Final = 0.25
"""Of the trials, those that choose among the best."""
FIRST_SEED: Final = 1
FINAL_SEED: Final = 101
"""Searches and policies are trained on low seeds; comparisons should take others."""
MAX_CONTRIBUTION_PP: Final = 20.0
MAX_TRIALS_BYTES: Final = 64 << 20
NOTHING: Final = "nothing"

Found: TypeAlias = Schedule | ThresholdRule
_Parameters: TypeAlias = dict[str, str | int | float]


class _Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What was tried on one seed, and its mean task return."""

    parameters: _Parameters
    seed: int
    task_return: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Searcher:
    """Searches by trials of one round each; finished trials are kept in a directory."""

    job: Job
    directory: Path
    num_episodes: int
    """Envs that all trials of one search have together."""
    stop: StopFlag
    dataset: TensorDataset

    def best_schedule(self, context: str | None = None) -> Schedule:
        """Return the best schedule found, over all contexts or for one."""
        found = self._best("schedule", _schedule_from, context)
        assert isinstance(found, tuple)
        return found

    def best_rule(self) -> ThresholdRule:
        """Return the best threshold rule found."""
        found = self._best("rule", _rule_from, None)
        assert isinstance(found, ThresholdRule)
        return found

    def resolve(self, arm: Arm) -> Arm:
        """Return an arm with what its search has found; other arms as they are."""
        if not arm.is_searched:
            return arm
        if arm.kind is ArmKind.RULE:
            return replace(arm, rule=self.best_rule(), is_searched=False)
        if arm.kind is ArmKind.SCHEDULE:
            return replace(arm, schedule=self.best_schedule(), is_searched=False)
        training = self.job.training
        contexts = registered_task(training.task).spec.contexts
        if not contexts:
            raise UsageError(
                f"{arm.name}: task {training.task} has no contexts; use schedule:search"
            )
        found = {
            context.name: self.best_schedule(context.name)
            for context in contexts
            if is_drawn(context, training)
        }
        return replace(arm, by_context=found, is_searched=False)

    def _best(self, kind: str, decode: "_Decode", context: str | None) -> Found:
        training = self.job.training
        if context is not None:
            training = msgspec.structs.replace(training, contexts={context: 1.0})
        job = msgspec.structs.replace(self.job, training=training)
        num_trials = max(self.num_episodes // training.n_envs, 2 * NUM_SEEDS)
        num_final = max(round(FINAL_SHARE * num_trials) // NUM_SEEDS, 1) * NUM_SEEDS
        history = _History.read(self.directory, kind, job, num_trials)
        tried: list[_Candidate] = []
        study = _study(training.seed)
        for index in range(num_trials - num_final):
            trial = study.ask()
            found = decode(job, trial)
            run = partial(self._task_return, job, found)
            value = history.value_of(trial.params, FIRST_SEED + index % NUM_SEEDS, run)
            study.tell(trial, value)
            tried.append(_Candidate(value, trial.params, found))
        # The best of many noisy values is too good: the last trials are on seeds of their own.
        ranked = sorted(tried, key=lambda candidate: candidate.value, reverse=True)
        finals = [
            self._tried_again(job, history, candidate)
            for candidate in ranked[: num_final // NUM_SEEDS]
        ]
        return max(finals, key=lambda candidate: candidate.value).found

    def _tried_again(self, job: Job, history: "_History", candidate: "_Candidate") -> "_Candidate":
        run = partial(self._task_return, job, candidate.found)
        seeds = range(FINAL_SEED, FINAL_SEED + NUM_SEEDS)
        values = [history.value_of(candidate.parameters, seed, run) for seed in seeds]
        return candidate._replace(value=fmean(values))

    def _task_return(self, job: Job, found: Found, seed: int) -> float:
        self.stop.checkpoint()
        training = msgspec.structs.replace(job.training, seed=seed)
        its_job = msgspec.structs.replace(job, training=training)
        setup = prepare_run(
            its_job, "wait", None, self.stop, parts=RunParts(), dataset=self.dataset
        )
        rules = setup.worker.rules
        controller: Controller = (
            ThresholdController(rules, found)
            if isinstance(found, ThresholdRule)
            else ScheduleController(rules, [actions_by_step(found)])
        )
        done = run_event_loop(
            partial(evaluate_round, replace(setup, controller=controller)), self.stop
        )
        return fmean(episode.task_return for episode in done.episodes.values())


_Decode: TypeAlias = "Callable[[Job, Trial], Found]"


class _Candidate(NamedTuple):
    """What was tried, and what it earned."""

    value: float
    parameters: _Parameters
    found: Found


@dataclass(eq=False, slots=True)
class _History:
    """The finished trials of a search in its file, so that an interrupted search goes on."""

    path: Path
    trials: list[_Trial]

    @classmethod
    def read(cls, directory: Path, kind: str, job: Job, num_trials: int) -> "_History":
        """Return the trials of a search; all that could change them is in the file's name."""
        training = msgspec.structs.replace(job.training, n_episodes=1)
        task = registered_task(training.task).spec
        encoded = msgspec.json.encode([task, training, kind, num_trials])
        digest = hashlib.sha256(encoded).hexdigest()[:16]
        path = directory / f"search-{kind}-{code_version()}-{digest}.json"
        if not path.exists():
            return cls(path, [])
        try:
            data = read_limited(path, MAX_TRIALS_BYTES, "trials of a search")
            return cls(path, msgspec.json.decode(data, type=list[_Trial]))
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            raise UnreadableFileError(path, f"{error}; remove it to search again") from None

    def value_of(
        self, parameters: Mapping[str, str | int | float], seed: int, run: Callable[[int], float]
    ) -> float:
        """Return what these parameters earn on a seed: as tried before, or tried now."""
        wanted = dict(parameters)
        for trial in self.trials:
            if trial.seed == seed and trial.parameters == wanted:
                return trial.task_return
        value = run(seed)
        self.trials.append(_Trial(parameters=wanted, seed=seed, task_return=value))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(FileSystem(), self.path, msgspec.json.encode(self.trials))
        except OSError as error:
            raise UsageError(f"{self.path}: cannot save the trial: {error.strerror}") from None
        return value


def _study(seed: int) -> "Study":
    """Return a seeded search, which asks for the same trials again if it is told the same."""
    require_packages("searching", "optuna")
    # Optional, and slow to import.
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=10)
    return optuna.create_study(direction="maximize", sampler=sampler)


def _schedule_from(job: Job, trial: "Trial") -> Schedule:
    """Draw a schedule: for each slot what is planted in which step, and when it is kept."""
    training, actions = job.training, dict[int, ScheduledAction]()
    last = training.max_epochs - 1
    for slot in training.slots:
        blueprint = trial.suggest_categorical(f"{slot} blueprint", [NOTHING, *_blueprints(job)])
        style = trial.suggest_categorical(f"{slot} style", _styles())
        planted = trial.suggest_int(f"{slot} step", 0, last)
        kept = trial.suggest_int(f"{slot} kept after", 1, training.max_epochs)
        if blueprint == NOTHING:
            continue
        step = _next_free(planted, actions, last)
        _put(actions, step, slot, Op.GERMINATE, blueprint=blueprint, style=style)
        if step is not None:
            _put(actions, _next_free(step + kept, actions, last), slot, Op.FOSSILIZE)
    return tuple(actions[step] for step in sorted(actions))


def _next_free(step: int, actions: Mapping[int, ScheduledAction], last: int) -> int | None:
    """Return the first step without an action from a step on; None if there is none."""
    return next((later for later in range(step, last + 1) if later not in actions), None)


def _put(
    actions: dict[int, ScheduledAction], step: int | None, slot: str, op: Op, **heads: str
) -> None:
    if step is not None:
        actions[step] = ScheduledAction(step=step, op=op.name.lower(), slot=slot, **heads)


def _rule_from(job: Job, trial: "Trial") -> ThresholdRule:
    """Draw a threshold rule."""
    training = job.training
    last, most = training.max_epochs - 1, MAX_CONTRIBUTION_PP
    num_slots = trial.suggest_int("number of slots", 1, len(training.slots))
    first_slot = trial.suggest_int("first slot", 0, len(training.slots) - 1)
    order = (*training.slots[first_slot:], *training.slots[:first_slot])
    return ThresholdRule(
        slots=order[:num_slots],
        blueprint=trial.suggest_categorical("blueprint", _blueprints(job)),
        style=trial.suggest_categorical("style", _styles()),
        first_step=trial.suggest_int("first step", 0, last),
        last_step=trial.suggest_int("last step", 0, last),
        after_steps=trial.suggest_int("judged after", 1, training.max_epochs),
        keep_above_pp=trial.suggest_float("kept above", -most, most),
        prune_below_pp=trial.suggest_float("pruned below", -most, most),
    )


def _blueprints(job: Job) -> list[str]:
    topology: Topology = registered_task(job.training.task).spec.host.topology
    return [*map(str, BLUEPRINTS_BY_TOPOLOGY[topology])]


def _styles() -> list[str]:
    return [style.name.lower() for style in Style]
