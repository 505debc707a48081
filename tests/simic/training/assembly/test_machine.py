"""What a run changes in this process, and that all but the heap is restored."""

import contextlib
import ctypes
import os

import pytest
import torch

from esper.leyline.config import TrainingConfig
from esper.simic.training.assembly.machine import num_lanes_for, run_settings


def test_run_has_one_thread_and_one_heap_and_the_threads_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int]] = []

    class Glibc:
        def mallopt(self, what: int, value: int) -> int:
            asked.append((what, value))
            return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Glibc())
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with contextlib.suppress(OSError), run_settings(TrainingConfig()):
            assert torch.get_num_threads() == 1
            raise OSError("in the run")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert [value for _, value in asked] == [1]


def test_lanes_are_as_asked_for_but_no_more_than_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)

    assert [num_lanes_for(None, 8), num_lanes_for(None, 2), num_lanes_for(3, 8)] == [4, 2, 3]
    assert num_lanes_for(6, 2) == 2
