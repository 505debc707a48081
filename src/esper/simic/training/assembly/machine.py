"""The machine: its kind for bit-equality comparisons, and torch's threads and memory settings."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from esper.leyline.config import CompileMode, TrainingConfig
from esper.leyline.heap import share_one_heap
from esper.nissa.storage.run_directory import cpu_model
from esper.simic.training.assembly.gpu_math import deterministic_gpu_math, device_kind

__all__ = [
    "compile_mode_for",
    "machine_kind",
    "num_lanes_for",
    "one_thread_per_worker",
    "run_settings",
]


def compile_mode_for(asked: CompileMode, device: torch.device) -> CompileMode:
    """Return the compile mode of the policy: as requested, else off on the CPU."""
    if asked is not CompileMode.AUTO:
        return asked
    return CompileMode.OFF if device.type == "cpu" else CompileMode.DEFAULT


def machine_kind(devices: Iterable[torch.device], compile_mode: CompileMode) -> str:
    """Return a description of what two runs on these devices must share to be bit-equal."""
    parts = (
        f"torch {torch.__version__}",
        torch.backends.cpu.get_cpu_capability(),
        cpu_model(),
        *dict.fromkeys(map(device_kind, devices)),
        f"{torch.get_num_threads()} intra-op thread",
        f"compile {compile_mode.value}",
    )
    return ", ".join(parts)


def num_lanes_for(asked: int | None, num_envs: int) -> int:
    """Return the number of lanes: as requested, else one per env, at most one per core."""
    return min(num_envs, asked or os.cpu_count() or 1)


@contextmanager
def run_settings(config: TrainingConfig) -> Iterator[None]:
    """Make torch compute reproducibly, on the CPU and the GPU, for the duration of a run.

    All threads that start from now on share one heap.
    """
    share_one_heap()
    with one_thread_per_worker(), deterministic_gpu_math(config):
        yield


@contextmanager
def one_thread_per_worker() -> Iterator[None]:
    """Disable torch's intra-op parallelism for the duration of a run.

    Lanes provide the parallelism, and the result of a sum split over threads depends on their
    number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _warm_up_math()
        yield
    finally:
        torch.set_num_threads(before)


def _warm_up_math() -> None:
    """Call the unary operations once before threads do: some libraries initialize on first use."""
    ones = torch.ones(8)
    for operation in (torch.exp, torch.log, torch.tanh, torch.sigmoid, torch.sqrt, torch.erf):
        operation(ones)
