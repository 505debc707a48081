"""Torch profiler traces of all threads over a few steps, as Chrome trace files."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, schedule

from esper.leyline.config import ProfilerConfig
from esper.leyline.errors import UsageError
from esper.nissa.storage.files import require_own_directory
from esper.tolaria.lanes import Lane

__all__ = ["StepTracer", "prepare_tracing"]

SUMMARY_ROWS: Final = 40
"""Number of operators in a summary, most expensive first."""


def prepare_tracing(config: ProfilerConfig) -> None:
    """Prepare the profiler on the thread that imported torch, before the run is created."""
    if not config.torch:
        return
    if Path(config.torch_dir).is_absolute():
        _make_directory(Path(config.torch_dir))
    # Kineto logs every start and stop on stderr, which is reserved for our own messages.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    # It also warns if the first trace of a process starts on any other thread.
    with profile(activities=[ProfilerActivity.CPU]):
        pass


@dataclass(eq=False, slots=True)
class StepTracer:
    """Records steps of a run by schedule; disabled without a directory.

    The profiler must be controlled from one thread and records all threads. A dedicated thread
    without a deadline is used, because writing a long trace takes a while.
    """

    config: ProfilerConfig
    directory: Path | None
    num_traces: int = 0
    """Number of traces written so far."""
    _lane: Lane | None = None
    _profile: profile | None = None
    _place: str = "start"
    """The last finished step, for the file name."""

    async def start(self) -> None:
        """Start the schedule of the first trace with the next step."""
        if self.directory is not None:
            self._lane = Lane("tracer")
            await self._lane.run(self._begin)

    async def finish_step(self, round_index: int, step: int) -> None:
        """Advance the schedule by a finished step, which may start or write a trace."""
        if self._lane is not None:
            await self._lane.run(self._note_step, f"round-{round_index:06d}-step-{step:06d}")

    async def stop(self) -> None:
        """Stop profiling; a trace in progress is written as far as recorded."""
        lane, self._lane = self._lane, None
        if lane is not None:
            await lane.run(self._end)
            lane.close()

    def _begin(self) -> None:
        config = self.config
        self._profile = profile(
            activities=_activities(),
            schedule=schedule(
                wait=config.torch_wait,
                warmup=config.torch_warmup,
                active=config.torch_active,
                repeat=1,
            ),
            on_trace_ready=self._write,
            record_shapes=config.torch_record_shapes,
            profile_memory=config.torch_profile_memory,
            with_stack=config.torch_with_stack,
            # Without this, only the thread that starts the trace is recorded.
            experimental_config=_ExperimentalConfig(profile_all_threads=True),
        )
        self._profile.start()

    def _note_step(self, place: str) -> None:
        self._place, num_before = place, self.num_traces
        if self._profile is not None:
            self._profile.step()
        if self.num_traces > num_before:
            # One profiler per trace: a reused one retains all events, or warns that it drops them.
            self._end()
            if self.num_traces != self.config.torch_repeat:
                self._begin()

    def _end(self) -> None:
        running, self._profile = self._profile, None
        if running is not None:
            running.stop()

    def _write(self, finished: profile) -> None:
        assert self.directory is not None, "recording without a directory"
        parts = Path(self.config.torch_dir)
        if not parts.is_absolute():  # a part of the run's directory
            for directory in (self.directory, *self.directory.parents)[: len(parts.parts)]:
                require_own_directory(directory)
        _make_directory(self.directory)
        path = self.directory / f"{self._place}.json"
        for stale in (path, path.with_suffix(".txt")):
            stale.unlink(missing_ok=True)  # it might be a link to another file
        finished.export_chrome_trace(str(path))
        self.num_traces += 1
        if self.config.torch_summary:
            table = finished.key_averages().table(
                sort_by="self_cpu_time_total", row_limit=SUMMARY_ROWS
            )
            path.with_suffix(".txt").write_text(table, encoding="utf-8")


def _activities() -> list[ProfilerActivity]:
    found = [ProfilerActivity.CPU]
    return [*found, ProfilerActivity.CUDA] if torch.cuda.is_available() else found


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"{path}: cannot write traces there: {reason}; choose another directory with "
            "--torch-profiler-dir"
        ) from None
