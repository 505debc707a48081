"""Plots of how costs grow, drawn as SVG from the rows of a results file."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

__all__ = ["PLOTS", "Plot", "drawn", "plot_links", "write_plots"]

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 170, 36, 48
COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#8c564b")

Values = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """What a plot shows: its texts and axes."""

    title: str
    x_label: str
    y_label: str
    is_x_log: bool = False
    is_y_log: bool = False
    is_cost: bool = False
    """Whether a dashed line shows cost that is proportional to x, through each last value."""


PLOTS: Final[Mapping[str, Plot]] = {
    "workers": Plot(
        title="Eight envs on worker processes", x_label="workers", y_label="env-steps per second"
    ),
    "envs": Plot(
        title="Envs of one run, on threads",
        x_label="envs",
        y_label="env-steps per CPU second of the lanes",
        is_x_log=True,
    ),
    "control": Plot(
        title="The control thread alone",
        x_label="envs of the probe engine",
        y_label="CPU µs of control per env-step",
        is_x_log=True,
        is_y_log=True,
    ),
    "subscribers": Plot(
        title="Live subscribers of a run",
        x_label="subscribers",
        y_label="CPU ms of lanes and control per env-step",
    ),
    "server": Plot(
        title="The server at 1,000 events a second",
        x_label="subscribers",
        y_label="% of a core",
    ),
    "logs": Plot(
        title="Reading longer logs",
        x_label="MB of events.jsonl",
        y_label="seconds",
        is_x_log=True,
        is_y_log=True,
        is_cost=True,
    ),
    "memory": Plot(
        title="Memory of reading longer logs",
        x_label="MB of events.jsonl",
        y_label="MiB, all processes of the command",
        is_x_log=True,
    ),
}


def plot_links(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the Markdown of every plot that these rows have points of."""
    found = _points(rows)
    for name in PLOTS:
        if name in found:
            yield f"\n![{PLOTS[name].title}](images/{_file_name(name)})"


def write_plots(rows: Iterable[Mapping[str, Any]], directory: Path) -> None:
    """Draw every plot that these rows have points of."""
    for name, series in _points(rows).items():
        directory.mkdir(exist_ok=True)
        (directory / _file_name(name)).write_text(drawn(PLOTS[name], series), encoding="utf-8")


def _file_name(name: str) -> str:
    return f"growth-{name}.svg"


def _points(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return the values of each series of each plot."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        point = row.get("point")
        if point is not None and row["measured"] is not None:
            series = found.setdefault(point["plot"], {})
            series.setdefault(point["series"], []).append((point["x"], row["measured"]))
    return found


@dataclass(frozen=True, slots=True)
class _Axis:
    """Maps values to positions: pixels from `start` to `end`."""

    low: float
    high: float
    is_log: bool
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        scale: Callable[[float], float] = math.log10 if self.is_log else float
        low, high = scale(self.low), scale(self.high)
        share = (scale(value) - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def drawn(plot: Plot, series: Mapping[str, Values]) -> str:
    """Return a plot as SVG."""
    xs = sorted({x for values in series.values() for x, _ in values})
    ys = [y for values in series.values() for _, y in values]
    y_ticks = _log_ticks(min(ys), max(ys)) if plot.is_y_log else _linear_ticks(max(ys))
    x_axis = _Axis(xs[0], xs[-1], plot.is_x_log, LEFT, WIDTH - RIGHT)
    y_axis = _Axis(y_ticks[0], y_ticks[-1], plot.is_y_log, HEIGHT - BOTTOM, TOP)
    parts = [*_frame(plot), *_grid(x_axis, y_axis, xs, y_ticks)]
    for index, (name, values) in enumerate(series.items()):
        parts += _line(plot, x_axis, y_axis, sorted(values), COLOURS[index % len(COLOURS)])
        parts += _legend(name, index) if name else ()
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
    style = 'font-family="sans-serif" font-size="12" fill="#222"'
    return "\n".join([f'{head} width="{WIDTH}" height="{HEIGHT}" {style}>', *parts, "</svg>", ""])


def _frame(plot: Plot) -> Iterator[str]:
    middle = (LEFT + WIDTH - RIGHT) / 2
    height = (TOP + HEIGHT - BOTTOM) / 2
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    yield _text(LEFT, 20, plot.title, "start", 'font-weight="bold"')
    yield _text(middle, HEIGHT - 10, plot.x_label)
    yield _text(16, height, plot.y_label, "middle", f'transform="rotate(-90 16 {height:g})"')


def _grid(
    x_axis: _Axis, y_axis: _Axis, xs: Sequence[float], y_ticks: Sequence[float]
) -> Iterator[str]:
    for x in xs:
        yield _segment((x_axis(x), y_axis.start), (x_axis(x), y_axis.end))
        yield _text(x_axis(x), y_axis.start + 16, f"{x:,g}")
    for y in y_ticks:
        yield _segment((x_axis.start, y_axis(y)), (x_axis.end, y_axis(y)))
        yield _text(x_axis.start - 6, y_axis(y) + 4, f"{y:,g}", "end")


def _segment(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = start, end
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="#ddd"/>'


def _line(plot: Plot, x_axis: _Axis, y_axis: _Axis, values: Values, colour: str) -> Iterator[str]:
    places = [(x_axis(x), y_axis(y)) for x, y in values]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for x, y in places:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
    if plot.is_cost:
        # Parts below the lowest tick are left out.
        last_x, last_y = values[-1]
        first_x = max(values[0][0], last_x * y_axis.low / last_y)
        start = x_axis(first_x), y_axis(last_y * first_x / last_x)
        (x1, y1), (x2, y2) = start, places[-1]
        yield (
            f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}"'
            ' stroke-dasharray="2 4"/>'
        )


def _legend(name: str, index: int) -> Iterator[str]:
    x, y = WIDTH - RIGHT + 14, TOP + 10 + 18 * index
    colour = COLOURS[index % len(COLOURS)]
    yield f'<rect x="{x}" y="{y - 9}" width="12" height="10" fill="{colour}"/>'
    yield _text(x + 18, y, name, "start")


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _linear_ticks(highest: float) -> list[float]:
    """Return four to eight round numbers from 0 to the first that is not below the highest."""
    if highest <= 0:
        return [0.0, 1.0]
    power = 10 ** math.floor(math.log10(highest))
    step = next(step for step in (0.2, 0.5, 1.0, 2.0) if highest / (step * power) <= 7) * power
    return [step * index for index in range(math.ceil(highest / step) + 1)]


def _log_ticks(lowest: float, highest: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten around the values."""
    powers = range(math.floor(math.log10(lowest)), math.floor(math.log10(highest)) + 2)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    first = max(index for index, tick in enumerate(ticks) if tick <= lowest)
    last = min(index for index, tick in enumerate(ticks) if tick >= highest)
    return ticks[first : max(last, first + 1) + 1]
