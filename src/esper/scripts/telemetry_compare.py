"""`esper-telemetry baseline`, `diff` and `validate`."""

from argparse import Namespace

from esper.leyline.errors import ExitCode
from esper.leyline.printable import printable
from esper.leyline.telemetry import CountClass
from esper.nissa.analysis.baseline_store import capture, list_baselines, write_baseline
from esper.nissa.analysis.diff import CountChange, Difference, Divergence, diff_paths
from esper.nissa.analysis.identities import check_profile
from esper.nissa.analysis.validation import Validation, validate_run
from esper.scripts.terminal import Colour, paint, print_json, print_table

__all__ = ["run_capture", "run_diff", "run_list", "run_validate"]


def run_capture(arguments: Namespace) -> int:
    """Write the baseline of a run."""
    baseline = capture(arguments.run)
    write_baseline(baseline, arguments.output)
    profile = baseline.profile
    output = printable(str(arguments.output))
    print(f"{output}: {sum(profile.counts.values())} events of {len(profile.counts)} types")
    broken = [check.name for check in check_profile(profile) if not check.holds]
    for rule in (*profile.broken_orders, *broken):
        print(paint(f"the run breaks a rule: {rule}", Colour.YELLOW))
    return ExitCode.OK


def run_list(arguments: Namespace) -> int:
    """List the saved baselines."""
    rows = [
        [
            path.name,
            str(sum(item.profile.counts.values())),
            item.profile.status or "-",
            item.provenance.commit or "-",
            item.provenance.machine_kind or "-",
        ]
        for path, item in list_baselines(arguments.directory).items()
    ]
    print_table(["baseline", "events", "status", "commit", "machine kind"], rows)
    return ExitCode.OK


def run_diff(arguments: Namespace) -> int:
    """Compare two runs or baselines."""
    difference = diff_paths(arguments.left, arguments.right)
    if arguments.json:
        print_json(difference)
    else:
        _print_difference(difference)
    return ExitCode.OK if difference.is_same else ExitCode.FAILED


def _print_difference(difference: Difference) -> None:
    print(printable(f"left   {difference.left}"))
    print(printable(f"right  {difference.right}"))
    for text in difference.provenance:
        print(paint(f"differs in {text}", Colour.YELLOW))
    _print_counts(difference)
    for change in difference.keys:
        removed = [paint(f"-{key}", Colour.RED) for key in change.missing]
        added = [paint(f"+{key}", Colour.GREEN) for key in change.added]
        changed = " ".join((*removed, *added)) or "in other sets"
        print(f"keys of {printable(change.event_type)}: {changed}")
    for order in difference.orders:
        lines = f"left {_place(order.left_line)}, right {_place(order.right_line)}"
        print(printable(f"order: {order.rule}: broken {lines}"))
    for check in difference.checks:
        print(f"equation: {check.name}: left {check.left}, right {check.right}")
    if difference.divergence is not None:
        _print_divergence(difference.divergence)
    _print_verdict(difference)


def _print_counts(difference: Difference) -> None:
    colours = [_colour(change, difference.is_seeded_compared) for change in difference.counts]
    rows = [
        [
            change.event_type,
            change.count_class,
            str(change.left),
            str(change.right),
            f"{change.delta:+d}" if change.delta else "",
        ]
        for change in difference.counts
    ]
    print_table(["type", "class", "left", "right", "delta"], rows, colours=colours)


def _colour(change: CountChange, is_seeded_compared: bool) -> Colour | None:
    if change.delta == 0:
        return None
    is_listed_only = change.count_class is CountClass.ENVIRONMENT or (
        change.count_class is not CountClass.STRUCTURAL and not is_seeded_compared
    )
    return Colour.YELLOW if is_listed_only else Colour.RED


def _place(line: int | None) -> str:
    return "nowhere" if line is None else f"at line {line}"


def _print_divergence(divergence: Divergence) -> None:
    ends = [
        "the end" if line is None else f"line {line}"
        for line in (divergence.left_line, divergence.right_line)
    ]
    print(f"first difference: left {ends[0]}, right {ends[1]}")
    if divergence.paths:
        print(printable(f"  in {', '.join(divergence.paths)}"))
    for sign, text, colour in (
        ("-", divergence.left, Colour.RED),
        ("+", divergence.right, Colour.GREEN),
    ):
        if text is not None:
            print(paint(f"  {sign} {text}", colour))


def _print_verdict(difference: Difference) -> None:
    if not difference.is_same:
        print(paint("differs", Colour.RED))
        return
    values = "" if difference.is_stream_equal else "; seeded values differ, as they may here"
    print(paint(f"same{values}", Colour.GREEN))


def run_validate(arguments: Namespace) -> int:
    """Validate the log of a run and print the findings."""
    validation = validate_run(arguments.run)
    if arguments.json:
        print_json(validation)
    else:
        _print_validation(validation)
    return ExitCode.OK if validation.is_valid else ExitCode.FAILED


def _print_validation(validation: Validation) -> None:
    for finding in validation.findings:
        line = "" if finding.line is None else f":{finding.line}"
        where, message = printable(f"{finding.file}{line}"), printable(finding.message)
        print(f"{where}: {paint(finding.kind, Colour.RED)}: {message}")
    for kind, number in validation.num_findings.items():
        num_shown = sum(finding.kind == kind for finding in validation.findings)
        if number > num_shown:
            print(f"and {number - num_shown} more of {kind}")
    if validation.num_uncovered_bytes:
        print(f"{validation.num_uncovered_bytes} bytes at the end are not covered by a CRC yet")
    verdict = "valid" if validation.is_valid else "not valid"
    print(f"{verdict}: {validation.num_events} events, {validation.num_blocks} CRC blocks match")
