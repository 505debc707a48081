"""Device names: parsing, availability checks, and the assignment of envs to devices."""

import re
from collections.abc import Sequence
from typing import Final

import torch

from esper.leyline.errors import DeviceError

__all__ = ["AUTO", "parse_device", "resolve_device", "resolve_env_devices", "validate_cuda_device"]

AUTO: Final = "auto"
_DEVICE: Final = re.compile(r"(cpu|cuda|mps)(?::(0|[1-9][0-9]{0,3}))?")


def parse_device(text: str) -> torch.device:
    """Parse a device name without checking that the device exists."""
    match = _DEVICE.fullmatch(text)
    if match is None:
        raise DeviceError(text, "expected auto, cpu, mps, cuda or cuda:N")
    kind, index = match.groups()
    if kind != "cuda" and index not in (None, "0"):
        raise DeviceError(text, f"there is only one {kind} device; write {kind}")
    # There is only one cpu and one mps device; dropping the index makes "cpu:0" equal "cpu".
    return torch.device(text if kind == "cuda" else kind)


def validate_cuda_device(device: torch.device, *, needs_index: bool = False) -> None:
    """Raise DeviceError for a CUDA device that does not exist; ignore other device types."""
    if device.type != "cuda":
        return
    if not torch.cuda.is_available():
        raise DeviceError(device, "this machine has no usable CUDA device; use cpu or auto")
    num_devices = torch.cuda.device_count()
    if device.index is None and needs_index:
        raise DeviceError(device, "an env's device needs its index, such as cuda:0")
    if device.index is not None and device.index >= num_devices:
        last = num_devices - 1
        raise DeviceError(device, f"the last CUDA device of this machine is cuda:{last}")


def resolve_device(text: str, *, needs_index: bool = False) -> torch.device:
    """Return the named device after checking that it exists; `auto` selects CUDA if available."""
    if text == AUTO:
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    device = parse_device(text)
    validate_cuda_device(device, needs_index=needs_index)
    if device.type == "mps":
        raise DeviceError(device, "Metal has no float64, which statistics are kept in; use cpu")
    return torch.device("cuda", 0) if device == torch.device("cuda") else device


def resolve_env_devices(
    names: Sequence[str] | None, *, policy_device: torch.device, n_envs: int
) -> tuple[torch.device, ...]:
    """Return each env's device: the named devices round-robin, or the policy's device."""
    if names is None:
        return (policy_device,) * n_envs
    if not 1 <= len(names) <= n_envs:
        listed = ", ".join(names)
        raise DeviceError(listed, f"{n_envs} envs need 1 to {n_envs} devices, got {len(names)}")
    devices = [resolve_device(name, needs_index=True) for name in names]
    return tuple(devices[env_id % len(devices)] for env_id in range(n_envs))
