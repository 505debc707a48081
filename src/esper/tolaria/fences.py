"""Fences: device streams, transfers, synchronisation and memory statistics.

A lane has one fence per device for the whole run, and its envs share it. It does an env's work
inside `entered`, calls `await_transfers` before it uses tensors that the feeder transferred,
`record_stream` on tensors allocated on another stream, and `synchronize` once, at the end of a
pass; only then may values be materialised.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from esper.leyline.messages import MemoryStats

__all__ = [
    "CpuFence",
    "CudaFence",
    "Fence",
    "FenceCall",
    "RecordingFence",
    "build_fence",
    "drain",
    "transfer_to",
]


class Fence(Protocol):
    """Isolates the work of one lane's envs on a device from that of the other lanes."""

    @property
    def device(self) -> torch.device:
        """Return the device."""

    def entered(self, *, is_training: bool) -> AbstractContextManager[None]:
        """Enter the device and the lane's stream, with or without gradients.

        PyTorch stores these modes per thread, so each lane has to enter them itself.
        """

    def await_transfers(self) -> None:
        """Make the lane's stream wait for the transfers issued so far."""

    def record_stream(self, *tensors: Tensor) -> None:
        """Prevent reuse of memory from another stream until the lane's stream is done with it."""

    def synchronize(self) -> None:
        """Block until all work queued on the lane's stream is done."""

    def memory(self) -> MemoryStats | None:
        """Return the device allocator's statistics; None where there are none."""


def _grad_mode(is_training: bool) -> AbstractContextManager[object]:
    return torch.enable_grad() if is_training else torch.inference_mode()


@dataclass(eq=False, slots=True)
class CpuFence:
    """The fence of a device without streams: each call is complete when it returns."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @contextmanager
    def entered(self, *, is_training: bool) -> Iterator[None]:
        """Enter the mode with or without gradients."""
        with _grad_mode(is_training):
            yield

    def await_transfers(self) -> None:
        """Do nothing: there are no asynchronous operations."""

    def record_stream(self, *tensors: Tensor) -> None:
        """Do nothing: reference counting keeps the memory alive."""

    def synchronize(self) -> None:
        """Do nothing: there are no asynchronous operations."""

    def memory(self) -> MemoryStats | None:
        """Return None: the system allocator has no statistics."""
        return None


class CudaFence:
    """The fence of a CUDA device: a dedicated stream per lane, reused for the whole run."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # The caching allocator keeps a memory pool per stream, so a new stream per round would
        # leave the blocks of the old one unused.
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def device(self) -> torch.device:
        """Return the device."""
        return self._device

    @contextmanager
    def entered(self, *, is_training: bool) -> Iterator[None]:
        """Enter the device and the lane's stream, with or without gradients."""
        with ExitStack() as stack:
            stack.enter_context(torch.cuda.device(self._device))
            stack.enter_context(torch.cuda.stream(self.stream))
            stack.enter_context(_grad_mode(is_training))
            yield

    def await_transfers(self) -> None:
        """Make the lane's stream wait for the default stream, on which transfers run.

        Inside `entered` the current stream is the lane's own, so waiting for the current stream
        would have no effect.
        """
        self.stream.wait_stream(torch.cuda.default_stream(self._device))

    def record_stream(self, *tensors: Tensor) -> None:
        """Record for the allocator that the lane's stream uses these tensors."""
        for tensor in tensors:
            tensor.record_stream(self.stream)

    def synchronize(self) -> None:
        """Block until all work queued on the lane's stream is done."""
        self.stream.synchronize()

    def memory(self) -> MemoryStats | None:
        """Return the statistics of the CUDA allocator."""
        stats = torch.cuda.memory_stats(self._device)
        free_bytes, total_bytes = torch.cuda.mem_get_info(self._device)
        return MemoryStats(
            allocated_bytes=torch.cuda.memory_allocated(self._device),
            reserved_bytes=torch.cuda.memory_reserved(self._device),
            free_bytes=free_bytes,
            total_bytes=total_bytes,
            num_retries=int(stats.get("num_alloc_retries", 0)),
            num_ooms=int(stats.get("num_ooms", 0)),
        )


@dataclass(frozen=True, slots=True)
class FenceCall:
    """One call made to a fence."""

    operation: str
    detail: str = ""


@dataclass(eq=False, slots=True)
class RecordingFence:
    """A fence for tests: behaves like the CPU fence and records its calls in order."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    stats: MemoryStats | None = None
    """The value that `memory` returns."""
    calls: list[FenceCall] = field(default_factory=list)

    @contextmanager
    def entered(self, *, is_training: bool) -> Iterator[None]:
        """Record entering and leaving the mode."""
        self.calls.append(FenceCall("enter", "training" if is_training else "inference"))
        try:
            with _grad_mode(is_training):
                yield
        finally:
            self.calls.append(FenceCall("leave"))

    def await_transfers(self) -> None:
        """Record the call."""
        self.calls.append(FenceCall("await_transfers"))

    def record_stream(self, *tensors: Tensor) -> None:
        """Record the call with the number of tensors."""
        self.calls.append(FenceCall("keep", str(len(tensors))))

    def synchronize(self) -> None:
        """Record the call."""
        self.calls.append(FenceCall("synchronize"))

    def memory(self) -> MemoryStats | None:
        """Record the call and return `stats`."""
        self.calls.append(FenceCall("memory"))
        return self.stats


def drain(fence: Fence) -> None:
    """Block until the lane's queued device work is done, before the env is released."""
    fence.synchronize()


def build_fence(device: torch.device) -> Fence:
    """Return a new fence for a lane's envs on this device."""
    return CudaFence(device) if device.type == "cuda" else CpuFence(device)


def transfer_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device; to CUDA asynchronously, on the default stream.

    The feeder thread calls this; it never enters a lane's stream. An env may use the result after
    `await_transfers`.
    """
    if tensor.device == device:
        return tensor
    if device.type != "cuda":
        return tensor.to(device)
    with torch.cuda.device(device):
        # Only copies from pinned memory are asynchronous. The pinned-memory allocator does not
        # reuse the buffer before the copy has finished.
        return tensor.pin_memory().to(device, non_blocking=True)
