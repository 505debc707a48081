"""`train_ppo_vectorized` uses what it is given, whatever the value, and nothing else."""

import io
import math
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.simic.training.small_runs import TASK

from esper.leyline.config import (
    GovernorConfig,
    HostSchedule,
    Job,
    LrCurve,
    ProfilerConfig,
    RunOptions,
    TelemetryConfig,
    TrainingConfig,
)
from esper.leyline.errors import ConfigError, EsperError, InterruptedRunError
from esper.leyline.jobs import merge_job
from esper.leyline.rewards import LossRewardConfig, RewardConfig
from esper.leyline.stages import LifecycleRules
from esper.nissa.storage.run_directory import read_manifest
from esper.runtime.tasks import all_tasks
from esper.simic.training.vectorized import train_ppo_vectorized

PRIVATE = {"serve", "serve_token"}
"""The manifest never has these."""
PATHS = {"telemetry_dir", "data_dir", "save_path", "resume_path"}
"""Of these the manifest has the last part."""

OTHER_VALUES: dict[str, Any] = {
    "task": "digits",
    "preset": "digits_growth",
    "n_episodes": 2,
    "n_envs": 3,
    "max_epochs": 4,
    "slots": ["r0c1", "r0c2"],
    "blueprints": ["widen"],
    "max_seeds": 1,
    "contexts": {},
    "seed": 7,
    "group_id": "cohort",
    "data": "synthetic",
    "batch_size_per_env": 100,
    "batch_mode": "split",
    "gpu_preload": True,
    "gpu_preload_augment": True,
    "device": "cpu",
    "devices": ["cpu"],
    "amp": True,
    "amp_dtype": "bfloat16",
    "tf32": True,
    "compile_mode": "off",
    "host_lr": 0.011,
    "seed_lr": 0.012,
    "host_schedule": HostSchedule(curve=LrCurve.COSINE, warmup_steps=2),
    "max_grad_norm": None,
    "lifecycle": LifecycleRules(min_training_steps=3),
    "governor": GovernorConfig(sensitivity=5.0),
    "lstm_hidden_dim": 24,
    "feature_dim": 20,
    "blind": True,
    "orthogonal_init": False,
    "lr": 0.0013,
    "lr_end": 0.00017,
    "clip_ratio": 0.17,
    "gamma": 0.97,
    "gae_lambda": 0.9,
    "ppo_updates_per_batch": 2,
    "recurrent_n_epochs": 2,
    "num_minibatches": 3,
    "advantage_norm": "minibatch",
    "target_kl": None,
    "value_clip": 0.3,
    "policy_max_grad_norm": 4.0,
    "weight_decay": 0.001,
    "value_coef": 0.4,
    "value_coef_start": 0.2,
    "value_warmup_batches": 3,
    "entropy_coef": 0.033,
    "entropy_coef_start": 0.045,
    "entropy_coef_end": 0.02,
    "entropy_coef_min": 0.005,
    "entropy_anneal_episodes": 6,
    "entropy_coef_per_head": {"op": 0.02},
    "floor_start": 0.9,
    "floor_end": 0.15,
    "total_train_steps": 9,
    "reward_family": "contribution",
    "reward_mode": "escrow",
    "reward": RewardConfig(rent_weight=0.31),
    "loss_reward": LossRewardConfig(loss_delta_std=0.2),
    "episode_end": "bootstrap",
    "plateau_threshold": 0.7,
    "improvement_threshold": 2.5,
    "telemetry": TelemetryConfig(level="minimal"),
    "name": "mine",
    "tags": {"sweep": "lr"},
    "engine": "threads",
    "workers": 2,
    "lanes": 1,
    "lane_deadline_s": 90.0,
    "fsync": "interval",
    "fsync_interval_ms": 50,
    "checkpoint_every": 2,
    "serve_origins": ["http://dash.example:3000"],
    "sinks": ["jsonl:copy.jsonl"],
    "sink_deadline_s": 30.0,
    "quiet": True,
    "profiler": ProfilerConfig(phases=False),
}
"""No value that the task, the preset or the configuration would choose."""
CHECKPOINTS = {"resume_path", "init_from"}
"""They need another run; see `test_init_from.py` and `test_resuming.py`."""
SAME_ON_PURPOSE = {"task", "reward_family", "contexts"}
"""The loss family forbids every mode but one; the task is that of the preset, without contexts."""


def expected(value: Any, key: str) -> object:
    if key == "profiler":
        return {**value, "torch_dir": Path(value["torch_dir"]).name}
    if key == "sinks":
        return [text.partition(":")[0] for text in value]
    return Path(value).name if key in PATHS and value is not None else value


def plain(value: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))


def recorded(run_dir: Path) -> dict[str, object]:
    job = plain(read_manifest(run_dir).job)
    return {**job["training"], **job["run"]}


def job_of(task: str, preset: str | None) -> Job:
    layer = {"training": {"task": task, **({} if preset is None else {"preset": preset})}}
    return merge_job(("test", layer), tasks=all_tasks())[0]


