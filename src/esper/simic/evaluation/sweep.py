"""Sweeps: searches configurations with Optuna; a trial is a run for each of some seeds."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from esper.leyline.config import Job
from esper.leyline.errors import (
    ConfigError,
    EsperError,
    ExitCode,
    InterruptedRunError,
    UsageError,
)
from esper.leyline.extras import require_packages
from esper.leyline.jobs import Layer, merge_job, nested_layer
from esper.leyline.payloads import BatchEpochCompleted
from esper.leyline.sweeps import Dimension, Setting, SweepReport, SweepSpec, TrialRow
from esper.leyline.telemetry import Event
from esper.runtime.tasks import tasks_for
from esper.simic.evaluation.trial_queue import (
    REASON,
    RUNS,
    TrialQueue,
    open_queue,
    row_of,
    state_of,
)
from esper.simic.training.vectorized import run_job
from esper.tolaria.stopping import StopFlag
from esper.tolaria.supervisor import stop_signals

if TYPE_CHECKING:
    import optuna

__all__ = ["run_sweep"]


_Named = Sequence[tuple[str, Layer]]


def run_sweep(spec: SweepSpec, layers: _Named, note: Callable[[TrialRow], object]) -> SweepReport:
    """Run the trials that the study still lacks, and return all of them.

    Args:
        spec: what is searched.
        layers: the configuration that the settings of a trial are laid over.
        note: called with each trial when it has ended.
    """
    require_packages("sweep", "optuna")
    _check_space(spec, layers)
    stop = StopFlag()
    # Each run handles signals itself; those that arrive between two runs are handled here.
    with open_queue(spec) as queue, stop_signals(stop):
        try:
            _run_trials(queue, layers, stop, note)
        except InterruptedRunError:
            raise InterruptedRunError(
                f"sweep {spec.name}: {queue.num_finished} of {spec.trials} trials are finished; "
                "the same command continues"
            ) from None
        return SweepReport(name=spec.name, storage=spec.location, trials=_ranking(queue.study))


def _run_trials(
    queue: TrialQueue, layers: _Named, stop: StopFlag, note: Callable[[TrialRow], object]
) -> None:
    study = queue.study
    while True:
        trial = queue.next_trial(stop, note)
        if trial is None:
            return
        _run_trial(study, trial, queue.spec, layers, stop)
        note(row_of(study.trials[trial.number]))


def _check_space(spec: SweepSpec, layers: _Named) -> None:
    """Raise an error if a key cannot be configured, or has no value that can."""
    for key, dimension in spec.space.items():
        errors = [error for it in dimension.ends() if (error := _error_of(layers, key, it))]
        # One that does not fit the rest may fit other settings of a trial.
        if len(errors) == len(dimension.ends()):
            raise errors[0]


def _error_of(layers: _Named, key: str, value: Setting) -> ConfigError | None:
    try:
        merge_job(*layers, ("sweep.space", nested_layer(key, value)), tasks=tasks_for(layers))
    except ConfigError as error:
        return error
    return None


def _run_trial(
    study: "optuna.Study", trial: "optuna.Trial", spec: SweepSpec, layers: _Named, stop: StopFlag
) -> None:
    settings = {key: _draw(trial, key, it) for key, it in spec.space.items()}
    watch = _TrialWatch(trial, spec)
    try:
        for index in range(spec.seeds):
            stop.checkpoint()
            job = _job(spec, layers, settings, trial.number, index)
            watch.begin(job)
            result = run_job(job, on_event=watch.note, shutdown_event=watch.stop)
            watch.end(result.run_dir)
            if result.is_stop_requested and not watch.stop.is_set():
                stop.set("a stop was requested at the end of a run")
    except InterruptedRunError:
        if watch.stop.is_set():
            study.tell(trial, state=state_of("PRUNED"))
            return
        raise
    except EsperError as error:
        if error.exit_code not in (ExitCode.FAILED, ExitCode.USAGE):
            raise
        trial.set_user_attr(REASON, str(error))
        study.tell(trial, state=state_of("FAIL"))
        return
    study.tell(trial, fmean(watch.values))


def _draw(trial: "optuna.Trial", key: str, dimension: Dimension) -> Setting:
    low, high, step = dimension.low, dimension.high, dimension.step
    value: Setting
    if dimension.choices:
        value = trial.suggest_categorical(key, dimension.choices)
        return value
    assert low is not None
    assert high is not None
    if isinstance(low, int) and isinstance(high, int) and isinstance(step, int | None):
        value = trial.suggest_int(key, low, high, step=step or 1, log=dimension.log)
    else:
        value = trial.suggest_float(key, low, high, step=step, log=dimension.log)
    return value


def _job(
    spec: SweepSpec, layers: _Named, settings: Mapping[str, Setting], number: int, index: int
) -> Job:
    """Return the job of a trial's run; the seeds are the same for all trials."""
    drawn = [("sweep.space", nested_layer(key, value)) for key, value in settings.items()]
    base, _ = merge_job(*layers, *drawn, tasks=tasks_for(layers))
    own: Layer = {
        "training": {"seed": base.training.seed + index},
        "run": {"tags": {"sweep": spec.name, "trial": str(number)}},
    }
    job, _ = merge_job(*layers, *drawn, ("sweep", own), tasks=tasks_for(layers))
    return job


@dataclass(eq=False, slots=True)
class _TrialWatch:
    """Follows the runs of a trial, reports their returns and stops the run if it is pruned."""

    trial: "optuna.Trial"
    spec: SweepSpec
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the trial is pruned."""
    values: list[float] = field(default_factory=list)
    """Of the runs that have ended."""
    _returns: list[float] = field(default_factory=list)
    _num_rounds_before: int = 0
    _run_ids: list[str] = field(default_factory=list)

    def begin(self, job: Job) -> None:
        """Follow another run."""
        self._returns = []
        self._num_rounds_before = job.training.n_episodes * len(self.values)

    def note(self, event: Event) -> None:
        """Note the run, and report the return so far at the end of a round."""
        if event.seq == 0:
            self._run_ids.append(event.run_id)
            self.trial.set_user_attr(RUNS, self._run_ids)
        if not isinstance(event.data, BatchEpochCompleted):
            return
        self._returns.append(event.data.mean_task_return or 0.0)
        so_far = fmean([*self.values, self._value()])
        self.trial.report(so_far, self._num_rounds_before + len(self._returns))
        if self.trial.should_prune():
            self.stop.set()

    def end(self, run_dir: Path) -> None:
        """Note what the run is worth."""
        if not self._returns:
            raise UsageError(
                f"{run_dir}: no finished round in its log; sweeps need the telemetry level minimal "
                "or above"
            )
        self.values.append(self._value())

    def _value(self) -> float:
        return fmean(self._returns[-self.spec.rounds :])


def _ranking(study: "optuna.Study") -> tuple[TrialRow, ...]:
    rows = [row_of(trial) for trial in study.trials if trial.state.name != "WAITING"]
    order = {"complete": 0, "pruned": 1}
    return tuple(sorted(rows, key=lambda row: (order.get(row.state, 2), -(row.task_return or 0.0))))
