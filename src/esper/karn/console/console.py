"""The console: a live screen on a terminal, milestone lines elsewhere, a summary at the end."""

import contextlib
import io
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TextIO, cast

import anyio
from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from esper.karn.console.screen import (
    alarm_line,
    draw_screen,
    draw_summary,
    round_line,
    start_line,
)
from esper.karn.console.signs import STYLES
from esper.karn.view.alarms import is_alarm
from esper.karn.view.snapshot import Snapshot
from esper.karn.view.thresholds import Grade
from esper.karn.view.view_model import ViewModel
from esper.leyline import payloads
from esper.leyline.printable import printable
from esper.leyline.tasks import is_task_reference
from esper.leyline.telemetry import Event, Severity

__all__ = ["Console"]

REFRESH_S: Final = 0.25
RESUMABLE: Final = ("interrupted", "failed")


class _LossyStream:
    """A text stream that stops writing at the first failure: progress is worth no run.

    The reader of a pipe has closed it, the disk is full, or the terminal is gone.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._is_lost = False

    def write(self, text: str) -> int:
        with self._noting_loss():
            if not self._is_lost:
                self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with self._noting_loss():
            if not self._is_lost:
                self._file.flush()

    @contextlib.contextmanager
    def _noting_loss(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):  # Python raises ValueError for a closed stream
            self._is_lost = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)  # what rich asks about: encoding, descriptor, terminal


def _wants_plain_text() -> bool:
    """Return whether a terminal cannot move its cursor, or its user wants no colour."""
    return os.environ.get("TERM") in ("dumb", "unknown") or bool(os.environ.get("NO_COLOR"))


class Console:
    """Shows the progress of a run on a stream; `on_event` is thread-safe.

    On a terminal, `run` draws a live screen. Otherwise `on_event` writes one line per milestone, so
    that a pipe or file receives whole lines only. In quiet mode only severe alarms are written.
    """

    def __init__(
        self,
        file: TextIO,
        *,
        is_quiet: bool = False,
        footer: tuple[str, ...] = (),
        final_footer: tuple[str, ...] | None = None,
        run_dir: Path | None = None,
        clock: Callable[[], float] = time.time,
        is_terminal: bool | None = None,
        width: int | None = None,
        height: int | None = None,
    ) -> None:
        """Create a console that writes to a stream.

        Args:
            file: the output stream; a terminal gets the live screen.
            is_quiet: write nothing but alarms of severity error or higher.
            footer: lines below the live screen, with the locations of log and dashboard.
            final_footer: lines below the summary; None uses `footer`.
            run_dir: the run's directory, for the command that resumes an interrupted run.
            clock: returns the current time in seconds since the epoch.
            is_terminal: None detects it from the stream.
            width: columns; None uses the terminal's width.
            height: lines; None uses the terminal's height.
        """
        if isinstance(file, io.TextIOWrapper):
            # Write characters that the encoding lacks as '?' instead of failing the run.
            file.reconfigure(errors="replace")
        self._rich = RichConsole(
            file=cast(TextIO, _LossyStream(file)),
            force_terminal=False if _wants_plain_text() else is_terminal,
            width=width,
            height=height,
            highlight=False,
            markup=False,
        )
        self._is_quiet = is_quiet
        self._footer = tuple(map(printable, footer))
        last = footer if final_footer is None else final_footer
        self._final_footer = tuple(map(printable, last))
        self._run_dir = run_dir
        self._clock = clock
        self._model = ViewModel()
        # Events arrive on the thread that reads the log, screens are drawn on the event loop.
        self._lock = threading.Lock()
        self._seen_alarms: set[tuple[str, int | None]] = set()

    @property
    def is_live(self) -> bool:
        """Check whether the console draws a live screen instead of writing lines."""
        return self._rich.is_terminal and not self._is_quiet

    def on_event(self, event: Event) -> None:
        """Process an event; without a live screen, write a line if it is a milestone."""
        with self._lock:
            self._model.apply(event)
            if not self.is_live:
                self._write_milestone(event)

    def _write_milestone(self, event: Event) -> None:
        if is_alarm(event):
            self._write_alarm(event)
        if self._is_quiet:
            return
        match event.data:
            case payloads.TrainingStarted():
                self._write(event.ts, start_line(self._model.snapshot()))
            case payloads.BatchEpochCompleted():
                view = self._model.snapshot()
                row = next(row for row in view.rounds if row.round == (event.round or 0))
                self._write(event.ts, round_line(view, row))
            case payloads.CheckpointLoaded():
                rounds = event.data.rounds_completed
                self._write(event.ts, f"resumed from the checkpoint after round {rounds}")

    def _write_alarm(self, event: Event) -> None:
        """Write the first alarm of its kind and env; the summary counts the others."""
        key = (event.event_type.value, event.env_id)
        is_grave = event.severity.rank >= Severity.ERROR.rank
        # Each kind once: an alarm that repeats every step would push everything else off the
        # screen.
        if key in self._seen_alarms or (self._is_quiet and not is_grave):
            return
        self._seen_alarms.add(key)
        alarm = self._model.snapshot().alarms[0]
        self._write(event.ts, alarm_line(alarm), STYLES[Grade.ACT if is_grave else Grade.WATCH])

    def _write(self, ts: float, text: str, style: str = "") -> None:
        stamp = time.strftime("%H:%M:%S", time.localtime(ts))
        # No wrapping: consumers of a pipe expect one line per milestone.
        self._rich.print(Text(f"{stamp}  {text}", style=style), soft_wrap=True)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the view model at the current time."""
        with self._lock:
            return self._model.snapshot(self._clock())

    async def run(self) -> None:
        """Draw the live screen until cancelled, then restore the terminal.

        Consumes: the model. Produces: at most four screens a second. Waits for: the clock.
        Unblocked by: cancellation. Without a live screen it only waits.
        """
        if not self.is_live:
            await anyio.sleep_forever()
        # Live prints other output to the terminal above the screen instead of into it.
        with Live(console=self._rich, auto_refresh=False, transient=True) as live:
            while True:
                live.update(self._screen(), refresh=True)
                await anyio.sleep(REFRESH_S)

    def _screen(self) -> RenderableType:
        return draw_screen(
            self.snapshot(),
            footer=self._footer,
            height=self._rich.size.height,
            width=self._rich.size.width,
            is_ascii=self._rich.options.ascii_only,
        )

    def draw(self) -> None:
        """Draw the current screen once."""
        self._rich.print(self._screen())

    def finish(self) -> None:
        """Write the final summary."""
        if self._is_quiet:
            return
        view = self.snapshot()
        self._rich.print(draw_summary(view))
        for line in ("", *self._final_footer) if self._final_footer else ():
            # No truncation on narrow terminals, so that paths and commands can be copied.
            self._rich.print(Text(line, style="dim"), soft_wrap=True)
        if self._run_dir is not None and view.run is not None and view.progress.status in RESUMABLE:
            controller = printable(view.run.facts.controller)
            path = printable(shlex.quote(str(self._run_dir)))
            task = view.run.facts.task
            # Code beside the run is executed only if it is named again.
            named = f" --task {printable(shlex.quote(task))}" if is_task_reference(task) else ""
            command = f"esper-train {controller}{named} --resume {path}"
            self._rich.print(Text(command), soft_wrap=True)