def test_every_argument_that_differs_from_its_default_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = {
        "telemetry_dir": tmp_path / "elsewhere",
        "data_dir": tmp_path / "data",
        "save_path": tmp_path / "copy.pt",
    }
    serving = {"serve": "127.0.0.1:0", "serve_token": "secret"}
    arguments = {**OTHER_VALUES, **paths, **serving}
    keys = {*TrainingConfig.__struct_fields__, *RunOptions.__struct_fields__}
    assert keys - set(arguments) == CHECKPOINTS, "a key has no value in this test"
    for preset in (None, "digits_growth"):
        job = job_of("digits", preset)
        chosen = {**msgspec.structs.asdict(job.training), **msgspec.structs.asdict(job.run)}
        same = {key for key, value in arguments.items() if plain(chosen[key]) == plain(value)}
        assert same <= SAME_ON_PURPOSE | {"preset"}

    _, history = train_ppo_vectorized(**arguments)

    found = recorded(history.result.run_dir)
    for key in set(arguments) - PRIVATE:
        assert found[key] == expected(plain(arguments[key]), key), key
    assert (tmp_path / "copy.pt").exists()
    assert history.result.run_dir.parent == tmp_path / "elsewhere"


def test_every_argument_that_equals_its_default_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a task whose own defaults differ from the configuration's."""
    monkeypatch.chdir(tmp_path)
    defaults = {
        **msgspec.structs.asdict(TrainingConfig()),
        **msgspec.structs.asdict(RunOptions()),
    }
    digits = msgspec.structs.asdict(job_of("digits", None).training)
    assert {"n_envs", "lr", "reward_mode", "n_episodes", "max_epochs"} <= {
        key for key, value in digits.items() if value != defaults[key]
    }
    ready, stop = threading.Event(), threading.Event()

    def stop_when_ready() -> None:
        ready.wait(60)
        stop.set()

    thread = threading.Thread(target=stop_when_ready)
    thread.start()
    with pytest.raises(InterruptedRunError):
        train_ppo_vectorized(**defaults, ready_event=ready, shutdown_event=stop)
    thread.join(60)

    (run_dir,) = (tmp_path / "runs").iterdir()
    found = recorded(run_dir)
    for key, value in defaults.items():
        assert found[key] == expected(plain(value), key), key


def test_what_is_not_given_is_the_tasks(tmp_path: Path) -> None:
    _, history = train_ppo_vectorized(task=TASK, telemetry_dir=tmp_path)
    assert len(history) == 1
    assert recorded(history.result.run_dir)["lstm_hidden_dim"] == 8


def test_part_of_a_table_leaves_the_rest_of_it_to_the_task(tmp_path: Path) -> None:
    _, history = train_ppo_vectorized(
        task=TASK, telemetry_dir=tmp_path, reward={"rent_weight": 0.3}
    )
    reward = read_manifest(history.result.run_dir).job.training.reward
    assert reward == RewardConfig(rent_weight=0.3)


def test_resume_path_goes_on_with_what_is_not_given(tmp_path: Path) -> None:
    _, first = train_ppo_vectorized(task=TASK, telemetry_dir=tmp_path, lr=0.004)
    _, second = train_ppo_vectorized(telemetry_dir=tmp_path, resume_path="latest", n_episodes=2)
    assert second.result.run_dir == first.result.run_dir
    assert [summary.round for summary in second] == [0, 1]
    assert read_manifest(second.result.run_dir).job.training.lr == 0.004


def test_an_argument_that_contradicts_the_checkpoint_is_refused(tmp_path: Path) -> None:
    """Although it is the configuration's default, which an older version took for not given."""
    train_ppo_vectorized(task=TASK, telemetry_dir=tmp_path, lr=0.004)
    with pytest.raises(ConfigError, match=r"training\.lr was 0\.004 and is now 0\.0003"):
        train_ppo_vectorized(telemetry_dir=tmp_path, resume_path="latest", lr=3e-4)


def test_watch_prints_progress_where_it_is_asked_to(tmp_path: Path) -> None:
    output = io.StringIO()
    train_ppo_vectorized(task=TASK, telemetry_dir=tmp_path, watch=output, serve="127.0.0.1:0")
    lines = output.getvalue().splitlines()
    assert lines[0].startswith("dashboard at http://127.0.0.1:")
    assert any("round 1" in line for line in lines)
    assert any("esper-telemetry serve" in line for line in lines)


def test_nothing_is_printed_unless_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_ppo_vectorized(task=TASK, telemetry_dir=tmp_path)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": object()}, r"training\.lr = .*: must be a plain value or a path"),
        ({"n_envs": "four"}, r"training\.n_envs = 'four': expected `int`, got `str`"),
        ({"n_envs": None}, r"training\.n_envs = None: expected `int`, got `null`"),
        ({"n_envs": 0}, r"training\.n_envs = 0: must be at least 1"),
        ({"lr": math.inf}, r"training\.lr = inf: must be a finite number"),
        ({"governor": GovernorConfig(min_samples=1)}, r"governor\.min_samples = 1: must be at"),
        ({"reward": RewardConfig(drip_fraction=math.nan)}, r"drip_fraction = nan: must be a fin"),
        ({"lane_deadline_s": 0.0}, r"run\.lane_deadline_s = 0\.0: must be above 0"),
        ({"reward_mode": "dense"}, "must be one of shaped, escrow"),
        ({"reward": {"rent_wait": 1.0}}, "did you mean 'training.reward.rent_weight'"),
    ],
)
def test_an_argument_that_cannot_be_used_is_named_and_nothing_is_created(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(EsperError, match=message):
        train_ppo_vectorized(task=TASK, telemetry_dir=tmp_path, **arguments)
    assert list(tmp_path.iterdir()) == []
