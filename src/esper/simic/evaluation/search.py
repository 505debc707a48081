"""Searches for what a policy has to beat: the best fixed schedule, and the best threshold rule."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from esper.leyline.actions import BLUEPRINTS_BY_TOPOLOGY, AlphaTarget, Op, Style, Topology
from esper.leyline.config import Job
from esper.leyline.errors import UnreadableFileError, UsageError
from esper.leyline.extras import require_packages
from esper.leyline.jobs import merge_job
from esper.leyline.schedules import Schedule, ScheduledAction, ThresholdRule, actions_by_step
from esper.nissa.storage.files import FileSystem, read_limited, write_atomically
from esper.runtime.datasets import TensorDataset
from esper.runtime.tasks import all_tasks, registered_task
from esper.simic.evaluation.arms import Arm, ArmKind
from esper.simic.evaluation.evaluation_round import evaluate_round
from esper.simic.training.assembly.code_version import code_version
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

__all__ = ["Found", "Search", "Searcher", "first_job"]

NUM_SEEDS: Final = 4
"""Training seeds that trials take turns on; the best are tried on as many others."""
FINAL_SHARE: Final = 0.25
"""Of the trials, those that choose among the best."""
FIRST_ENVS: Final = 64
"""Of a trial on a task that is searched first."""
FIRST_SEED: Final = 1
FINAL_SEED: Final = 101
"""Searches and policies are trained on low seeds; comparisons should take others."""
MAX_CONTRIBUTION_PP: Final = 20.0
MAX_TRIALS_BYTES: Final = 64 << 20
NOTHING: Final = "nothing"
HALF: Final = AlphaTarget.HALF.name.lower()
WHOLE: Final = AlphaTarget.FULL.name.lower()

Found: TypeAlias = Schedule | ThresholdRule
_Parameters: TypeAlias = dict[str, str | int | float]


class Search(NamedTuple):
    """What is searched for."""

    kind: ArmKind
    """A schedule or a rule."""
    context: str | None = None
    """The only context that it is for; None for all."""


class _Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What was tried on one seed, and its mean task return."""

    parameters: _Parameters
    seed: int
    task_return: float


def first_job(job: Job, task: str) -> Job:
    """Return the job of searching another task first, in the contexts of both.

    Args:
        job: the job of the comparison.
        task: a cheaper task that has its slots, such as `probe:contexts`.
    """
    its_contexts = registered_task(job.training.task).spec.contexts
    drawn = {item.name: item.weight for item in its_contexts if is_drawn(item, job.training)}
    other = registered_task(task).spec
    weights = {**drawn, **job.training.contexts}
    shared = {item.name: weights[item.name] for item in other.contexts if item.name in weights}
    same = {"slots": job.training.slots, "max_epochs": job.training.max_epochs}
    layer = {"training": {"task": task, "n_envs": FIRST_ENVS, "contexts": shared, **same}}
    found, _ = merge_job(("--search-first", layer), tasks=all_tasks())
    return msgspec.structs.replace(found, run=job.run)


