"""Saves and loads grown networks: a host and the seeds that contribute to its output."""

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import nn

from esper.kasmina.grown_network import GrownNetwork, Preprocess
from esper.kasmina.hosts import build_host
from esper.kasmina.model import MorphogeneticModel
from esper.leyline.errors import (
    EsperError,
    RunFailedError,
    UnknownNameError,
    UnreadableFileError,
)
from esper.leyline.stages import LifecycleRules
from esper.leyline.tasks import HostSpec
from esper.nissa.storage.files import FileSystem, write_atomically
from esper.runtime.tasks import registered_task
from esper.simic.training.checkpoints.checkpoint_store import check_version, read_tensors
from esper.version import __version__

__all__ = [
    "GROWN_FILE",
    "GROWN_VERSION",
    "GrownHeader",
    "GrownWriter",
    "load_grown",
    "load_grown_with_header",
    "materialize_grown_state",
    "read_grown_header",
    "save_grown",
]

GROWN_FILE: Final = "grown.pt"
"""The best network of a run, in the directory of the run."""
GROWN_VERSION: Final = 2
_KIND: Final = "grown network"


class GrownHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Provenance of a grown network and the configuration needed to load it."""

    task: str
    host: HostSpec | None
    """None for a custom host, which the task's `build_host` rebuilds."""
    slots: tuple[str, ...]
    lifecycle: LifecycleRules
    pixel_mean: tuple[float, ...] | None = None
    """Inputs are normalised as (pixel - mean) / std; None leaves them unchanged."""
    pixel_std: tuple[float, ...] | None = None
    input_shape: tuple[int, ...] | None = None
    """Of one stored input, without the batch; None in files of earlier versions."""
    takes_tokens: bool = False
    """Whether inputs are token ids instead of floating-point numbers."""
    esper_version: str = __version__


def materialize_grown_state(model: MorphogeneticModel) -> dict[str, Any]:
    """Copy a network to CPU memory, without the seeds that do not contribute to its output.

    Call only after the fence: the copies synchronize with the device.
    """
    state = model.state()
    # A seed in training, or with alpha 0, does not change the output and would only be ballast.
    kept = set(model.blended_slots())
    prefixes = ("host.", *(f"slots.{slot_id}." for slot_id in sorted(kept)))
    return {
        **state,
        "seeds": {
            slot_id: seed if slot_id in kept else None for slot_id, seed in state["seeds"].items()
        },
        "weights": {
            name: tensor.detach().cpu().clone()
            for name, tensor in state["weights"].items()
            if name.startswith(prefixes)
        },
    }


def save_grown(
    state: dict[str, Any], header: GrownHeader, path: Path, *, files: FileSystem | None = None
) -> None:
    """Write a grown network atomically."""
    buffer = io.BytesIO()
    contents = {"version": GROWN_VERSION, "header": msgspec.to_builtins(header), "model": state}
    torch.save(contents, buffer)
    try:
        write_atomically(files or FileSystem(), path, buffer.getvalue())
    except OSError as error:
        raise RunFailedError(
            f"{error.filename or path}: the grown network could not be written: {error.strerror}"
        ) from error


@dataclass(frozen=True, slots=True)
class GrownWriter:
    """Writes the best network of a run to one path, replacing the previous one."""

    path: Path
    header_of: Callable[[int, int], GrownHeader]
    """Returns the header of the network of a round and env."""
    files: FileSystem = field(default_factory=FileSystem)

    def save(self, state: dict[str, Any], round_index: int, env_id: int) -> None:
        """Replace the saved network by a better one, of this round and env."""
        save_grown(state, self.header_of(round_index, env_id), self.path, files=self.files)


def read_grown_header(path: Path | str) -> GrownHeader:
    """Return the header of a grown network without building it."""
    header, _ = _read(Path(path))
    return header


def load_grown(path: Path | str) -> GrownNetwork:
    """Load a grown network as an ordinary module in evaluation mode, which can be trained on."""
    network, _ = load_grown_with_header(Path(path))
    return network


def load_grown_with_header(path: Path) -> tuple[GrownNetwork, GrownHeader]:
    """Load a grown network, and what its file says of it."""
    header, state = _read(path)
    # The initial weights are overwritten below, so the seed of this generator does not matter.
    host = _build_host(header, path, torch.Generator())
    set_dropout = getattr(host, "set_dropout_generator", None)
    if set_dropout is not None:
        # A user who trains the network further would otherwise get an error from its dropout.
        set_dropout(torch.Generator().manual_seed(0))
    try:
        model = MorphogeneticModel(host, header.slots, header.lifecycle)
        model.load_state(state)
    except EsperError as error:
        raise UnreadableFileError(path, f"does not fit its host: {error}") from error
    # Those of a seed that was being removed were frozen.
    model.requires_grad_(True)
    scale = Preprocess(header.pixel_mean, header.pixel_std)
    return GrownNetwork(scale, model).eval(), header


def _build_host(header: GrownHeader, path: Path, generator: torch.Generator) -> nn.Module:
    if header.host is not None:
        return build_host(header.host, generator)
    try:
        task = registered_task(header.task)
    except UnknownNameError as error:
        raise UnreadableFileError(path, _unknown_host(header.task)) from error
    if task.build_host is None:
        raise UnreadableFileError(path, _unknown_host(header.task))
    return task.build_host(task.spec, generator)


def _unknown_host(task: str) -> str:
    return (
        f"uses a host built by task {task!r}, which is not registered; install "
        "its package, or call register_task with build_host first"
    )


def _read(path: Path) -> tuple[GrownHeader, dict[str, Any]]:
    contents = read_tensors(path, _KIND)
    if not isinstance(contents, dict) or not {"version", "header", "model"} <= contents.keys():
        raise UnreadableFileError(path, f"not a {_KIND} of Esper")
    check_version(path, contents["version"], GROWN_VERSION, "grow it again")
    try:
        header = msgspec.convert(contents["header"], GrownHeader)
    except msgspec.ValidationError as error:
        raise UnreadableFileError(path, f"not a {_KIND} of Esper: {error}") from None
    return header, contents["model"]
