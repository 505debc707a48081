"""Rendering for the console: the live screen, milestone lines and the final summary."""

from typing import Final

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from esper.karn.console.formatting import (
    MISSING,
    STAGE_LABELS,
    duration,
    number,
    sparkline,
)
from esper.karn.view.snapshot import (
    AlarmView,
    EnvAttention,
    EnvView,
    PolicyView,
    RoundView,
    SlotView,
    Snapshot,
)
from esper.karn.view.thresholds import THRESHOLDS, Grade, grade
from esper.leyline.printable import printable
from esper.leyline.telemetry import Severity

__all__ = ["alarm_line", "draw_screen", "draw_summary", "round_line", "start_line"]

STYLES: Final = {
    Grade.OK: "green",
    Grade.WATCH: "yellow",
    Grade.ACT: "bold red",
    Grade.UNKNOWN: "dim",
}
SIGNS: Final = {Grade.OK: "✓", Grade.WATCH: "▲", Grade.ACT: "✗", Grade.UNKNOWN: "·"}
ASCII_SIGNS: Final = {Grade.OK: "+", Grade.WATCH: "!", Grade.ACT: "X", Grade.UNKNOWN: "."}
STAGE_STYLES: Final = {
    "GERMINATED": "magenta",
    "TRAINING": "cyan",
    "BLENDING": "yellow",
    "HOLDING": "bright_yellow",
    "FOSSILIZED": "green",
    "PRUNED": "red",
}
STATUS_GRADES: Final = {
    "running": Grade.OK,
    "done": Grade.OK,
    "stalled": Grade.WATCH,
    "degraded": Grade.WATCH,
}
FIXED_LINES: Final = 14
"""Screen lines other than the rows of the env table."""
MIN_ENV_ROWS: Final = 2
NUM_ALARMS: Final = 3
NUM_REASONS: Final = 2


def draw_screen(
    view: Snapshot, *, footer: tuple[str, ...] = (), height: int = 24, is_ascii: bool = False
) -> RenderableType:
    """Draw the live screen so that it fits a terminal of this height."""
    num_rows = max(height - FIXED_LINES - len(footer), MIN_ENV_ROWS)
    return Group(
        *_headline(view, is_ascii),
        _progress(view),
        _env_table(view, num_rows, is_ascii),
        _policy_line(view, is_ascii),
        *(_alarm_text(alarm, is_ascii) for alarm in view.alarms[:NUM_ALARMS]),
        *(Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in footer),
    )


def _sign(level: Grade, is_ascii: bool) -> Text:
    return Text((ASCII_SIGNS if is_ascii else SIGNS)[level] + " ", style=STYLES[level])


def _headline(view: Snapshot, is_ascii: bool) -> list[RenderableType]:
    title = Text("Esper", style="bold cyan", no_wrap=True, overflow="ellipsis")
    if view.run is not None:
        facts = view.run.facts
        title.append(f"  {printable(facts.task)}, {printable(facts.controller)}", style="default")
        title.append(f", run {printable(view.run.run_id)}", style="dim")
    verdict = Text.assemble(
        _sign(view.verdict.grade, is_ascii),
        (view.verdict.headline, "bold"),
        no_wrap=True,
        overflow="ellipsis",
    )
    lines: list[RenderableType] = [title, verdict]
    for reason in view.verdict.reasons[:NUM_REASONS]:
        text = Text("  ", no_wrap=True, overflow="ellipsis")
        text.append_text(_sign(reason.grade, is_ascii)).append(printable(reason.text))
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


def _env_table(view: Snapshot, num_rows: int, is_ascii: bool) -> RenderableType:
    slot_ids = view.run.facts.slot_ids if view.run else ()
    table = Table(box=None, padding=(0, 1, 0, 0), expand=True, header_style="dim")
    for name in ("env", "status"):
        table.add_column(name, no_wrap=True)
    table.add_column("accuracy", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="crop", max_width=20)
    for slot_id in slot_ids:
        table.add_column(printable(slot_id), no_wrap=True)
    table.add_column("last action", no_wrap=True, overflow="ellipsis")
    table.add_column("reward", justify="right", no_wrap=True)
    envs = {env.env_id: env for env in view.envs}
    for item in view.attention[:num_rows]:
        table.add_row(*_env_row(envs[item.env_id], item, is_ascii))
    hidden = len(view.attention) - num_rows
    if hidden > 0:
        table.add_row("", Text(f"and {hidden} more", style="dim"))
    return table


def _env_row(env: EnvView, item: EnvAttention, is_ascii: bool) -> list[Text]:
    level = max(STATUS_GRADES.get(env.status, Grade.ACT), item.grade, key=lambda one: one.rank)
    action = env.last_action
    words = MISSING if action is None else f"{action.op.lower()} {action.slot_id or ''}".rstrip()
    if action is not None and not action.succeeded:
        words += " (failed)"
    return [
        Text(str(env.env_id)),
        Text.assemble(
            _sign(level, is_ascii), printable(item.reasons[0] if item.reasons else env.status)
        ),
        Text(number(env.accuracy_pct, ".1f", " %")),
        Text(sparkline(env.sparkline[-20:], is_ascii=is_ascii), style="cyan"),
        *(_slot_text(slot) for slot in env.slots),
        Text(printable(words)),
        Text(number(env.total_reward, "+.2f")),
    ]


def _slot_text(slot: SlotView) -> Text:
    if slot.stage == "DORMANT":
        return Text(MISSING, style="dim")
    label = STAGE_LABELS.get(slot.stage, slot.stage.lower())
    return Text(f"{label} {number(slot.alpha)}", style=STAGE_STYLES.get(slot.stage, "dim"))


def _policy_line(view: Snapshot, is_ascii: bool) -> Text:
    line = Text("policy  ", no_wrap=True, overflow="ellipsis")
    policy = next((row.policy for row in reversed(view.rounds) if row.policy is not None), None)
    if policy is None:
        return line.append("no update yet")
    for name in ("kl_divergence", "clip_fraction", "value_nrmse", "gradient_norm", "entropy"):
        value: float | None = getattr(policy, name)
        line.append_text(_sign(grade(name, value), is_ascii))
        line.append(f"{THRESHOLDS[name].label} {number(value, '.3g')}  ")
    return line


def _alarm_text(alarm: AlarmView, is_ascii: bool) -> Text:
    is_grave = Severity(alarm.severity).rank >= Severity.ERROR.rank
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append_text(_sign(Grade.ACT if is_grave else Grade.WATCH, is_ascii))
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
    table.add_row(
        "seeds",
        f"{growth.num_germinated} germinated, {growth.num_fossilized} kept, "
        f"{growth.num_pruned} pruned",
    )
    if view.run is not None and view.run.facts.data_source == "synthetic":
        table.add_row("data", Text("synthetic: results do not apply to real data", "bold red"))
    num_alarms = sum(alarm.count for alarm in view.alarms)
    table.add_row("alarms", str(num_alarms) if num_alarms else "none")
    return table


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
