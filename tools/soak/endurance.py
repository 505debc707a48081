"""A long run on a tiny task: memory, threads and open files do not grow."""

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from tests.builders.tiny_tasks import TINY, register_tiny_tasks
from tools.bench.rows import Row
from tools.soak.siege import rss_bytes

from esper.leyline.errors import InterruptedRunError
from esper.leyline.jobs import merge_job
from esper.runtime.tasks import all_tasks
from esper.simic.training.checkpoints.checkpointer import Checkpointer
from esper.simic.training.vectorized import run_job

QUICK_S, FULL_S = 20.0, 1_800.0
WARM_UP = 1 / 3
"""Share of the duration that counts as warm-up."""
SAMPLE_EVERY_S = 1.0
MIB = 2**20


class Sample(NamedTuple):
    """The process's resources at the end of a round."""

    after_s: float
    rss_bytes: int
    num_threads: int
    num_files: int


@dataclass(eq=False, slots=True)
class Logbook:
    """Takes samples at the end of rounds, and ends the run after its duration."""

    seconds: float
    stop: threading.Event = field(default_factory=threading.Event)
    samples: list[Sample] = field(default_factory=list)
    num_rounds: int = 0
    _began_s: float = field(default_factory=time.monotonic)

    def note(self) -> None:
        """Take a sample; at most one per second, so that they are not what grows."""
        after_s = time.monotonic() - self._began_s
        self.num_rounds += 1
        if self.samples and after_s < self.samples[-1].after_s + SAMPLE_EVERY_S:
            return
        num_files = len(os.listdir("/proc/self/fd"))
        self.samples.append(Sample(after_s, rss_bytes(), threading.active_count(), num_files))
        if after_s > self.seconds:
            self.stop.set()

    def steady(self) -> list[Sample]:
        """Return the samples after the warm-up."""
        return [sample for sample in self.samples if sample.after_s > WARM_UP * self.seconds]

    def growth_bytes_per_s(self) -> float:
        """Return the slope of the memory over time, by least squares."""
        steady = self.steady()
        times = [sample.after_s for sample in steady]
        sizes = [sample.rss_bytes for sample in steady]
        mean_s, mean_bytes = sum(times) / len(times), sum(sizes) / len(sizes)
        spread = sum((time_s - mean_s) ** 2 for time_s in times)
        both = zip(times, sizes, strict=True)
        return sum((time_s - mean_s) * (size - mean_bytes) for time_s, size in both) / spread


def long_run(folder: Path, seconds: float) -> Logbook:
    """Train for this duration in this process."""
    register_tiny_tasks()
    layer = {
        "training": {"task": TINY, "n_episodes": 1_000_000},
        "run": {"telemetry_dir": str(folder), "lanes": 2, "fsync": "never"},
    }
    job, _ = merge_job(("soak", layer), tasks=all_tasks())
    logbook, save = Logbook(seconds), Checkpointer.save

    def saving(checkpointer: Checkpointer, *arguments: Any, **options: Any) -> Any:
        logbook.note()
        return save(checkpointer, *arguments, **options)

    with mock.patch.object(Checkpointer, "save", saving):
        try:
            run_job(job, shutdown_event=logbook.stop)
        except InterruptedRunError:
            return logbook
    raise AssertionError("the run ended before its time")


def steady_samples(folder: Path, seconds: float) -> list[Sample]:
    """Train for this duration in a fresh process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_steady_samples, folder, seconds).result()


def _steady_samples(folder: Path, seconds: float) -> list[Sample]:
    return long_run(folder, seconds).steady()


def rows(is_quick: bool) -> Iterator[Row]:
    """Train for a long time: row L10."""
    with tempfile.TemporaryDirectory() as name:
        logbook = long_run(Path(name), QUICK_S if is_quick else FULL_S)
    steady = logbook.steady()
    length = f"{logbook.num_rounds} rounds in {logbook.samples[-1].after_s:,.0f} s"
    # In seconds memory is still warming up: the quick form says nothing about it.
    if not is_quick:
        yield Row(
            name="L10 memory growth in ten minutes",
            measured=logbook.growth_bytes_per_s() * 600 / MIB,
            target=1.0,
            unit="MiB",
            note=length,
        )
    for what, numbers in (
        ("threads", [sample.num_threads for sample in steady]),
        ("open files", [sample.num_files for sample in steady]),
    ):
        yield Row(
            name=f"L10 growth in {what}",
            measured=max(numbers) - numbers[0],
            target=0.0,
            unit=what,
            note=f"{numbers[0]} at first; {length}",
        )
