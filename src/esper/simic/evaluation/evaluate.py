"""Evaluation: a frozen controller grows fresh envs, which are measured on the test split.

It runs on the same engine, control and work as training; nothing is learned, the normalisers stay
as they are, and no log is written.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from esper.leyline.config import Job
from esper.leyline.errors import InterruptedRunError, UsageError
from esper.leyline.evaluation import EnvScore, EvaluationReport, MeanScore
from esper.leyline.jobs import merge_job
from esper.leyline.probes import PROBE_PREFIX
from esper.leyline.reports import EpisodeStatus
from esper.runtime.datasets import TensorDataset
from esper.runtime.tasks import registered_task
from esper.simic.evaluation.evaluation_round import EvaluationRound, GrownNetwork, evaluate_round
from esper.simic.training.assembly.machine import run_settings
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import RunSetup, prepare_run
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.checkpoints.grown import save_grown
from esper.simic.training.checkpoints.resuming import load_run
from esper.simic.training.contexts import check_context
from esper.simic.training.policy_controller import PolicyController
from esper.tolaria.event_loop import run_event_loop
from esper.tolaria.stopping import CallerEvent, StopFlag
from esper.tolaria.supervisor import stop_signals

__all__ = ["Progress", "evaluate_controller", "evaluate_policy"]

Progress = Callable[[Sequence[EnvScore]], None]
"""Called with the scores of each seed, as it ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Round:
    """What the envs of one seed came to."""

    scores: tuple[EnvScore, ...]
    num_test_samples: int
    best: GrownNetwork | None


