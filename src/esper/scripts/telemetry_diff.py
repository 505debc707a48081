"""`esper-telemetry diff`."""

from argparse import Namespace
from collections.abc import Iterator
from typing import Final

from esper.leyline.errors import ExitCode
from esper.leyline.printable import printable
from esper.leyline.telemetry import CountClass
from esper.nissa.analysis.diff import CountChange, Difference, Divergence, diff_paths
from esper.nissa.analysis.run_outcome import RunOutcome
from esper.scripts.terminal import Colour, paint, print_json, print_table

__all__ = ["run_diff"]

_FIGURES: Final = (
    ("accuracy, last round, %", "accuracy_pct", ".2f"),
    ("best accuracy, %", "best_accuracy_pct", ".2f"),
    ("task return, last round", "task_return", "+.3f"),
)


def run_diff(arguments: Namespace) -> int:
    """Compare two runs or baselines."""
    difference = diff_paths(arguments.left, arguments.right)
    if arguments.json:
        print_json(difference)
    else:
        _print_difference(difference, is_all=arguments.all, is_raw=arguments.raw)
    return ExitCode.OK if difference.is_same else ExitCode.FAILED


def _print_difference(difference: Difference, *, is_all: bool, is_raw: bool) -> None:
    """Print the verdict first, then what people ask next, then the details."""
    print(paint(_verdict(difference), Colour.GREEN if difference.is_same else Colour.RED))
    print(printable(f"left   {difference.left}"))
    print(printable(f"right  {difference.right}"))
    _print_configuration(difference)
    _print_outcomes(difference)
    _print_counts(difference, is_all=is_all)
    _print_rules(difference)
    if difference.divergence is not None:
        _print_divergence(difference.divergence, is_raw=is_raw)


def _verdict(difference: Difference) -> str:
    if not difference.is_same:
        return f"differs: {', '.join(_reasons(difference))}"
    if difference.is_stream_equal:
        return "same: every event that is compared is equal"
    why = "configurations" if difference.config else "machines, data or versions"
    return f"same structure: the {why} differ, so seeded counts and values may"


def _reasons(difference: Difference) -> Iterator[str]:
    is_compared = difference.is_seeded_compared
    num_types = sum(_colour(change, is_compared) is Colour.RED for change in difference.counts)
    if num_types:
        yield f"counts of {num_types} event types"
    if difference.keys:
        yield f"fields of {len(difference.keys)} event types"
    if any((item.left_line is None) != (item.right_line is None) for item in difference.orders):
        yield "order of events"
    if any(item.holds_left != item.holds_right for item in difference.checks):
        yield "equations between counts"
    if is_compared and not difference.is_stream_equal:
        place = "" if difference.divergence is None else f" from {difference.divergence.place} on"
        yield f"events{place}"
    if difference.bad_lines[0] != difference.bad_lines[1]:
        yield "number of unreadable lines"


def _print_configuration(difference: Difference) -> None:
    if difference.config:
        print()
        rows = [[change.key, change.left, change.right] for change in difference.config]
        print_table(["configuration", "left", "right"], rows)
    for text in difference.provenance:
        print(paint(f"differs in {text}", Colour.YELLOW))


def _print_outcomes(difference: Difference) -> None:
    left, right = (
        side or RunOutcome() for side in (difference.left_outcome, difference.right_outcome)
    )
    if left == right == RunOutcome():
        return
    rows = [
        ["state", left.status or "not finished", right.status or "not finished", ""],
        ["rounds", _text(left.rounds_completed), _text(right.rounds_completed), ""],
    ]
    for label, name, form in _FIGURES:
        before, after = getattr(left, name), getattr(right, name)
        values = ["-" if value is None else format(value, form) for value in (before, after)]
        is_known = before is not None and after is not None
        rows.append([label, *values, f"{after - before:+.2f}" if is_known else ""])
    print()
    print_table(["result", "left", "right", "delta"], rows)


def _text(value: int | None) -> str:
    return "-" if value is None else str(value)


def _print_counts(difference: Difference, *, is_all: bool) -> None:
    changes = [change for change in difference.counts if is_all or change.delta]
    num_changed = sum(change.delta != 0 for change in difference.counts)
    print()
    hint = "" if is_all else " (--all lists the others)"
    print(f"{num_changed} of {len(difference.counts)} event types differ in number{hint}")
    rows = [
        [
            change.event_type,
            change.count_class,
            str(change.left),
            str(change.right),
            f"{change.delta:+d}" if change.delta else "",
        ]
        for change in changes
    ]
    if rows:
        colours = [_colour(change, difference.is_seeded_compared) for change in changes]
        print_table(["type", "class", "left", "right", "delta"], rows, colours=colours)


def _colour(change: CountChange, is_seeded_compared: bool) -> Colour | None:
    if change.delta == 0:
        return None
    is_listed_only = change.count_class is CountClass.ENVIRONMENT or (
        change.count_class is not CountClass.STRUCTURAL and not is_seeded_compared
    )
    return Colour.YELLOW if is_listed_only else Colour.RED


def _print_rules(difference: Difference) -> None:
    """Print the fields, order rules and equations in which the sides differ."""
    for change in difference.keys:
        removed = [paint(f"-{key}", Colour.RED) for key in change.missing]
        added = [paint(f"+{key}", Colour.GREEN) for key in change.added]
        changed = " ".join((*removed, *added)) or "in other sets"
        print(f"fields of {printable(change.event_type)}: {changed}")
    for order in difference.orders:
        lines = f"left {_broken(order.left_line)}, right {_broken(order.right_line)}"
        print(printable(f"order: {order.rule}: broken {lines}"))
    for check in difference.checks:
        print(f"equation: {check.name}: left {check.left}, right {check.right}")


def _broken(line: int | None) -> str:
    return "nowhere" if line is None else f"at line {line}"


def _print_divergence(divergence: Divergence, *, is_raw: bool) -> None:
    ends = [
        "the end of the log" if line is None else f"line {line}"
        for line in (divergence.left_line, divergence.right_line)
    ]
    print()
    where = printable(divergence.place)
    print(f"first difference: {where} (left {ends[0]}, right {ends[1]})")
    for side, words in (("left ", divergence.left_words), ("right", divergence.right_words)):
        print(printable(f"  {side}  {'nothing more' if words is None else words}"))
    for change in divergence.values:
        print(printable(f"  {change.key}: {change.left} -> {change.right}"))
    if len(divergence.paths) > len(divergence.values):
        print(f"  and {len(divergence.paths) - len(divergence.values)} more fields")
    if is_raw:
        _print_raw(divergence)


def _print_raw(divergence: Divergence) -> None:
    for sign, text, colour in (
        ("-", divergence.left, Colour.RED),
        ("+", divergence.right, Colour.GREEN),
    ):
        if text is not None:
            print(paint(f"  {sign} {text}", colour))
