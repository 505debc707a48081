"""Sweeps: what a trial is worth, which settings it has, and how a study is continued."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import optuna
import pytest
from tests.nissa.fake_run import FakeRun

from esper.leyline.config import Job
from esper.leyline.errors import (
    ConfigError,
    InterruptedRunError,
    InvalidValueError,
    MissingExtraError,
)
from esper.leyline.jobs import Layer
from esper.leyline.payloads import BatchEpochCompleted, RunFinished
from esper.leyline.sweeps import Dimension, SweepReport, SweepSpec, TrialRow
from esper.leyline.telemetry import Event, decode_event
from esper.nissa.reading.run_lookup import find_run, manifest_of
from esper.simic.evaluation import sweep
from esper.simic.evaluation.sweep import run_sweep
from esper.simic.training.run_result import TrainingResult

LR = Dimension(low=1e-5, high=1e-2, log=True)


def layer(folder: Path, **training: Any) -> tuple[str, Layer]:
    small = {"n_episodes": 2, "n_envs": 1, "lstm_hidden_dim": 8, "feature_dim": 8}
    return (
        "test",
        {
            "training": {"task": "probe:memory", **small, **training},
            "run": {"telemetry_dir": str(folder / "runs"), "fsync": "never", "engine": "threads"},
        },
    )


def spec(folder: Path, **settings: Any) -> SweepSpec:
    facts = {"name": "try", "space": {"training.lr": LR}, "storage": str(folder / "try.journal")}
    return SweepSpec(**{**facts, **settings})


def run(folder: Path, wanted: SweepSpec, note: Callable[[TrialRow], object] = id) -> SweepReport:
    return run_sweep(wanted, [layer(folder)], note)


def opened(folder: Path) -> optuna.Study:
    """Open the study as Optuna's own tools do."""
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "try.journal"))
    return optuna.load_study(study_name="try", storage=optuna.storages.JournalStorage(backend))


def returns(run_dir: Path) -> list[float]:
    events = map(decode_event, (run_dir / "events.jsonl").read_bytes().splitlines())
    return [
        it.data.mean_task_return or 0.0 for it in events if isinstance(it.data, BatchEpochCompleted)
    ]


def test_a_trial_is_worth_the_mean_return_of_its_runs(tmp_path: Path) -> None:
    noted: list[TrialRow] = []
    report = run(tmp_path, spec(tmp_path, trials=2, seeds=2, rounds=1), noted.append)
    assert sorted(row.number for row in report.trials) == [row.number for row in noted] == [0, 1]
    study = opened(tmp_path)
    for row in noted:
        runs = [find_run(tmp_path / "runs" / name) for name in row.runs]
        assert row.task_return == pytest.approx(fmean(returns(it)[-1] for it in runs))
        assert study.trials[row.number].value == row.task_return
        jobs = [manifest.job for it in runs if (manifest := manifest_of(it)) is not None]
        assert [job.training.seed for job in jobs] == [42, 43]
        assert {job.training.lr for job in jobs} == {row.settings["training.lr"]}
        assert [job.run.tags for job in jobs] == [{"sweep": "try", "trial": str(row.number)}] * 2
    assert noted[0].settings != noted[1].settings


def test_a_study_is_continued_with_settings_that_it_has_not_tried(tmp_path: Path) -> None:
    (first,) = run(tmp_path, spec(tmp_path, trials=1)).trials
    both = run(tmp_path, spec(tmp_path, trials=2)).trials
    assert first in both
    assert len({str(row.settings) for row in both}) == 2
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_signal_between_two_trials_ends_the_sweep(tmp_path: Path) -> None:
    with pytest.raises(InterruptedRunError, match="1 of 3 trials are finished"):
        run(tmp_path, spec(tmp_path, trials=3), lambda _: os.kill(os.getpid(), signal.SIGINT))
    states = [trial.state.name for trial in opened(tmp_path).trials]
    assert states == ["COMPLETE"]


def test_a_signal_too_late_to_interrupt_a_run_ends_the_sweep_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_job = sweep.run_job

    def interrupted_at_its_end(
        job: Job, *, on_event: Callable[[Event], object], **options: Any
    ) -> TrainingResult:
        def note(event: Event) -> None:
            on_event(event)
            if isinstance(event.data, RunFinished):
                os.kill(os.getpid(), signal.SIGINT)

        return run_job(job, on_event=note, **options)

    monkeypatch.setattr(sweep, "run_job", interrupted_at_its_end)
    with pytest.raises(InterruptedRunError, match="1 of 3 trials are finished"):
        run(tmp_path, spec(tmp_path, trials=3))
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_settings_that_do_not_fit_each_other_fail_with_their_reason(tmp_path: Path) -> None:
    space = {
        "training.reward_family": Dimension(choices=("loss", "contribution")),
        "training.reward_mode": Dimension(choices=("shaped", "sparse")),
    }
    rows = run(tmp_path, spec(tmp_path, trials=6, space=space, sampler_seed=1)).trials
    failed = {row.number for row in rows if row.state == "failed"}
    assert failed == {
        row.number for row in rows if list(row.settings.values()) == ["loss", "sparse"]
    }
    assert 0 < len(failed) < 6
    assert all("must be shaped" in (row.reason or "") for row in rows if row.number in failed)


@pytest.mark.parametrize(
    ("key", "dimension", "kind", "message"),
    [
        ("training.lrr", LR, ConfigError, "did you mean 'training.lr'"),
        ("training.lr", Dimension(low=-2.0, high=-1.0), InvalidValueError, "must be above 0"),
        ("training.n_envs", LR, InvalidValueError, "expected `int`"),
    ],
)
def test_a_space_that_cannot_be_configured_is_refused_before_the_first_trial(
    key: str, dimension: Dimension, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message):
        run(tmp_path, spec(tmp_path, space={key: dimension}))
    assert list(tmp_path.iterdir()) == []


def test_a_run_below_the_median_of_others_is_stopped() -> None:
    study = optuna.create_study(
        direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=2)
    )
    wanted = SweepSpec(name="try", space={"training.lr": LR}, rounds=1)
    stops = [reported(study, wanted, value) for value in (1.0, 2.0, -5.0, 9.0)]
    assert stops == [False, False, True, False]


def reported(study: optuna.Study, wanted: SweepSpec, value: float) -> bool:
    """Return whether a trial is pruned whose rounds return a value."""
    trial = study.ask()
    watch = sweep._TrialWatch(trial, wanted)
    for event in FakeRun(num_rounds=2).events():
        watch.note(with_return(event, value))
    study.tell(trial, value)
    return watch.stop.is_set()


def with_return(event: Event, value: float) -> Event:
    if not isinstance(event.data, BatchEpochCompleted):
        return event
    data = msgspec.structs.replace(event.data, mean_task_return=value)
    return msgspec.structs.replace(event, data=data)


def test_a_missing_optuna_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'esper-grow\[search\]'"):
        run(tmp_path, spec(tmp_path))
