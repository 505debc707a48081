"""`esper-train sweep`."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

import msgspec

from esper.leyline.errors import ExitCode, UsageError
from esper.leyline.printable import printable
from esper.leyline.sweeps import SweepReport, SweepSpec, TrialRow, split_sweep, sweep_from
from esper.scripts.cli import explain_interruption
from esper.scripts.job_flags import add_job_flags, layers_from, read_layer
from esper.scripts.terminal import print_json, print_table

__all__ = ["add_sweep_flags", "run_sweep_command"]


def add_sweep_flags(parser: ArgumentParser) -> None:
    """Add the flags of `sweep`, and those of a job, which hold for every run of it."""
    numbers = {"trials": "trials of the study", "seeds": "runs of a trial, by random seed"}
    for name, meaning in numbers.items():
        parser.add_argument(
            f"--{name}", type=int, metavar="N", help=f"{meaning} (default: as in the file)"
        )
    parser.add_argument(
        "--storage",
        metavar="FILE|URL",
        help="journal file or database of the study (default: as in the file, or NAME.journal)",
    )
    parser.add_argument("--json", action="store_true", help="print the trials as JSON")
    add_job_flags(parser)


def run_sweep_command(arguments: Namespace) -> int:
    """Search, then print the trials, the best first."""
    if arguments.config is None:
        raise UsageError("sweep needs --config FILE with a table [sweep]; see docs/sweeps.md")
    if arguments.resume is not None:
        raise UsageError("--resume: a sweep is continued by the same command")
    source = arguments.config
    spec, layer = split_sweep(read_layer(Path(source)), source)
    arguments.config = None
    layers = [(source, layer), *layers_from(arguments)]
    # Imported here because it loads torch, which parsing and --help must not.
    from esper.simic.evaluation.sweep import run_sweep

    sentence = f"sweep {spec.name}: interrupted; the same command continues"
    note = _ignore if arguments.json else _print_trial
    with explain_interruption(sentence):
        report = run_sweep(_overridden(spec, arguments), layers, note)
    if arguments.json:
        print_json(report)
    else:
        _print_report(report)
    return ExitCode.OK


def _overridden(spec: SweepSpec, arguments: Namespace) -> SweepSpec:
    for name in ("trials", "seeds", "storage"):
        value = getattr(arguments, name)
        if value is not None:
            spec = sweep_from({**msgspec.to_builtins(spec), name: value}, f"--{name}")
    return spec


def _ignore(_: TrialRow) -> None:
    """Print nothing: with --json, standard output has the report only."""


def _print_trial(row: TrialRow) -> None:
    settings = " ".join(f"{key}={_short(value)}" for key, value in row.settings.items())
    detail = _number(row.task_return) if row.reason is None else row.reason
    print(printable(f"trial {row.number} {row.state}: {detail}  {settings}"), flush=True)


def _print_report(report: SweepReport) -> None:
    keys = list(dict.fromkeys(key for row in report.trials for key in row.settings))
    header = ["trial", "state", "task return", "runs", *keys]
    rows = [
        [
            *(str(row.number), row.state, _number(row.task_return), str(len(row.runs))),
            *(_short(row.settings.get(key)) for key in keys),
        ]
        for row in report.trials
    ]
    print()
    print_table(header, rows)
    print()
    print(printable(f"study {report.name} in {report.storage}"))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:+.3f}"


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
