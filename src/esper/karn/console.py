"""The console: a live screen on a terminal, milestone lines elsewhere, a summary at the end."""

import io
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TextIO

import anyio
from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from esper.karn.alarms import is_alarm
from esper.karn.console_screen import (
    STYLES,
    alarm_line,
    draw_screen,
    draw_summary,
    round_line,
    start_line,
)
from esper.karn.snapshot import Snapshot
from esper.karn.thresholds import Grade
from esper.karn.view_model import ViewModel
from esper.leyline import payloads
from esper.leyline.telemetry import Event, Severity

__all__ = ["Console"]

REFRESH_S: Final = 0.25


def _ignore() -> None:
    """Let a closed stream be."""


class _Stream(RichConsole):
    """A console that falls silent when its reader has left, and reports it once."""

    def __init__(self, *, on_closed: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self._on_closed = on_closed

    def on_broken_pipe(self) -> None:
        """Write nothing any more; rich would leave through SystemExit, past the loop's clean-up."""
        self.quiet = True
        self._on_closed()


class Console:
    """Shows a run to whoever started it. `on_event` may be called from any thread.

    On a terminal `run` keeps a live screen; elsewhere `on_event` writes a line per milestone, so
    that a pipe or a file gets whole lines and nothing else. Quiet, it says only what is grave.
    """

    def __init__(
        self,
        file: TextIO,
        *,
        is_quiet: bool = False,
        footer: tuple[str, ...] = (),
        final_footer: tuple[str, ...] | None = None,
        on_broken_pipe: Callable[[], None] = _ignore,
        clock: Callable[[], float] = time.time,
        is_terminal: bool | None = None,
        width: int | None = None,
        height: int | None = None,
    ) -> None:
        """Write to a stream.

        Args:
            file: where to; a terminal gets the live screen.
            is_quiet: write nothing but grave alarms.
            footer: lines that say where log and dashboard are, below the live screen.
            final_footer: the lines below the summary; None takes those of the live screen.
            on_broken_pipe: called, from any thread, when the stream's reader has left.
            clock: the present, in seconds since the epoch.
            is_terminal: None asks the stream.
            width: columns; None asks the terminal.
            height: lines; None asks the terminal.
        """
        if isinstance(file, io.TextIOWrapper):
            # A sign that the stream cannot write becomes a question mark, not an end of the run.
            file.reconfigure(errors="replace")
        self._rich = _Stream(
            on_closed=on_broken_pipe,
            file=file,
            force_terminal=is_terminal,
            width=width,
            height=height,
            highlight=False,
            markup=False,
        )
        self._is_quiet = is_quiet
        self._footer = footer
        self._final_footer = footer if final_footer is None else final_footer
        self._clock = clock
        self._model = ViewModel()
        self._lock = threading.Lock()
        self._seen_alarms: set[tuple[str, int | None]] = set()

    @property
    def is_live(self) -> bool:
        """Tell whether it draws a screen instead of writing lines."""
        return self._rich.is_terminal and not self._is_quiet

    def on_event(self, event: Event) -> None:
        """Take an event; off a terminal, write a line if it is a milestone."""
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
        if key in self._seen_alarms or (self._is_quiet and not is_grave):
            return
        self._seen_alarms.add(key)
        alarm = self._model.snapshot().alarms[0]
        self._write(event.ts, alarm_line(alarm), STYLES[Grade.ACT if is_grave else Grade.WATCH])

    def _write(self, ts: float, text: str, style: str = "") -> None:
        stamp = time.strftime("%H:%M:%S", time.localtime(ts))
        # One line per milestone, however long: a pipe is read by lines.
        self._rich.print(Text(f"{stamp}  {text}", style=style), soft_wrap=True)

    def snapshot(self) -> Snapshot:
        """Return the view as seen now."""
        with self._lock:
            return self._model.snapshot(self._clock())

    async def run(self) -> None:
        """Keep the live screen until cancelled; leaves the terminal as it was.

        Consumes: the model. Produces: at most four screens a second. Waits for: the clock.
        Unblocked by: cancellation. Off a terminal it only waits.
        """
        if not self.is_live:
            await anyio.sleep_forever()
        # What others print meanwhile goes above the screen instead of through it.
        with Live(console=self._rich, auto_refresh=False, transient=True) as live:
            while True:
                live.update(self._screen(), refresh=True)
                await anyio.sleep(REFRESH_S)

    def _screen(self) -> RenderableType:
        return draw_screen(
            self.snapshot(),
            footer=self._footer,
            height=self._rich.size.height,
            is_ascii=self._rich.options.ascii_only,
        )

    def draw(self) -> None:
        """Write the screen once, as it is now."""
        self._rich.print(self._screen())

    def finish(self) -> None:
        """Write the final summary."""
        if self._is_quiet:
            return
        self._rich.print(draw_summary(self.snapshot()))
        for line in ("", *self._final_footer) if self._final_footer else ():
            # Whole, however narrow the terminal: these are to be copied.
            self._rich.print(Text(line, style="dim"), soft_wrap=True)