def evaluate_policy(
    checkpoint: Path,
    *,
    seeds: Sequence[int],
    greedy: bool = False,
    context: str | None = None,
    lanes: int | None = None,
    lane_deadline_s: float | None = None,
    data_dir: Path | None = None,
    save_model: Path | None = None,
    shutdown_event: CallerEvent | None = None,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Let the controller of a checkpoint grow fresh envs, and measure them on the test split.

    Args:
        checkpoint: of a run; everything but the seed is as it was there.
        seeds: one round of envs each.
        greedy: take the likeliest choices instead of sampling; for a policy only.
        context: that of all episodes; None draws as the run did.
        lanes: worker threads; they change no result.
        lane_deadline_s: silence after which a lane hangs; None allows as much as the run did.
        data_dir: where the data are, if they have moved.
        save_model: where the network that does best on the validation split is written.
        shutdown_event: set it to stop at the next cancellation point.
        progress: called with the scores of each seed, as it ends.
    """
    loaded = load_run(checkpoint)
    deadline_s = loaded.job.run.lane_deadline_s if lane_deadline_s is None else lane_deadline_s
    run = msgspec.structs.replace(
        loaded.job.run,
        lanes=lanes,
        lane_deadline_s=deadline_s,
        data_dir=loaded.job.run.data_dir if data_dir is None else str(data_dir),
    )
    training = loaded.job.training
    if context is not None:
        check_context(registered_task(training.task).spec, context)
        training = msgspec.structs.replace(training, contexts={context: 1.0})
    return evaluate_controller(
        msgspec.structs.replace(loaded.job, training=training, run=run),
        command=loaded.command,
        seeds=seeds,
        loaded=loaded,
        greedy=greedy,
        save_model=save_model,
        shutdown_event=shutdown_event,
        progress=progress,
    )


def evaluate_controller(
    job: Job,
    *,
    command: str,
    seeds: Sequence[int],
    loaded: LoadedRun | None = None,
    greedy: bool = False,
    save_model: Path | None = None,
    shutdown_event: CallerEvent | None = None,
    progress: Progress | None = None,
) -> EvaluationReport:
    """Let a controller grow the envs of a job, and measure them on the test split.

    Args:
        job: what to grow; its own seed and rounds do not count.
        command: who decides: ppo, heuristic, random, wait or periodic.
        seeds: one round of envs each.
        loaded: what the policy has learned; without it, ppo decides as it was born.
        greedy: take the likeliest choices instead of sampling; for a policy only.
        save_model: where the network that does best on the validation split is written.
        shutdown_event: set it to stop at the next cancellation point.
        progress: called with the scores of each seed, as it ends.
    """
    _check(job, command, seeds, greedy=greedy)
    if save_model is not None and job.training.task.startswith(PROBE_PREFIX):
        raise UsageError(f"{job.training.task}: a probe has no network to save; leave it out")
    stop = StopFlag(shutdown_event)
    with run_settings(job.training), stop_signals(stop):
        try:
            rounds = _run_seeds(job, command, loaded, seeds, stop, greedy=greedy, progress=progress)
        except InterruptedRunError:
            raise InterruptedRunError(
                f"evaluation interrupted ({stop.reason}); no results were saved; run the same "
                "command again to restart it"
            ) from None
        if save_model is not None:
            _save_best([found.best for found in rounds if found.best is not None], save_model)
    scores = tuple(score for found in rounds for score in found.scores)
    return EvaluationReport(
        task=job.training.task,
        controller=command,
        is_greedy=greedy,
        rounds_trained=None if loaded is None else loaded.state.rounds_completed,
        seeds=tuple(seeds),
        num_steps=job.training.max_epochs,
        num_test_samples=rounds[0].num_test_samples,
        envs=scores,
        mean=_mean_of(scores),
    )


def _check(job: Job, command: str, seeds: Sequence[int], *, greedy: bool) -> None:
    # An evaluation may change these keys of a checkpoint's job, which was checked when it ran.
    changed = {"lanes": job.run.lanes, "lane_deadline_s": job.run.lane_deadline_s}
    merge_job(("evaluation", {"run": changed}))
    if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise UsageError(
            f"seeds {list(seeds)}: give at least one, none negative, each once, such as 1 2 3"
        )
    if greedy and command != "ppo":
        raise UsageError(f"greedy choices are for a policy, and {command!r} has none; leave it out")


def _run_seeds(
    job: Job,
    command: str,
    loaded: LoadedRun | None,
    seeds: Sequence[int],
    stop: StopFlag,
    *,
    greedy: bool,
    progress: Progress | None,
) -> list[_Round]:
    rounds: list[_Round] = []
    dataset: TensorDataset | None = None
    for seed in seeds:
        training = msgspec.structs.replace(job.training, seed=seed)
        its_job = msgspec.structs.replace(job, training=training)
        setup = prepare_run(its_job, command, loaded, stop, parts=RunParts(), dataset=dataset)
        # Data do not depend on the seed, so one setup's serve them all.
        dataset = setup.worker.dataset
        if isinstance(setup.controller, PolicyController):
            setup.controller.is_greedy = greedy
        rounds.append(_run_seed(setup, seed))
        if progress is not None:
            progress(rounds[-1].scores)
    return rounds


def _run_seed(setup: RunSetup, seed: int) -> _Round:
    grown = run_event_loop(partial(evaluate_round, setup), setup.worker.stop)
    return _Round(
        scores=_scores(seed, grown),
        num_test_samples=len(setup.worker.dataset.test),
        best=grown.best,
    )


def _scores(seed: int, grown: EvaluationRound) -> tuple[EnvScore, ...]:
    scores = []
    for env_id, (seen, test) in enumerate(zip(grown.steps[-1].envs, grown.tested[-1], strict=True)):
        scores.append(
            EnvScore(
                seed=seed,
                env_id=env_id,
                test_accuracy_pct=None if test is None else test.accuracy_pct,
                test_loss=None if test is None else test.loss,
                num_params_added=0 if seen is None else seen.total_params - seen.host_params,
                episode=grown.episodes[env_id],
            )
        )
    return tuple(scores)


def _save_best(found: Sequence[GrownNetwork], path: Path) -> None:
    if found:
        best = max(found, key=lambda item: item.score)
        save_grown(best.state, best.header, path)


def _mean_of(scores: Sequence[EnvScore]) -> MeanScore:
    whole = [score for score in scores if score.episode.status is not EpisodeStatus.FAILED]
    episodes = [score.episode for score in whole]
    return MeanScore(
        test_accuracy_pct=_mean([score.test_accuracy_pct for score in whole]),
        test_loss=_mean([score.test_loss for score in whole]),
        val_accuracy_pct=_mean([episode.final_accuracy_pct for episode in episodes]),
        num_params_added=_mean([score.num_params_added for score in whole]),
        num_germinated=_mean([episode.num_germinated for episode in episodes]),
        num_fossilized=_mean([episode.num_fossilized for episode in episodes]),
        num_pruned=_mean([episode.num_pruned for episode in episodes]),
        total_reward=_mean([episode.total_reward for episode in episodes]),
        task_return=_mean([episode.task_return for episode in episodes]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return statistics.fmean(measured) if measured else None
