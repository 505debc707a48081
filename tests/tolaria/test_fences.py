"""Fences: on the CPU for real, on CUDA against a double that writes down what it is asked."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tools.source_modules import source_modules

from esper.tolaria.fences import (
    CpuFence,
    CudaFence,
    Fence,
    FenceCall,
    MemoryStats,
    RecordingFence,
    build_fence,
    transfer_to,
)

CUDA = torch.device("cuda", 1)


class CudaDouble:
    """Takes the place of the parts of torch.cuda that fences use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.num_streams = 0
        monkeypatch.setattr(torch.cuda, "Stream", self.make_stream)
        monkeypatch.setattr(torch.cuda, "default_stream", lambda device: f"default of {device}")
        monkeypatch.setattr(torch.cuda, "device", lambda device: self.context(str(device)))
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: self.context(stream.name))
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 10)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 20)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30, 120))
        stats = {"num_alloc_retries": 2, "num_ooms": 1}
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: stats)

    def make_stream(self, device: torch.device) -> Any:
        name = f"stream {self.num_streams}"
        self.num_streams += 1
        return SimpleNamespace(
            name=name,
            wait_stream=lambda other: self.calls.append(f"{name} waits for {other}"),
            synchronize=lambda: self.calls.append(f"synchronize {name}"),
        )

    @contextmanager
    def context(self, name: str) -> Iterator[None]:
        self.calls.append(f"enter {name}")
        yield
        self.calls.append(f"leave {name}")

    def tensor(self, name: str) -> Any:
        """Return a double of a tensor on the host."""
        return SimpleNamespace(
            device=torch.device("cpu"),
            record_stream=lambda stream: self.calls.append(f"{name} kept for {stream.name}"),
            pin_memory=lambda: self.pinned(name),
        )

    def pinned(self, name: str) -> Any:
        self.calls.append(f"pin {name}")
        return SimpleNamespace(
            to=lambda device, non_blocking: self.calls.append(
                f"copy {name} to {device}, {'not waiting' if non_blocking else 'waiting'}"
            )
        )


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CudaDouble:
    return CudaDouble(monkeypatch)


def test_cuda_lane_enters_device_then_stream(cuda: CudaDouble) -> None:
    fence = build_fence(CUDA)

    with fence.entered(is_training=True):
        cuda.calls.append("work")

    entered = ["cuda:1", "stream 0"]
    assert cuda.calls == [
        *(f"enter {name}" for name in entered),
        "work",
        *(f"leave {name}" for name in reversed(entered)),
    ]


def test_cuda_env_waits_for_the_default_stream_of_its_device(cuda: CudaDouble) -> None:
    build_fence(CUDA).await_transfers()

    assert cuda.calls == ["stream 0 waits for default of cuda:1"]


def test_cuda_env_keeps_one_stream_and_shares_it_with_no_other_env(cuda: CudaDouble) -> None:
    one, two = CudaFence(CUDA), CudaFence(CUDA)
    for _ in range(2):
        one.synchronize()
    two.synchronize()
    one.record_stream(cuda.tensor("inputs"), cuda.tensor("targets"))

    assert cuda.calls == [
        *["synchronize stream 0"] * 2,
        "synchronize stream 1",
        "inputs kept for stream 0",
        "targets kept for stream 0",
    ]


def test_cuda_transfer_is_pinned_and_does_not_wait(cuda: CudaDouble) -> None:
    transfer_to(cuda.tensor("inputs"), CUDA)

    assert cuda.calls == [
        "enter cuda:1",
        "pin inputs",
        "copy inputs to cuda:1, not waiting",
        "leave cuda:1",
    ]


def test_cuda_memory_is_what_the_allocator_says(cuda: CudaDouble) -> None:
    stats = build_fence(CUDA).memory()

    assert stats == MemoryStats(
        allocated_bytes=10,
        reserved_bytes=20,
        free_bytes=30,
        total_bytes=120,
        num_retries=2,
        num_ooms=1,
    )
    assert stats.used_fraction == 0.75


def test_tensor_that_is_there_already_is_not_copied() -> None:
    tensor = torch.ones(3)

    assert transfer_to(tensor, torch.device("cpu")) is tensor
    assert transfer_to(tensor, torch.device("meta")).device.type == "meta"


fences = pytest.mark.parametrize("fence", [CpuFence(), RecordingFence()], ids=["cpu", "recording"])


@fences
def test_lane_enters_grad_mode_in_its_own_thread(fence: Fence) -> None:
    modes: list[tuple[bool, bool]] = []

    def work() -> None:
        for is_training in (True, False):
            with fence.entered(is_training=is_training):
                modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        modes.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

    # The caller's modes do not reach another thread, nor the lane's the caller.
    with torch.no_grad():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(10)
        assert not torch.is_grad_enabled()

    assert modes == [(True, False), (False, True), (True, False)]


def test_cpu_has_nothing_to_wait_for_nor_a_memory_probe() -> None:
    fence = build_fence(torch.device("cpu"))

    fence.await_transfers()
    fence.record_stream(torch.ones(1))
    fence.synchronize()

    assert isinstance(fence, CpuFence)
    assert fence.memory() is None


def lose_a_batch(fence: Fence) -> None:
    with fence.entered(is_training=False):
        fence.await_transfers()
        fence.record_stream(torch.ones(1), torch.ones(1))
        raise RuntimeError("lost")


def test_recording_fence_lists_what_happened_in_order() -> None:
    stats = MemoryStats(
        allocated_bytes=1,
        reserved_bytes=2,
        free_bytes=3,
        total_bytes=4,
        num_retries=5,
        num_ooms=6,
    )
    fence = RecordingFence(stats=stats)

    with pytest.raises(RuntimeError, match="lost"):
        lose_a_batch(fence)
    fence.synchronize()

    assert fence.memory() is stats
    assert fence.calls == [
        FenceCall("enter", "inference"),
        FenceCall("await_transfers"),
        FenceCall("keep", "2"),
        FenceCall("leave"),
        FenceCall("synchronize"),
        FenceCall("memory"),
    ]


def test_allocators_cache_is_never_emptied() -> None:
    # Freed memory is handed to the envs of the next round; giving it back would stall them all.
    callers = [module.name for module in source_modules() if "empty_cache" in module.text]
    assert callers == []
