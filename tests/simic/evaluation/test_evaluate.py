"""A frozen controller on fresh envs, measured on data that nothing else has seen."""

import math
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.builders.tiny_runs import tiny_job, tiny_run
from tests.builders.tiny_tasks import TINY, TINY_LM
from tests.simic.training.runs import last_checkpoint, weights_digest

import esper
from esper.leyline.config import DataSource
from esper.leyline.errors import (
    InterruptedRunError,
    RunFailedError,
    UnreadableFileError,
    UsageError,
)
from esper.leyline.evaluation import EvaluationReport
from esper.leyline.reports import EpisodeStatus
from esper.runtime.datasets import Split, TensorDataset
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import load_dataset
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.evaluation.evaluate import evaluate_controller, evaluate_policy
from esper.simic.normalizers import ObservationNormalizer, RewardNormalizer
from esper.simic.training import policy_controller
from esper.simic.training.assembly import worker_assembly, worker_setup
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.run_result import TrainingResult

SEED = 42


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    return tiny_run(tmp_path_factory.mktemp("trained"), n_episodes=2)


def checkpoint_of(result: TrainingResult) -> Path:
    return last_checkpoint(result.run_dir)


def test_untrained_policy_repeats_the_first_round_of_its_training(trained: TrainingResult) -> None:
    first = trained.run_dir / "checkpoints" / "round-000000.pt"

    report = evaluate_policy(first, seeds=[SEED])

    assert tuple(score.episode for score in report.envs) == trained.history[0].episodes
    assert report.rounds_trained == 0


def test_evaluation_is_the_same_each_time_and_for_any_number_of_lanes(
    trained: TrainingResult,
) -> None:
    once = evaluate_policy(checkpoint_of(trained), seeds=[1, 2], lanes=1)

    assert evaluate_policy(checkpoint_of(trained), seeds=[1, 2], lanes=2) == once
    assert [(score.seed, score.env_id) for score in once.envs] == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_each_seed_is_evaluated_by_itself(trained: TrainingResult) -> None:
    both = evaluate_policy(checkpoint_of(trained), seeds=[1, 2])
    second = evaluate_policy(checkpoint_of(trained), seeds=[2])

    assert both.envs[2:] == second.envs


@pytest.mark.parametrize("task", [TINY, TINY_LM])
def test_test_accuracy_is_that_of_the_saved_network_on_the_test_split(
    task: str, tmp_path: Path
) -> None:
    result = tiny_run(tmp_path / "runs", n_episodes=1, task=task)
    path = tmp_path / "model.pt"

    report = evaluate_policy(checkpoint_of(result), seeds=[7], save_model=path)

    test = load_dataset(task, DataRequest(source=DataSource.AUTO)).test
    with torch.no_grad():
        predicted = esper.load_grown(path)(test.inputs).argmax(-1)
    accuracy_pct = 100.0 * (predicted == test.targets).float().mean().item()
    ranked = (
        [-(score.episode.final_loss or 0.0) for score in report.envs]
        if task == TINY_LM
        else [score.episode.final_accuracy_pct or 0.0 for score in report.envs]
    )
    best = report.envs[ranked.index(max(ranked))]
    assert best.test_accuracy_pct == pytest.approx(accuracy_pct)
    assert report.num_test_samples == len(test)


def test_training_never_looks_at_the_test_split(
    trained: TrainingResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_setup, "load_dataset", _with_spoilt_test_split)

    spoilt = tiny_run(tmp_path, n_episodes=2)

    assert weights_digest(checkpoint_of(spoilt)) == weights_digest(checkpoint_of(trained))
    assert spoilt.history[1].episodes == trained.history[1].episodes


def _with_spoilt_test_split(name: str, request: DataRequest) -> TensorDataset:
    data = load_dataset(name, request)
    spoilt = Split(inputs=torch.full_like(data.test.inputs, torch.nan), targets=data.test.targets)
    return TensorDataset(
        train=data.train, val=data.val, test=spoilt, crop_padding=data.crop_padding
    )


def test_nothing_is_learned_and_no_normaliser_moves(
    trained: TrainingResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in (
        (PPOAgent, "update"),
        (ObservationNormalizer, "update"),
        (RewardNormalizer, "normalize_round"),
    ):
        monkeypatch.setattr(owner, name, _must_not_be_called)

    assert evaluate_policy(checkpoint_of(trained), seeds=[1]).envs


def _must_not_be_called(*_: object, **__: object) -> None:
    raise AssertionError("an evaluation learns nothing")


def test_evaluation_writes_nothing_of_its_own(trained: TrainingResult) -> None:
    root = trained.run_dir.parent
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}

    evaluate_policy(checkpoint_of(trained), seeds=[1])

    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


