"""`esper-telemetry baseline` and `validate`."""

from argparse import Namespace

from esper.leyline.errors import ExitCode
from esper.leyline.printable import printable
from esper.nissa.analysis.baseline_store import capture, list_baselines, write_baseline
from esper.nissa.analysis.identities import check_profile
from esper.nissa.analysis.validation import Validation, validate_run
from esper.scripts.terminal import Colour, paint, print_json, print_table

__all__ = ["run_capture", "run_list", "run_validate"]


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
