"""Rendering for the console: the live screen, milestone lines and the final summary."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from esper.karn.console.env_table import draw_env_table
from esper.karn.console.formatting import MISSING, duration, number
from esper.karn.console.signs import STYLES, grade_sign
from esper.karn.view.snapshot import AlarmView, GrowthView, PolicyView, RoundView, Snapshot
from esper.karn.view.thresholds import THRESHOLDS, Grade, grade
from esper.leyline.printable import printable
from esper.leyline.telemetry import Severity

__all__ = ["alarm_line", "draw_screen", "draw_summary", "round_line", "start_line"]

FIXED_LINES: Final = 14
"""Screen lines other than the rows of the env table."""
MIN_ENV_ROWS: Final = 2
NUM_ALARMS: Final = 3
NUM_REASONS: Final = 2


def draw_screen(
    view: Snapshot,
    *,
    footer: tuple[str, ...] = (),
    height: int = 24,
    width: int = 80,
    is_ascii: bool = False,
) -> RenderableType:
    """Draw the live screen so that it fits a terminal of this size."""
    num_rows = max(height - FIXED_LINES - len(footer), MIN_ENV_ROWS)
    return Group(
        *_headline(view, is_ascii),
        _progress(view),
        draw_env_table(view, num_rows, width, is_ascii=is_ascii),
        _policy_line(view, is_ascii),
        *(_alarm_text(alarm, is_ascii) for alarm in view.alarms[:NUM_ALARMS]),
        *(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in footer),
    )


def _headline(view: Snapshot, is_ascii: bool) -> list[RenderableType]:
    title = Text("Esper", style="bold cyan", no_wrap=True, overflow="ellipsis")
    if view.run is not None:
        facts = view.run.facts
        title.append(f"  {printable(facts.task)}, {printable(facts.controller)}", style="default")
        title.append(f", run {printable(view.run.run_id)}", style="dim")
    verdict = Text.assemble(
        grade_sign(view.verdict.grade, is_ascii),
        (view.verdict.headline, "bold"),
        no_wrap=True,
        overflow="ellipsis",
    )
    lines: list[RenderableType] = [title, verdict]
    for reason in view.verdict.reasons[:NUM_REASONS]:
        text = Text("  ", no_wrap=True, overflow="ellipsis")
        text.append_text(grade_sign(reason.grade, is_ascii)).append(printable(reason.text))
        lines.append(text)
    return lines


def _progress(view: Snapshot) -> RenderableType:
    progress = view.progress
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    left = (
        f"round {_position(progress.round, progress.num_rounds)}, "
        f"step {_position(progress.step, progress.num_steps)}"
    )
    rest = duration(progress.eta_s) + " left" if progress.eta_s is not None else progress.status
    right = f"{number(progress.fraction, '.0%')}, {rest}, {_pace(view)}"
    bar = ProgressBar(
        total=1.0,
        completed=progress.fraction or 0.0,
        complete_style="cyan",
        finished_style="green",
    )
    grid.add_row(left, bar, right)
    return grid


def _pace(view: Snapshot) -> str:
    return number(view.progress.steps_per_s, ".1f", " env steps/s")


def _position(index: int | None, total: int | None) -> str:
    shown = MISSING if index is None else str(index + 1)
    return f"{shown}/{MISSING if total is None else total}"


def _policy_line(view: Snapshot, is_ascii: bool) -> Text:
    line = Text("policy  ", no_wrap=True, overflow="ellipsis")
    policy = next((row.policy for row in reversed(view.rounds) if row.policy is not None), None)
    if policy is None:
        return line.append("no update yet")
    for name in ("kl_divergence", "clip_fraction", "value_nrmse", "gradient_norm", "entropy"):
        value: float | None = getattr(policy, name)
        line.append_text(grade_sign(grade(name, value), is_ascii))
        line.append(f"{THRESHOLDS[name].label} {number(value, '.3g')}  ")
    return line


def _alarm_text(alarm: AlarmView, is_ascii: bool) -> Text:
    is_grave = Severity(alarm.severity).rank >= Severity.ERROR.rank
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append_text(grade_sign(Grade.ACT if is_grave else Grade.WATCH, is_ascii))
    return text.append(alarm_line(alarm))


def alarm_line(alarm: AlarmView) -> str:
    """Format an alarm as one line."""
    where = "" if alarm.env_id is None else f"env {alarm.env_id}: "
    times = f" ({alarm.count} times)" if alarm.count > 1 else ""
    return printable(f"{alarm.severity}: {where}{alarm.text}{times}")


def start_line(view: Snapshot) -> str:
    """Describe in one line what is being trained."""
    assert view.run is not None, "a run has started when its first line is written"
    facts = view.run.facts
    data = "SYNTHETIC data" if facts.data_source == "synthetic" else f"data: {facts.data_source}"
    return printable(
        f"run {view.run.run_id}: {facts.task}, {facts.controller}, {facts.num_rounds} rounds of "
        f"{facts.num_envs} envs with {facts.num_steps} steps, seed {facts.seed}, {data}"
    )


def round_line(view: Snapshot, row: RoundView) -> str:
    """Summarise a round in one line."""
    low, high = number(row.low_accuracy_pct, ".1f"), number(row.high_accuracy_pct, ".1f")
    parts = [
        f"round {_position(row.round, view.progress.num_rounds)}",
        f"accuracy {number(row.mean_accuracy_pct, '.1f')} % ({low} to {high})",
        f"task return {number(row.mean_task_return, '+.2f')}",
        f"reward {number(row.mean_reward, '+.2f')}",
        f"{_count(row.num_germinated)} germinated, {_count(row.num_fossilized)} kept, "
        f"{_count(row.num_pruned)} pruned",
        _policy_words(row.policy),
    ]
    if view.progress.eta_s:
        parts.append(f"{duration(view.progress.eta_s)} left")
    return "  ".join(part for part in parts if part)


def _count(value: int | None) -> str:
    return MISSING if value is None else str(value)


def _policy_words(policy: PolicyView | None) -> str:
    return "" if policy is None else f"KL {number(policy.kl_divergence, '.3g')}"


def draw_summary(view: Snapshot) -> RenderableType:
    """Draw the final summary: the outcome of the run and the growth per blueprint."""
    return Group(_overview(view), *_grown(view))


def _overview(view: Snapshot) -> RenderableType:
    progress, growth = view.progress, view.growth
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    ending = progress.status if progress.reason is None else f"{progress.status}: {progress.reason}"
    last = next((row for row in reversed(view.rounds) if row.mean_reward is not None), None)
    table.add_row("run", Text(printable(ending), style="bold"))
    table.add_row("verdict", Text(view.verdict.headline, style=STYLES[view.verdict.grade]))
    table.add_row("rounds", f"{progress.rounds_completed} of {progress.num_rounds or MISSING}")
    table.add_row("time", f"{duration(progress.duration_s or progress.elapsed_s)}, {_pace(view)}")
    table.add_row(
        "accuracy",
        f"last round {number(last.mean_accuracy_pct if last else None, '.2f')} %, "
        f"best {number(progress.best_accuracy_pct, '.2f')} %",
    )
    table.add_row(
        "task return",
        f"last round {number(last.mean_task_return if last else None, '+.2f')}, "
        f"with shaping {number(last.mean_reward if last else None, '+.2f')}",
    )
    table.add_row("seeds", _seeds_words(growth))
    if view.run is not None and view.run.facts.data_source == "synthetic":
        table.add_row("data", Text("synthetic: results do not apply to real data", "bold red"))
    table.add_row("alarms", _alarm_words(view.alarms))
    return table


def _seeds_words(growth: GrowthView) -> str:
    """Return the totals of the finished rounds, which the table of blueprints below adds up to."""
    scores = growth.blueprints
    if not scores:
        counts = (growth.num_germinated, growth.num_fossilized, growth.num_pruned)
    else:
        counts = (
            sum(score.num_germinated for score in scores),
            sum(score.num_fossilized for score in scores),
            sum(score.num_pruned for score in scores),
        )
    return f"{counts[0]} germinated, {counts[1]} kept, {counts[2]} pruned"


def _alarm_words(alarms: Sequence[AlarmView]) -> str:
    counts = Counter[str]()
    for alarm in alarms:
        name = alarm.event_type.removesuffix("_DETECTED").lower().replace("_", " ")
        counts[name] += alarm.count
    if not counts:
        return "none"
    named = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    return f"{counts.total()}: {named}"


def _grown(view: Snapshot) -> list[RenderableType]:
    """Draw one row per germinated blueprint, sorted by the number of fossilized seeds."""
    scores = view.growth.blueprints
    if not scores:
        return []
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("what grew", no_wrap=True)
    for name in ("germinated", "kept", "pruned", "contribution", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    for score in sorted(scores, key=lambda one: (-one.num_fossilized, -one.num_germinated)):
        table.add_row(
            Text(printable(score.blueprint), style="green" if score.num_fossilized else ""),
            str(score.num_germinated),
            str(score.num_fossilized),
            str(score.num_pruned),
            number(score.mean_contribution_pp, "+.2f", " pp"),
            number(score.mean_age_steps, ".1f", " steps"),
        )
    return [Text(), table]
