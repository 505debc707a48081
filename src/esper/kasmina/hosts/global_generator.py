"""torch's global generator, which foreign modules draw from: one thread at a time, and restored."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

__all__ = ["borrowed_global_generator"]

_LOCK: Final = threading.RLock()
"""Reentrant, as a factory may itself cut a network."""


@contextmanager
def borrowed_global_generator(seed: int) -> Iterator[None]:
    """Seed the global CPU generator for the code inside, and restore its state behind it."""
    with _LOCK, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
