"""The trials of a study that several commands search: which one is next, and which were lost.

Each command holds a lock on a file of its own for as long as it lives, and each trial names the
command that runs it: the trial of a command that was killed is one whose file nobody holds.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from esper.leyline.errors import UsageError, reason_of
from esper.leyline.platforms import lock_file, wait_for_lock
from esper.leyline.streams import StreamPurpose, stream_seed
from esper.leyline.sweeps import SweepSpec, TrialRow
from esper.tolaria.stopping import StopFlag

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

__all__ = ["REASON", "RUNS", "TrialQueue", "open_queue", "row_of", "state_of"]

REASON: Final = "reason"
"""User attribute of a trial that failed by itself; one that was interrupted has none."""
RUNS: Final = "runs"
"""User attribute with the ids of a trial's runs."""
COMMAND: Final = "command"
"""User attribute that names the command which runs a trial."""
_STATES: Final = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
MAX_SAMPLER_SEED: Final = 1 << 32
"""Seeds of Optuna's samplers are below it."""
POLL_S: Final = 0.5
"""Between two looks at the trials of others."""


@contextlib.contextmanager
def open_queue(spec: SweepSpec) -> Iterator["TrialQueue"]:
    """Open the study, and take part in searching it until the end of the block."""
    # Optuna has a lock of its own beside a journal, whose name ends in `.lock`.
    mutex = Path(f"{spec.name if '://' in spec.location else spec.location}.in-use")
    own = mutex.with_name(f"{mutex.name}-{secrets.token_hex(4)}")
    with contextlib.ExitStack() as stack:
        with _held(mutex):
            lock_file(stack.enter_context(own.open("wb")).fileno())
            study = _study_of(spec)
        queue = TrialQueue(study, spec, mutex, own)
        stack.callback(queue.leave)
        yield queue


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Keep other commands from changing who runs what. The file stays: others may wait for it."""
    try:
        file = path.open("wb")
    except OSError as error:
        raise UsageError(f"sweep: cannot write {path}: {error.strerror}") from None
    with file:
        wait_for_lock(file.fileno())
        yield


@dataclass(eq=False, slots=True)
class TrialQueue:
    """Hands out the trials that a study still lacks."""

    study: "optuna.Study"
    spec: SweepSpec
    _mutex: Path
    _own: Path
    """Locked by this command."""
    _awaited: set[int] = field(default_factory=set)

    def next_trial(
        self, stop: StopFlag, note: Callable[[TrialRow], object]
    ) -> "optuna.Trial | None":
        """Wait for a trial to run; return None when the study has all of its trials.

        Args:
            stop: interrupts the wait.
            note: called with the trials of others that were lost, or that are waited for.
        """
        while True:
            with _held(self._mutex):
                lost = self._fail_lost()
                running = self._running_elsewhere()
                num_missing = self.spec.trials - self.num_finished - len(running)
                is_over = num_missing <= 0 and not running
                if not is_over:
                    stop.checkpoint()
                trial = self._taken() if num_missing > 0 else None
            for other in lost:
                note(row_of(self.study.trials[other.number]))
            if is_over or trial is not None:
                return trial
            for other in running:
                if other.number not in self._awaited:
                    self._awaited.add(other.number)
                    note(row_of(other))
            time.sleep(POLL_S)

    @property
    def num_finished(self) -> int:
        """Return the number of trials with a result, or that failed for a reason of their own."""
        return sum(
            trial.state.name in ("COMPLETE", "PRUNED") or REASON in trial.user_attrs
            for trial in self.study.trials
        )

    def leave(self) -> None:
        """Put back what this command has not finished."""
        with _held(self._mutex):
            for trial in self._running():
                if trial.user_attrs[COMMAND] == self._own.name:
                    _put_back(self.study, trial)
            self._own.unlink(missing_ok=True)

    def _taken(self) -> "optuna.Trial":
        """Take a trial that waits, or a new one."""
        # Imported here because Optuna is an optional dependency.
        import optuna

        owner = {COMMAND: self._own.name}
        if not self._in_state("WAITING"):
            # Not by ask() alone: for a moment, the trial would belong to nobody.
            self.study.enqueue_trial({}, user_attrs=owner)
        # With one seed for all, commands that begin together would draw the same settings.
        number = self._in_state("WAITING")[0].number
        seed = stream_seed(self.spec.sampler_seed, purpose=StreamPurpose.TRIAL, round=number)
        self.study.sampler = optuna.samplers.TPESampler(seed=seed % MAX_SAMPLER_SEED)
        trial = self.study.ask()
        trial.set_user_attr(COMMAND, owner[COMMAND])
        return trial

    def _running(self) -> Sequence["FrozenTrial"]:
        """Return the running trials of commands like this one."""
        return [trial for trial in self._in_state("RUNNING") if COMMAND in trial.user_attrs]

    def _in_state(self, name: str) -> Sequence["FrozenTrial"]:
        found: list[FrozenTrial] = self.study.get_trials(deepcopy=False, states=(state_of(name),))
        return found

    def _running_elsewhere(self) -> Sequence["FrozenTrial"]:
        """Return the trials of commands beside this one; those of other directories are unknown."""
        own = self._own
        return [it for it in self._running() if own.with_name(it.user_attrs[COMMAND]).exists()]

    def _fail_lost(self) -> Sequence["FrozenTrial"]:
        """Put back the trials of commands that were killed, and return those trials."""
        files = self._own.parent.iterdir()
        marks = [path for path in files if path.name.startswith(f"{self._mutex.name}-")]
        gone = {path.name: path for path in marks if _is_abandoned(path)}
        lost = [trial for trial in self._running() if trial.user_attrs[COMMAND] in gone]
        for trial in lost:
            _put_back(self.study, trial)
        for path in gone.values():
            path.unlink()
        return lost


def _put_back(study: "optuna.Study", trial: "FrozenTrial") -> None:
    """End a trial without a result, and let one with the same settings be run."""
    study.tell(trial.number, state=state_of("FAIL"))
    # Whoever takes it writes another name here.
    study.enqueue_trial(trial.params, user_attrs={COMMAND: trial.user_attrs[COMMAND]})


def row_of(trial: "FrozenTrial") -> TrialRow:
    """Describe a trial."""
    last = (
        trial.intermediate_values[max(trial.intermediate_values)]
        if (trial.intermediate_values)
        else None
    )
    return TrialRow(
        number=trial.number,
        state=_STATES.get(trial.state.name, "running"),
        task_return=last if trial.value is None else trial.value,
        settings=dict(trial.params),
        runs=tuple(trial.user_attrs.get(RUNS, ())),
        reason=_reason(trial),
    )


def _reason(trial: "FrozenTrial") -> str | None:
    reason: str | None = trial.user_attrs.get(REASON)
    if trial.state.name == "RUNNING":
        return "another command runs it"
    if reason is None and trial.state.name == "FAIL":
        return "interrupted; its settings are tried again"
    return reason


def state_of(name: str) -> "optuna.trial.TrialState":
    """Return one of Optuna's states."""
    from optuna.trial import TrialState  # see above

    return TrialState[name]


