"""Names in `vectorized` that may be replaced, each replaced and seen to take effect."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.builders.tiny_runs import tiny_job
from torch import Tensor, nn

from esper.leyline.config import TelemetryConfig
from esper.leyline.jobs import merge_job
from esper.leyline.payloads import LayerGradient
from esper.leyline.telemetry import EventType
from esper.nissa.bus.recording_hub import RecordingHub
from esper.runtime.batches import SharedBatchIterator
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.normalizers import RewardNormalizer
from esper.simic.training import vectorized
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.worker_assembly import build_work
from esper.simic.training.assembly.worker_setup import prepare_worker
from esper.simic.training.checkpoints.resuming import load_run
from esper.simic.training.run_result import TrainingResult
from esper.simic.training.vectorized import run_job
from esper.tolaria.fences import RecordingFence
from esper.tolaria.stopping import StopFlag
from esper.tolaria.supervisor import Watchdog


def short_run(telemetry_dir: Path, *, resume: bool = False, **training: object) -> TrainingResult:
    settings = {"n_episodes": 1, "max_epochs": 2, **training}
    job = tiny_job(telemetry_dir, **settings)
    checkpoint = next(telemetry_dir.glob("*/checkpoints/round-000001.pt")) if resume else None
    return run_job(job, resumed=None if checkpoint is None else load_run(checkpoint))


def test_replacing_get_hub_takes_the_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = RecordingHub()
    monkeypatch.setattr(vectorized, "get_hub", lambda: hub)
    short_run(tmp_path)
    assert len(hub.of_type(EventType.EPOCH_COMPLETED)) == 4


def test_replacing_the_reward_normalizer_changes_what_is_learned_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []

    class Noting(RewardNormalizer):
        def normalize_round(self, rewards: Tensor, returns: Tensor, is_paid: Tensor) -> Tensor:
            seen.append(rewards)
            return super().normalize_round(rewards, returns, is_paid)

    monkeypatch.setattr(vectorized, "RewardNormalizer", Noting)
    short_run(tmp_path)
    assert [tuple(rewards.shape) for rewards in seen] == [(2, 2)]


def test_replacing_the_batch_iterator_changes_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[tuple[int, int]] = []

    class Noting(SharedBatchIterator):
        def batches(self, *, round: int, step: int) -> Iterator[Sequence[Any]]:
            passes.append((round, step))
            return super().batches(round=round, step=step)

    monkeypatch.setattr(vectorized, "SharedBatchIterator", Noting)
    short_run(tmp_path)
    assert passes.count((0, 1)) == 1


def test_replacing_the_agent_changes_who_decides_and_who_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Path] = []

    class Noting(PPOAgent):
        @classmethod
        def load(cls, path: Path | str, **options: Any) -> PPOAgent:
            loaded.append(Path(path))
            return super().load(path, **options)

    monkeypatch.setattr(vectorized, "PPOAgent", Noting)
    assert isinstance(short_run(tmp_path).agent, Noting)
    short_run(tmp_path, resume=True, n_episodes=2)
    assert [path.name for path in loaded] == ["round-000001.pt"]


def test_replacing_autocast_wraps_every_forward_of_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[str] = []

    class Precision:
        @staticmethod
        @contextmanager
        def autocast(device_type: str, dtype: torch.dtype) -> Iterator[None]:
            entered.append(f"{device_type} {dtype}")
            yield

    monkeypatch.setattr(vectorized, "torch_amp", Precision)
    short_run(tmp_path, amp=True)
    assert set(entered) == {"cpu torch.bfloat16"}
    assert len(entered) > 4


def test_precision_is_that_of_the_hosts_devices_and_not_of_the_policys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered: list[str] = []

    class Precision:
        @staticmethod
        @contextmanager
        def autocast(device_type: str, dtype: torch.dtype) -> Iterator[None]:
            entered.append(device_type)
            yield

    layer = {"training": {"n_envs": 3, "amp": True, "amp_dtype": "bfloat16", "device": "cpu"}}
    job, _ = merge_job(("test", layer))
    parts = RunParts(autocast=Precision.autocast)
    setup = prepare_worker(job, StopFlag(), parts=parts)
    devices = (torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu"))
    fences = {env_id: RecordingFence(device=device) for env_id, device in enumerate(devices)}

    for some, types in ((devices[:2], ["cuda"]), (devices, ["cpu", "cuda"])):
        entered.clear()
        with build_work(replace(setup, devices=some), fences=fences).rules.autocast():
            pass
        assert entered == types


def test_replacing_the_layer_collector_changes_what_is_reported_of_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collect(network: nn.Module) -> tuple[LayerGradient, ...]:
        return (
            LayerGradient(
                layer="mine", norm=1.0, health=0.0, zero_fraction=1.0, nan_count=0, inf_count=0
            ),
        )

    hub = RecordingHub(config=TelemetryConfig(level="debug"))
    monkeypatch.setattr(vectorized, "get_hub", lambda: hub)
    monkeypatch.setattr(vectorized, "collect_per_layer_gradients", collect)
    short_run(tmp_path)
    (reported,) = hub.of_type(EventType.LAYER_GRADIENTS_COLLECTED)
    assert [layer.layer for layer in reported.data.layers] == ["mine"]
    assert reported.data.num_dead == 1


def test_replacing_the_stability_check_raises_its_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = RecordingHub()
    monkeypatch.setattr(vectorized, "get_hub", lambda: hub)
    monkeypatch.setattr(vectorized, "check_numerical_stability", lambda figures: ("planted",))
    short_run(tmp_path)
    (alarm,) = hub.of_type(EventType.NUMERICAL_INSTABILITY_DETECTED)
    assert "planted" in alarm.data.where


def test_a_compiled_policy_runs_the_compiled_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str | None] = []

    def compile_double(function: Callable[..., Any], *, mode: str | None, dynamic: bool) -> Any:
        assert dynamic is False

        def run(*arguments: Any) -> Any:
            compiled.append(mode)
            return function(*arguments)

        return run

    monkeypatch.setattr(torch, "compile", compile_double)
    short_run(tmp_path / "off")
    assert compiled == []
    short_run(tmp_path / "on", compile_mode="reduce-overhead")
    assert set(compiled) == {"reduce-overhead"}
    assert len(compiled) >= 2


def test_a_policy_is_compiled_on_the_control_thread_before_the_watchdog_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    watch = Watchdog.run

    def compile_double(function: Callable[..., Any], **options: Any) -> Any:
        def run(*arguments: Any) -> Any:
            events.append(f"step on {threading.current_thread().name}")
            return function(*arguments)

        return run

    async def noted(watchdog: Watchdog) -> None:
        events.append("watchdog")
        await watch(watchdog)

    monkeypatch.setattr(torch, "compile", compile_double)
    monkeypatch.setattr(Watchdog, "run", noted)
    short_run(tmp_path, compile_mode="max-autotune")
    assert events[:2] == ["step on control", "watchdog"]
    assert set(events[2:]) == {"step on control"}
