"""Settings of CUDA under which equal runs give equal bits, and what identifies a GPU."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from esper.leyline.config import TrainingConfig
from esper.tolaria.devices import resolve_device

__all__ = ["deterministic_gpu_math", "device_kind"]

WORKSPACE_KEY: Final = "CUBLAS_WORKSPACE_CONFIG"
WORKSPACE: Final = ":4096:8"
"""One of the two values for which NVIDIA documents reproducible results on several streams."""
DRIVER_FILE: Final = Path("/proc/driver/nvidia/version")
_DRIVER: Final = re.compile(r"Kernel Module.*?\s([0-9]+\.[0-9.]+)")


@contextmanager
def deterministic_gpu_math(config: TrainingConfig) -> Iterator[None]:
    """Make CUDA compute reproducibly for the duration of a run; nothing changes on the CPU.

    Enter it before anything touches a GPU: cuBLAS reads its setting when it is first used.
    """
    if not _uses_cuda(config):
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(_workspace())
        stack.enter_context(_deterministic_algorithms())
        stack.enter_context(_backend_settings("tf32" if config.tf32 else "ieee"))
        yield


def device_kind(device: torch.device) -> str:
    """Return what two devices must share to be bit-equal; for a GPU also its software."""
    if device.type != "cuda":
        return device.type
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return (
        f"cuda {torch.cuda.get_device_name(device)}, driver {_driver_version()}, "
        f"runtime {torch.version.cuda}, cuDNN {cudnn}"
    )


def _uses_cuda(config: TrainingConfig) -> bool:
    names = (config.device, *(config.devices or ()))
    return any(resolve_device(name).type == "cuda" for name in names)


def _driver_version() -> str:
    try:
        match = _DRIVER.search(DRIVER_FILE.read_text())
    except OSError:
        match = None
    return "unknown" if match is None else match[1]


@contextmanager
def _workspace() -> Iterator[None]:
    """Give cuBLAS a fixed workspace, unless the user has set one."""
    if WORKSPACE_KEY in os.environ:
        yield
        return
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        logging.getLogger(__name__).warning(
            "CUDA was in use before this run: set %s=%s before, otherwise results of matrix "
            "multiplications may differ between runs",
            WORKSPACE_KEY,
            WORKSPACE,
        )
    os.environ[WORKSPACE_KEY] = WORKSPACE
    try:
        yield
    finally:
        del os.environ[WORKSPACE_KEY]


@contextmanager
def _deterministic_algorithms() -> Iterator[None]:
    """Select deterministic kernels; one that does not exist is warned of, not refused."""
    is_on = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(is_on, warn_only=warns_only)


@contextmanager
def _backend_settings(precision: str) -> Iterator[None]:
    """Set cuDNN's choice of algorithms, and the precision of float32 multiplications."""
    backends: Any = torch.backends  # its `conv` and `rnn` are missing in torch's annotations
    settings: tuple[tuple[object, str, object], ...] = (
        (backends.cudnn, "deterministic", True),
        # Benchmarking selects an algorithm by its measured time, which differs between runs.
        (backends.cudnn, "benchmark", False),
        (backends.cuda.matmul, "fp32_precision", precision),
        (backends.cudnn.conv, "fp32_precision", precision),
        (backends.cudnn.rnn, "fp32_precision", precision),
    )
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in settings]
    try:
        for owner, name, value in settings:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
