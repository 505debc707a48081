"""CUDA settings under which runs are reproducible: set for a run, and restored after it."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.leyline.config import CompileMode, TrainingConfig
from esper.simic.training.assembly import gpu_math
from esper.simic.training.assembly.gpu_math import deterministic_gpu_math
from esper.simic.training.assembly.machine import machine_kind

ON_A_GPU = TrainingConfig(device="cuda:0")
BACKENDS: Any = torch.backends


@pytest.fixture(autouse=True)
def has_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv(gpu_math.WORKSPACE_KEY, raising=False)


def settings() -> dict[str, object]:
    return {
        "deterministic": BACKENDS.cudnn.deterministic,
        "benchmark": BACKENDS.cudnn.benchmark,
        "matmul": BACKENDS.cuda.matmul.fp32_precision,
        "conv": BACKENDS.cudnn.conv.fp32_precision,
        "rnn": BACKENDS.cudnn.rnn.fp32_precision,
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "workspace": os.environ.get(gpu_math.WORKSPACE_KEY),
    }


@pytest.mark.parametrize("is_failing", [False, True])
@pytest.mark.parametrize(("tf32", "precision"), [(False, "ieee"), (True, "tf32")])
def test_a_run_on_a_gpu_computes_reproducibly_and_leaves_the_settings_as_they_were(
    tf32: bool, precision: str, is_failing: bool
) -> None:
    before = settings()
    during: dict[str, object] = {}
    try:
        with deterministic_gpu_math(TrainingConfig(device="cuda:0", tf32=tf32)):
            during = settings()
            if is_failing:
                raise LookupError
    except LookupError:
        pass
    assert during == {
        "deterministic": True,
        "benchmark": False,
        "matmul": precision,
        "conv": precision,
        "rnn": precision,
        "algorithms": True,
        "workspace": ":4096:8",
    }
    assert settings() == before


@pytest.mark.parametrize(
    ("config", "is_changed"),
    [
        (TrainingConfig(device="cpu"), False),
        (TrainingConfig(device="auto"), True),
        (TrainingConfig(device="cpu", devices=("cpu", "cuda:1")), True),
        (TrainingConfig(device="cpu", devices=("cpu",)), False),
    ],
)
def test_settings_change_if_the_policy_or_a_host_is_on_a_gpu(
    config: TrainingConfig, is_changed: bool
) -> None:
    before = settings()
    with deterministic_gpu_math(config):
        assert (settings() != before) == is_changed


def test_a_workspace_of_the_users_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpu_math.WORKSPACE_KEY, ":16:8")
    with deterministic_gpu_math(ON_A_GPU):
        assert os.environ[gpu_math.WORKSPACE_KEY] == ":16:8"
    assert os.environ[gpu_math.WORKSPACE_KEY] == ":16:8"


@pytest.mark.parametrize("is_late", [False, True])
def test_a_workspace_that_comes_too_late_is_warned_of(
    is_late: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: is_late)
    with caplog.at_level(logging.WARNING), deterministic_gpu_math(ON_A_GPU):
        pass
    assert ("CUBLAS_WORKSPACE_CONFIG=:4096:8" in caplog.text) == is_late


def test_the_machine_kind_names_each_gpu_with_driver_runtime_and_cudnn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    version = tmp_path / "version"
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
        "GCC version:  gcc version 13.3.0\n"
    )
    names = {0: "NVIDIA A100", 1: "NVIDIA T4"}
    monkeypatch.setattr(gpu_math, "DRIVER_FILE", version)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names[device.index])
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    gpus = [torch.device("cuda", index) for index in (0, 1, 0)]

    kind = machine_kind([torch.device("cpu"), *gpus], CompileMode.OFF)

    for name in names.values():
        assert kind.count(f"cuda {name}, driver 570.86.15, runtime 13.0, cuDNN 91002") == 1
    assert ", cpu, cuda" in kind


def test_a_driver_that_cannot_be_read_is_named_unknown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(gpu_math, "DRIVER_FILE", tmp_path / "none")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA T4")
    assert "driver unknown" in machine_kind([torch.device("cuda", 0)], CompileMode.OFF)
