"""The table of envs on the live screen, in widths that depend on the terminal only."""

from typing import Final, NamedTuple

from rich.table import Table
from rich.text import Text

from esper.karn.console.formatting import (
    MISSING,
    SHORT_STAGE_LABELS,
    STAGE_LABELS,
    number,
    sparkline,
)
from esper.karn.console.signs import grade_sign
from esper.karn.view.snapshot import ActionView, EnvAttention, EnvView, SlotView, Snapshot
from esper.karn.view.thresholds import Grade
from esper.leyline.printable import printable

__all__ = ["draw_env_table"]

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
ENV_WIDTH: Final = 3
FIGURE_WIDTH: Final = 8
"""Of accuracy and reward."""
SHORT_OPS: Final = {"SET_ALPHA_TARGET": "alpha"}


class _Layout(NamedTuple):
    """The widths of the columns that give way; 0 leaves a column out."""

    status: int
    sparkline: int
    slot: int
    action: int

    def total(self, num_slots: int) -> int:
        widths = (ENV_WIDTH, FIGURE_WIDTH, FIGURE_WIDTH, self.status, self.sparkline, self.action)
        shown = [width for width in (*widths, *(self.slot,) * num_slots) if width]
        return sum(shown) + len(shown)


_LAYOUTS: Final = (
    _Layout(status=30, sparkline=32, slot=24, action=28),
    _Layout(status=20, sparkline=14, slot=12, action=20),
    _Layout(status=10, sparkline=0, slot=9, action=15),
    _Layout(status=2, sparkline=0, slot=5, action=0),
)
"""From the widest to the narrowest: curves go first, then words become short, then actions go."""
_BLUEPRINT_WIDTH: Final = 20
"""Slots at least as wide show the blueprint as well."""
_ALPHA_WIDTH: Final = 10
"""Slots at least as wide show alpha in full."""
_SHORT_ALPHA_WIDTH: Final = 9


def draw_env_table(view: Snapshot, num_rows: int, width: int, *, is_ascii: bool) -> Table:
    """Draw the envs that need attention most; every column keeps its width from now on."""
    slot_ids = view.run.facts.slot_ids if view.run else ()
    layout = _layout_for(width, len(slot_ids))
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    _add_column(table, "env", ENV_WIDTH)
    _add_column(table, "status" if layout.action else "", layout.status)
    table.add_column("accuracy", justify="right", no_wrap=True, width=FIGURE_WIDTH)
    if layout.sparkline:
        _add_column(table, "", layout.sparkline)
    for slot_id in slot_ids:
        _add_column(table, printable(slot_id), layout.slot)
    if layout.action:
        _add_column(table, "last action", layout.action)
    table.add_column("reward", justify="right", no_wrap=True, width=FIGURE_WIDTH)
    envs = {env.env_id: env for env in view.envs}
    for item in view.attention[:num_rows]:
        table.add_row(*_row(envs[item.env_id], item, layout, is_ascii))
    hidden = len(view.attention) - num_rows
    if hidden > 0:
        table.add_row("", Text(f"and {hidden} more", style="dim"))
    return table


def _layout_for(width: int, num_slots: int) -> _Layout:
    """Return the widest layout that fits; the status takes what is left."""
    fitting = (layout for layout in _LAYOUTS if layout.total(num_slots) <= width)
    layout = next(fitting, _LAYOUTS[-1])
    if layout.action == 0:
        return layout
    return layout._replace(status=layout.status + width - layout.total(num_slots))


def _add_column(table: Table, name: str, width: int) -> None:
    table.add_column(name, no_wrap=True, overflow="ellipsis", width=width)


def _row(env: EnvView, item: EnvAttention, layout: _Layout, is_ascii: bool) -> list[Text]:
    level = max(STATUS_GRADES.get(env.status, Grade.ACT), item.grade, key=lambda one: one.rank)
    words = printable(", ".join(item.reasons) or env.status)
    cells = [
        Text(str(env.env_id)),
        Text.assemble(grade_sign(level, is_ascii), words if layout.action else ""),
        Text(number(env.accuracy_pct, ".1f", " %")),
    ]
    if layout.sparkline:
        curve = env.sparkline[-layout.sparkline :]
        cells.append(Text(sparkline(curve, is_ascii=is_ascii), style="cyan"))
    cells += [_slot_text(slot, layout.slot) for slot in env.slots]
    if layout.action:
        cells.append(Text(printable(_action_words(env.last_action, layout.action))))
    return [*cells, Text(number(env.total_reward, "+.2f"))]


def _slot_text(slot: SlotView, width: int) -> Text:
    if slot.stage == "DORMANT":
        return Text(MISSING, style="dim")
    return Text(printable(_slot_words(slot, width)), style=STAGE_STYLES.get(slot.stage, "dim"))


def _slot_words(slot: SlotView, width: int) -> str:
    if width >= _ALPHA_WIDTH:
        words = f"{STAGE_LABELS.get(slot.stage, slot.stage.lower())} {number(slot.alpha)}"
        return f"{slot.blueprint or ''} {words}" if width >= _BLUEPRINT_WIDTH else words
    short = SHORT_STAGE_LABELS.get(slot.stage, slot.stage.lower())
    if width < _SHORT_ALPHA_WIDTH:
        return short
    is_whole = slot.alpha is not None and round(slot.alpha, 2) >= 1.0
    return f"{short} {number(slot.alpha, '.1f') if is_whole else number(slot.alpha).lstrip('0')}"


def _action_words(action: ActionView | None, width: int) -> str:
    if action is None:
        return MISSING
    slot = action.slot_id or ""
    words = f"{action.op.lower()} {slot}".rstrip() + ("" if action.succeeded else " (failed)")
    if len(words) <= width:
        return words
    short = SHORT_OPS.get(action.op, action.op.lower())
    return f"{short} {slot}".rstrip() + ("" if action.succeeded else "!")