@pytest.mark.parametrize("greedy", [True, False])
def test_stream_of_actions_decides_only_where_choices_are_sampled(
    greedy: bool, trained: TrainingResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = evaluate_policy(checkpoint_of(trained), seeds=[1], greedy=greedy)
    monkeypatch.setattr(policy_controller, "stream_seed", _another_seed)

    again = evaluate_policy(checkpoint_of(trained), seeds=[1], greedy=greedy)

    assert (again == report) == greedy


def _another_seed(*_: object, **__: object) -> int:
    return 5


def test_waiting_adds_nothing_to_the_host(tmp_path: Path) -> None:
    report = evaluate_controller(tiny_job(tmp_path), command="wait", seeds=[1, 2])

    assert report.mean.num_params_added == 0
    assert report.mean.num_germinated == 0
    assert report.controller == "wait"
    assert report.rounds_trained is None


def test_checkpoint_of_a_controller_without_a_policy_is_evaluated_too(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, command="periodic", n_episodes=1)

    report = evaluate_policy(checkpoint_of(run), seeds=[1])

    assert report == msgspec.structs.replace(
        evaluate_controller(tiny_job(tmp_path), command="periodic", seeds=[1]),
        rounds_trained=1,
    )
    assert (report.mean.num_germinated or 0.0) > 0


def test_means_are_over_the_envs_that_reached_their_end(
    trained: TrainingResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = evaluate_policy(checkpoint_of(trained), seeds=[1])
    monkeypatch.setattr(worker_assembly, "TrainingWork", _Breaking)

    broken = evaluate_policy(checkpoint_of(trained), seeds=[1])

    lost, kept = broken.envs
    assert lost.episode.status is EpisodeStatus.FAILED
    assert lost.test_accuracy_pct is None
    assert kept.test_accuracy_pct == whole.envs[1].test_accuracy_pct
    assert broken.mean.test_accuracy_pct == kept.test_accuracy_pct


class _Breaking(TrainingWork):
    """Breaks env 0 in its second step."""

    def validate(self, env: Any, step: int, beat: Any) -> Any:
        if env.env_idx == 0 and step == 1:
            raise ValueError("injected")
        return super().validate(env, step, beat)


def test_data_are_loaded_once_for_all_seeds(
    trained: TrainingResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []

    def noted(name: str, request: DataRequest) -> TensorDataset:
        loaded.append(name)
        return load_dataset(name, request)

    monkeypatch.setattr(worker_setup, "load_dataset", noted)
    evaluate_policy(checkpoint_of(trained), seeds=[1, 2, 3])
    assert loaded == [TINY]


def test_a_lane_that_hangs_ends_the_evaluation_with_its_stack_in_the_log(
    trained: TrainingResult, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    released = threading.Event()

    def hang(self: TrainingWork, env: object, step: int) -> None:
        released.wait(30)

    monkeypatch.setattr(TrainingWork, "begin_train", hang)
    try:
        with pytest.raises(RunFailedError, match=r"lane-0 \(envs 0\).*--lane-deadline"):
            evaluate_policy(checkpoint_of(trained), seeds=[1, 2], lanes=2, lane_deadline_s=3.0)
    finally:
        released.set()
    assert "in hang" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lanes": 0}, "run.lanes = 0: must be at least 1"),
        ({"lane_deadline_s": 0.0}, "run.lane_deadline_s = 0.0: must be above 0"),
        ({"lane_deadline_s": math.nan}, "run.lane_deadline_s = nan: must be a finite number"),
        ({"lane_deadline_s": math.inf}, "run.lane_deadline_s = inf: must be a finite number"),
    ],
)
def test_lanes_that_cannot_work_are_refused(
    settings: dict[str, Any], message: str, trained: TrainingResult
) -> None:
    with pytest.raises(UsageError, match=message):
        evaluate_policy(checkpoint_of(trained), seeds=[1], **settings)


def test_report_survives_json(trained: TrainingResult) -> None:
    report = evaluate_policy(checkpoint_of(trained), seeds=[1])

    assert msgspec.json.decode(msgspec.json.encode(report), type=EvaluationReport) == report


@pytest.mark.parametrize("seeds", [[], [-1], [3, 3]])
def test_seeds_that_cannot_be_used_are_refused(seeds: list[int], trained: TrainingResult) -> None:
    with pytest.raises(UsageError, match="seeds"):
        evaluate_policy(checkpoint_of(trained), seeds=seeds)


def test_greedy_heuristic_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'heuristic' has none"):
        evaluate_controller(tiny_job(tmp_path), command="heuristic", seeds=[1], greedy=True)


def test_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    path.write_bytes(b"nothing of ours")

    with pytest.raises(UnreadableFileError, match=r"file\.pt"):
        evaluate_policy(path, seeds=[1])


def test_evaluation_stops_when_asked_to(trained: TrainingResult) -> None:
    stop = threading.Event()
    stop.set()

    with pytest.raises(InterruptedRunError):
        evaluate_policy(checkpoint_of(trained), seeds=[1], shutdown_event=stop)
