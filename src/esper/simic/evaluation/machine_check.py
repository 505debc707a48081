"""Checks a machine: equal bits on every engine, transfers behind fences, memory and speed."""

import hashlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from esper.leyline.config import EngineKind, FsyncPolicy, Job, RunOptions, TrainingConfig
from esper.leyline.messages import MemoryStats
from esper.leyline.platforms import optional_module
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.training.assembly.gpu_math import deterministic_gpu_math, device_kind
from esper.simic.training.assembly.machine import num_lanes_for
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.run import run_job
from esper.tolaria.devices import resolve_device
from esper.tolaria.fences import build_fence, transfer_to

__all__ = ["CheckRow", "check_machine"]

NUM_ENVS: Final = 4
NUM_STEPS: Final = 6
NUM_WORKERS: Final = 2
NUM_TRANSFERS: Final = 64
TRANSFER_ROWS: Final = 1 << 16


class CheckRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one check has found."""

    name: str
    is_passed: bool | None
    """None for a measurement without a limit."""
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Outcome:
    """A short training run on one engine."""

    digest: str
    """SHA-256 of the policy's weights, which depend on everything that the run computed."""
    seconds: float
    """Without preparation and the start of workers."""


def check_machine(device: str) -> Iterator[CheckRow]:
    """Check what Esper needs of a device, and yield each result when it is known.

    Args:
        device: of the policy and the hosts.
    """
    resolved = resolve_device(device)
    config = _config(device)
    yield CheckRow(name="device", is_passed=None, detail=device_kind(resolved))
    with deterministic_gpu_math(config):
        yield _check_fences(resolved)
    lanes = num_lanes_for(None, NUM_ENVS)
    single = _run(config, RunOptions(engine=EngineKind.THREADS, lanes=1))
    others = {
        "same bits again": RunOptions(engine=EngineKind.THREADS, lanes=1),
        f"same bits on {lanes} lanes": RunOptions(engine=EngineKind.THREADS, lanes=lanes),
        f"same bits on {NUM_WORKERS} processes": RunOptions(
            engine=EngineKind.PROCESSES, workers=NUM_WORKERS
        ),
    }
    for name, options in others.items():
        other = _run(config, options)
        yield CheckRow(
            name=name,
            is_passed=other.digest == single.digest,
            detail=f"{other.digest[:12]} and {single.digest[:12]}, "
            f"{other.seconds:.2f} s ({other.seconds / single.seconds:.2f} of one lane)",
        )
    yield _check_memory(build_fence(resolved).memory())


def _config(device: str) -> TrainingConfig:
    return TrainingConfig(
        task="digits",
        device=device,
        n_envs=NUM_ENVS,
        n_episodes=1,
        max_epochs=NUM_STEPS,
        lstm_hidden_dim=64,
        feature_dim=64,
    )


def _run(config: TrainingConfig, options: RunOptions) -> _Outcome:
    """Train for one round in a directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="esper-check-") as directory:
        run = msgspec.structs.replace(options, telemetry_dir=directory, fsync=FsyncPolicy.NEVER)
        result = run_job(Job(training=config, run=run), RunParts())
    assert result.agent is not None, "the controller is a policy"
    return _Outcome(
        digest=materialize_weights_digest(result.agent), seconds=result.state.duration_s
    )


def materialize_weights_digest(agent: PPOAgent) -> str:
    """Return the SHA-256 of a policy's weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(agent.network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _check_fences(device: torch.device) -> CheckRow:
    """Use tensors behind a fence right after their transfer was started."""
    fence = build_fence(device)
    expected = [torch.arange(TRANSFER_ROWS) + number for number in range(NUM_TRANSFERS)]
    sums: list[Tensor] = []
    for tensor in expected:
        moved = transfer_to(tensor, device)
        with fence.entered(is_training=False):
            fence.await_transfers()
            fence.record_stream(moved)
            # Used at once: if the fence did not hold, the sum would read memory before the copy
            # arrived.
            sums.append(moved.sum())
    fence.synchronize()
    num_wrong = materialize_num_wrong(sums, expected)
    return CheckRow(
        name="transfers behind fences",
        is_passed=num_wrong == 0,
        detail=f"{num_wrong} of {NUM_TRANSFERS} arrived too late",
    )


def materialize_num_wrong(sums: list[Tensor], expected: list[Tensor]) -> int:
    """Return how many sums differ from those on the CPU."""
    pairs = zip(sums, expected, strict=True)
    return sum(int(found.item()) != int(tensor.sum().item()) for found, tensor in pairs)


def _peak_memory() -> str:
    resource: Any = optional_module("resource")
    if resource is None:
        return "not known"
    # In KiB on Linux, in bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / (1 << 20):.0f} MiB"


def _check_memory(stats: MemoryStats | None) -> CheckRow:
    if stats is None:
        detail = f"peak of this process {_peak_memory()}; no statistics of an allocator"
        return CheckRow(name="memory", is_passed=None, detail=detail)
    mib = 1 << 20
    return CheckRow(
        name="memory",
        is_passed=stats.num_ooms == 0 and stats.num_retries == 0,
        detail=f"{stats.reserved_bytes / mib:.0f} MiB reserved of {stats.total_bytes / mib:.0f}, "
        f"{stats.num_retries} retries, {stats.num_ooms} out of memory",
    )