def _is_abandoned(path: Path) -> bool:
    """Return whether the command that had locked a file is gone without removing it."""
    try:
        with path.open("rb") as file:
            lock_file(file.fileno())
    except BlockingIOError:
        return False
    return True


def _study_of(spec: SweepSpec) -> "optuna.Study":
    try:
        return _open_study(spec)
    except Exception as error:  # each kind of storage raises errors of its own
        reason = reason_of(error).partition("\n")[0]
        raise UsageError(
            f"sweep: the study in {spec.location} cannot be opened: {reason}"
        ) from error


def _open_study(spec: SweepSpec) -> "optuna.Study":
    import optuna  # see above

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if spec.is_pruned:
        pruner = optuna.pruners.MedianPruner(spec.startup_trials, spec.warmup_rounds)
    return optuna.create_study(
        study_name=spec.name,
        storage=_storage(spec.location),
        direction="maximize",
        pruner=pruner,
        load_if_exists=True,
    )


def _storage(location: str) -> "optuna.storages.BaseStorage | str":
    from optuna.storages import JournalStorage  # see above
    from optuna.storages.journal import JournalFileBackend  # see above

    if "://" in location:
        return location
    # Optuna's lock is a link to this path, which has to lead there from any directory.
    return JournalStorage(JournalFileBackend(str(Path(location).absolute())))
