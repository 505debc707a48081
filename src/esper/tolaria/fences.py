"""Fences: the one home of device streams, transfers, synchronisation and device memory.

An env has one fence for the whole run. A lane works for the env inside `entered`, calls
`await_transfers` before it consumes what the feeder brought, `keep` on what crosses streams, and
`synchronize` once, at the end of a pass; only then may values be materialised.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

__all__ = [
    "CpuFence",
    "CudaFence",
    "Fence",
    "FenceCall",
    "MemoryStats",
    "RecordingFence",
    "build_fence",
    "drain",
    "transfer_to",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryStats:
    """What a device's allocator says."""

    allocated_bytes: int
    reserved_bytes: int
    free_bytes: int
    total_bytes: int
    num_retries: int
    num_ooms: int

    @property
    def used_fraction(self) -> float:
        """Return the share of the device that anybody uses."""
        return 1 - self.free_bytes / self.total_bytes


class Fence(Protocol):
    """What separates an env's work on a device from everybody else's."""

    @property
    def device(self) -> torch.device:
        """Return where the env lives."""

    def entered(self, *, is_training: bool) -> AbstractContextManager[None]:
        """Work on the env's device and stream, with or without gradients.

        Torch keeps these modes per thread, so that each lane has to enter them itself.
        """

    def await_transfers(self) -> None:
        """Let the env's stream wait for what was brought to the device so far."""

    def record_stream(self, *tensors: Tensor) -> None:
        """Keep memory that another stream allocated until the env's stream is done with it."""

    def synchronize(self) -> None:
        """Wait until the env's stream has done everything."""

    def memory(self) -> MemoryStats | None:
        """Ask the device's allocator; None where there is none."""


def _grad_mode(is_training: bool) -> AbstractContextManager[object]:
    return torch.enable_grad() if is_training else torch.inference_mode()


@dataclass(eq=False, slots=True)
class CpuFence:
    """The fence of a device without streams: everything is done when a call returns."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @contextmanager
    def entered(self, *, is_training: bool) -> Iterator[None]:
        """Work with or without gradients."""
        with _grad_mode(is_training):
            yield

    def await_transfers(self) -> None:
        """Return at once: there is nothing to wait for."""

    def record_stream(self, *tensors: Tensor) -> None:
        """Return at once: reference counts keep memory."""

    def synchronize(self) -> None:
        """Return at once: there is nothing to wait for."""

    def memory(self) -> MemoryStats | None:
        """Return None: the system's allocator has no statistics."""
        return None


class CudaFence:
    """The fence of a CUDA device: a stream of the env's own, kept for the whole run."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # A stream per round would strand the allocator's segments.
        self.stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def device(self) -> torch.device:
        """Return where the env lives."""
        return self._device

    @contextmanager
    def entered(self, *, is_training: bool) -> Iterator[None]:
        """Work on the env's device and stream, with or without gradients."""
        with ExitStack() as stack:
            stack.enter_context(torch.cuda.device(self._device))
            stack.enter_context(torch.cuda.stream(self.stream))
            stack.enter_context(_grad_mode(is_training))
            yield

    def await_transfers(self) -> None:
        """Let the env's stream wait for the default one.

        Transfers run on the default stream. Inside `entered` the current stream is the env's own,
        and waiting for that one would be waiting for nothing.
        """
        self.stream.wait_stream(torch.cuda.default_stream(self._device))

    def record_stream(self, *tensors: Tensor) -> None:
        """Tell the allocator that the env's stream uses these tensors."""
        for tensor in tensors:
            tensor.record_stream(self.stream)

    def synchronize(self) -> None:
        """Wait until the env's stream has done everything."""
        self.stream.synchronize()

    def memory(self) -> MemoryStats | None:
        """Ask CUDA's allocator."""
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
    """One operation that a fence was asked for."""

    operation: str
    detail: str = ""


@dataclass(eq=False, slots=True)
class RecordingFence:
    """A fence for tests: works like the CPU's, writes down what is asked of it, in order."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    stats: MemoryStats | None = None
    """What the memory probe answers."""
    calls: list[FenceCall] = field(default_factory=list)

    @contextmanager
    def entered(self, *, is_training: bool) -> Iterator[None]:
        """Write down the mode, and when it is left."""
        self.calls.append(FenceCall("enter", "training" if is_training else "inference"))
        try:
            with _grad_mode(is_training):
                yield
        finally:
            self.calls.append(FenceCall("leave"))

    def await_transfers(self) -> None:
        """Write it down."""
        self.calls.append(FenceCall("await_transfers"))

    def record_stream(self, *tensors: Tensor) -> None:
        """Write down how many tensors."""
        self.calls.append(FenceCall("keep", str(len(tensors))))

    def synchronize(self) -> None:
        """Write it down."""
        self.calls.append(FenceCall("synchronize"))

    def memory(self) -> MemoryStats | None:
        """Answer what the test wants."""
        self.calls.append(FenceCall("memory"))
        return self.stats


def drain(fence: Fence) -> None:
    """Wait until everything asked of an env's device is done, before the env is let go."""
    fence.synchronize()


def build_fence(device: torch.device) -> Fence:
    """Return a new fence for an env that lives on this device."""
    return CudaFence(device) if device.type == "cuda" else CpuFence(device)


def transfer_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Bring a tensor to a device, to CUDA without waiting, on the default stream.

    The feeder thread calls this; it never enters an env's stream. An env sees the result after
    `await_transfers`.
    """
    if tensor.device == device:
        return tensor
    if device.type != "cuda":
        return tensor.to(device)
    with torch.cuda.device(device):
        # Only pinned memory is copied while the host goes on. Its allocator waits for the copy
        # before it hands the memory out again.
        return tensor.pin_memory().to(device, non_blocking=True)
