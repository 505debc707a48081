"""Benchmarks of sinks: what one adds to the CPU time of a run."""

import os
import resource
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple
from unittest import mock

import torch

from tools.bench.pairing import spread
from tools.bench.rows import Row, bench
from tools.bench.training import repetitions
from tools.bench.workloads import DIGITS, Workload, run_workload

PACKAGES: Final = {"jsonl": None, "tensorboard": "tensorboard", "wandb": "wandb"}
"""What each sink needs."""


class _Cost(NamedTuple):
    """CPU seconds of a run."""

    run_s: float
    """All of its threads, without processes beside it."""
    sink_s: float
    """The process of its sink."""


@bench("T11")
def sinks(is_quick: bool) -> Iterator[Row]:
    """Measure the CPU time of a run and its sink over that of the same run without one."""
    torch.set_num_threads(1)
    workload = replace(DIGITS, num_steps=20) if is_quick else DIGITS
    for name, package in PACKAGES.items():
        if package is not None and find_spec(package) is None:
            continue
        alone: list[float] = []
        beside: list[_Cost] = []
        for counts in repetitions(is_quick):
            without, with_one = _cost(workload, None), _cost(workload, name)
            if counts:
                alone.append(without.run_s)
                beside.append(with_one)
        pairs = list(zip(alone, beside, strict=True))
        ratios = [sum(cost) / run_s for run_s, cost in pairs]
        own = statistics.median(cost.run_s / run_s for run_s, cost in pairs)
        sink_s = statistics.median(cost.sink_s for cost in beside)
        yield Row(
            name=f"T11 sink {name} / none",
            measured=statistics.median(ratios),
            unit="CPU ratio",
            note=f"{spread(ratios)}; the run alone {own:.3f}, its sink {sink_s:.2f} s",
        )


def _cost(workload: Workload, sink: str | None) -> _Cost:
    """Run a workload and return what it and its sink have used."""
    with TemporaryDirectory() as folder, mock.patch.dict(os.environ, WANDB_MODE="offline"):
        target = f"{sink}:{Path(folder) / 'copy.jsonl'}" if sink == "jsonl" else sink
        began_s, began_children_s = time.process_time(), _children_s()
        run_workload(workload, sinks=() if target is None else (target,))
        return _Cost(time.process_time() - began_s, _children_s() - began_children_s)


def _children_s() -> float:
    """Return the CPU seconds of child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