@dataclass(frozen=True, kw_only=True, slots=True)
class Searcher:
    """Searches by trials of one round each; finished trials are kept in a directory."""

    job: Job
    directory: Path
    num_episodes: int
    """Envs that all trials of one search have together."""
    stop: StopFlag
    dataset: TensorDataset
    first: "Searcher | None" = None
    """Searches a cheaper task before; its best is tried first, and again among the best."""
    _found: dict[Search, "_Candidate"] = field(default_factory=dict)

    def searches_of(self, arm: Arm) -> tuple[Search, ...]:
        """Return what has to be found for an arm."""
        if not arm.is_searched:
            return ()
        if arm.kind is not ArmKind.ORACLE:
            return (Search(arm.kind),)
        training = self.job.training
        contexts = registered_task(training.task).spec.contexts
        if not contexts:
            raise UsageError(
                f"{arm.name}: task {training.task} has no contexts; use schedule:search"
            )
        drawn = (context.name for context in contexts if is_drawn(context, training))
        return tuple(Search(ArmKind.SCHEDULE, name) for name in drawn)

    def resolve(self, arm: Arm) -> Arm:
        """Return an arm with what its searches have found; other arms as they are."""
        if not arm.is_searched:
            return arm
        found = {search: self.find(search) for search in self.searches_of(arm)}
        if arm.kind is ArmKind.ORACLE:
            by_context = {
                str(search.context): item
                for search, item in found.items()
                if not isinstance(item, ThresholdRule)
            }
            return replace(arm, by_context=by_context, is_searched=False)
        (item,) = found.values()
        if isinstance(item, ThresholdRule):
            return replace(arm, rule=item, is_searched=False)
        return replace(arm, schedule=item, is_searched=False)

    def find(self, search: Search) -> Found:
        """Return the best schedule or rule that a search finds; it is made once."""
        return self._best(search).found

    def _best(self, search: Search) -> "_Candidate":
        if search not in self._found:
            origin = None if self.first is None else self.first._best(search).parameters
            self._found[search] = self._searched(search, origin)
        return self._found[search]

    def _searched(self, search: Search, origin: "_Parameters | None") -> "_Candidate":
        training = self.job.training
        if search.context is not None:
            training = msgspec.structs.replace(training, contexts={search.context: 1.0})
        job = msgspec.structs.replace(self.job, training=training)
        num_trials = max(self.num_episodes // training.n_envs, 2 * NUM_SEEDS)
        num_final = max(round(FINAL_SHARE * num_trials) // NUM_SEEDS, 1) * NUM_SEEDS
        history = _History.read(self.directory, (search, origin), job, num_trials)
        decode = _rule_from if search.kind is ArmKind.RULE else _schedule_from
        tried: list[_Candidate] = []
        study = _study(training.seed)
        if origin is not None:
            study.enqueue_trial(origin)
        for index in range(num_trials - num_final):
            trial = study.ask()
            found = decode(job, trial)  # draws the trial's parameters
            candidate = _Candidate(0.0, trial.params, found)
            value = self._gain(job, history, candidate, FIRST_SEED + index % NUM_SEEDS)
            study.tell(trial, value)
            tried.append(candidate._replace(value=value))
        # The best of many noisy values is too good: the last trials are on seeds of their own.
        ranked = sorted(tried, key=lambda candidate: candidate.value, reverse=True)
        finalists = ranked[: num_final // NUM_SEEDS]
        if origin is not None and tried[0] not in finalists:
            finalists = [*finalists[:-1], tried[0]]
        return max(
            (self._tried_again(job, history, candidate) for candidate in finalists),
            key=lambda candidate: candidate.value,
        )

    def _tried_again(self, job: Job, history: "_History", candidate: "_Candidate") -> "_Candidate":
        seeds = range(FINAL_SEED, FINAL_SEED + NUM_SEEDS)
        values = [self._gain(job, history, candidate, seed) for seed in seeds]
        return candidate._replace(value=fmean(values))

    def _gain(self, job: Job, history: "_History", candidate: "_Candidate", seed: int) -> float:
        """Return the mean task return under a seed beyond that of waiting in the same envs.

        What hosts reach alone differs more between contexts than most candidates do.
        """
        run = partial(self._task_return, job, candidate.found)
        waiting = history.value_of({}, seed, partial(self._task_return, job, ()))
        return history.value_of(candidate.parameters, seed, run) - waiting

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
    def read(
        cls, directory: Path, what: tuple[Search, _Parameters | None], job: Job, num_trials: int
    ) -> "_History":
        """Return the trials of a search; all that could change them is in the file's name."""
        training = msgspec.structs.replace(job.training, n_episodes=1)
        task = registered_task(training.task).spec
        encoded = msgspec.json.encode([task, training, what, num_trials])
        digest = hashlib.sha256(encoded).hexdigest()[:16]
        path = directory / f"search-{what[0].kind}-{code_version()}-{digest}.json"
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
    """Draw a schedule: for each slot what is planted when, and when it is whole and kept."""
    training, actions = job.training, dict[int, ScheduledAction]()
    last, planted = training.max_epochs - 1, list[str]()
    whole_from = trial.suggest_int("whole from", 0, last)
    for slot in training.slots:
        blueprint = trial.suggest_categorical(f"{slot} blueprint", [NOTHING, *_blueprints(job)])
        style = trial.suggest_categorical(f"{slot} style", _styles())
        wanted = trial.suggest_int(f"{slot} step", 0, last)
        kept = trial.suggest_int(f"{slot} kept after", 1, training.max_epochs)
        step = None if blueprint == NOTHING else _next_free(wanted, actions, last)
        if step is None:
            continue
        target = WHOLE if step >= whole_from else HALF
        heads = {"blueprint": blueprint, "style": style, "alpha_target": target}
        _put(actions, step, slot, Op.GERMINATE, **heads)
        _put(actions, _next_free(step + kept, actions, last), slot, Op.FOSSILIZE)
        if target == HALF:
            planted.append(slot)
    for slot in planted:
        step = _next_free(whole_from, actions, last)
        _put(actions, step, slot, Op.SET_ALPHA_TARGET, alpha_target=WHOLE)
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
        whole_from=trial.suggest_int("whole from", 0, last),
    )


def _blueprints(job: Job) -> list[str]:
    topology: Topology = registered_task(job.training.task).spec.host.topology
    return [*map(str, BLUEPRINTS_BY_TOPOLOGY[topology])]


def _styles() -> list[str]:
    return [style.name.lower() for style in Style]
