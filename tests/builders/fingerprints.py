"""Hashes of a run's results, equal for bit-identical runs."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from esper.nissa.analysis.normalizing import normal_form
from esper.nissa.storage.journal import EVENTS_FILE
from esper.nissa.storage.run_directory import CHECKPOINTS_DIRECTORY
from esper.simic.training.checkpoints.checkpoint_store import CheckpointStore, read_checkpoint

VOLATILE_KEYS = frozenset({"duration_s", "num_bytes", "job", "run_id"})
"""Checkpoint fields that depend on clocks, sizes, paths and names."""


def latest_checkpoint(run_dir: Path) -> Path | None:
    """Return the newest checkpoint of a run, or None."""
    return CheckpointStore(run_dir / CHECKPOINTS_DIRECTORY).latest()


def fingerprint(run_dir: Path) -> str:
    """Hash the last checkpoint (policy, optimizer, normalisers, counters) and the event log."""
    checkpoint = latest_checkpoint(run_dir)
    assert checkpoint is not None, f"{run_dir} has no checkpoint"
    digest = hashlib.sha256()
    _feed(digest, read_checkpoint(checkpoint), without=VOLATILE_KEYS)
    for line in (run_dir / EVENTS_FILE).read_bytes().splitlines():
        digest.update((normal_form(line) or b"") + b"\n")
    return digest.hexdigest()


def digest_of(node: Any) -> str:
    """Hash nested containers of tensors and primitives."""
    digest = hashlib.sha256()
    _feed(digest, node, without=frozenset())
    return digest.hexdigest()


def _feed(digest: "hashlib._Hash", node: Any, *, without: frozenset[str]) -> None:
    if isinstance(node, torch.Tensor):
        digest.update(f"{node.dtype}{tuple(node.shape)}".encode())
        digest.update(node.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(node, Mapping):
        for key in node:
            if key not in without:
                digest.update(repr(key).encode())
                _feed(digest, node[key], without=without)
    elif isinstance(node, list | tuple):
        for item in node:
            _feed(digest, item, without=without)
    else:
        digest.update(repr(node).encode())
