"""`esper-train compare`: arms side by side on the test split."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from esper.karn.comparison_page import comparison_page, estimate_text
from esper.leyline.comparison import ArmRun, ComparisonReport
from esper.leyline.errors import ExitCode, UsageError
from esper.leyline.jobs import merge_job
from esper.scripts.job_flags import add_job_flags, layers_from

__all__ = ["add_compare_flags", "run_compare", "seeds_from"]

DEFAULT_ARMS: Final = ("wait", "random", "heuristic", "periodic")
DEFAULT_SEEDS: Final = ("1000-1004",)
DEFAULT_DIRECTORY: Final = "./comparisons"


def add_compare_flags(parser: ArgumentParser) -> None:
    """Add what a comparison is told beside its job."""
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--arms",
        nargs="+",
        default=list(DEFAULT_ARMS),
        metavar="ARM",
        help="wait, random, heuristic, periodic, ppo:CHECKPOINT[,CHECKPOINT...], "
        "ppo:builtin:NAME, static-final "
        f"(default: {' '.join(DEFAULT_ARMS)})",
    )
    group.add_argument(
        "--seeds",
        nargs="+",
        default=list(DEFAULT_SEEDS),
        metavar="SEED",
        help="seeds of the runs, or ranges of them; --seed is that of the bootstrap "
        f"(default: {' '.join(DEFAULT_SEEDS)})",
    )
    group.add_argument(
        "--greedy", action="store_true", help="policies take the likeliest choices (default: no)"
    )
    group.add_argument(
        "--out",
        default=DEFAULT_DIRECTORY,
        metavar="DIR",
        help="where runs are kept; those that are there are not run again "
        f"(default: {DEFAULT_DIRECTORY})",
    )
    group.add_argument("--html", metavar="FILE", help="write a report with plots (default: none)")
    group.add_argument("--json", action="store_true", help="print the report as JSON")
    add_job_flags(parser)


def run_compare(arguments: Namespace) -> int:
    """Run what is missing of a comparison and tell what it came to."""
    seeds = seeds_from(arguments.seeds)
    # Parsing is over: from here on torch may be loaded.
    from esper.runtime.tasks import all_tasks
    from esper.simic.evaluation.arms import parse_arms
    from esper.simic.evaluation.compare import compare

    job, _ = merge_job(*layers_from(arguments), tasks=all_tasks())
    report = compare(
        job,
        parse_arms(arguments.arms),
        seeds=seeds,
        directory=Path(arguments.out),
        greedy=arguments.greedy,
        progress=None if job.run.quiet else _tell,
    )
    if arguments.html is not None:
        _write_page(report, Path(arguments.html))
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        _print_report(report)
    return ExitCode.OK


def seeds_from(texts: Sequence[str]) -> list[int]:
    """Read seeds such as `7` and ranges such as `1000-1019`, both ends included."""
    seeds: list[int] = []
    for text in texts:
        first, dash, last = text.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(f"--seeds {text}: expected a seed or a range, such as 7 or 1000-1019")
        seeds.extend(range(int(first), int(last if dash else first) + 1))
    return seeds


def _tell(run: ArmRun, was_found: bool) -> None:
    how = "kept" if was_found else f"{run.wall_s:.1f} s"
    accuracies = [env.final_pct for env in run.envs]
    mean = f"{sum(accuracies) / len(accuracies):.1f} %" if accuracies else "no env left"
    print(f"seed {run.seed}  {run.arm}  {mean}  ({how})", file=sys.stderr, flush=True)


def _write_page(report: ComparisonReport, path: Path) -> None:
    try:
        path.write_text(comparison_page(report), encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path}: cannot write the report: {reason}") from None


def _print_report(report: ComparisonReport) -> None:
    head = ("arm", "final %", "mean %", "return", "params", "GFLOP", "kept", "pruned")
    rows = [
        (
            arm.arm + (" *" if arm.is_on_front else ""),
            estimate_text(arm.final_pct),
            estimate_text(arm.mean_pct),
            estimate_text(arm.total_reward),
            f"{arm.num_params_added:.0f}",
            f"{arm.train_gflops:.2f}",
            f"{arm.num_fossilized:.2f}",
            f"{arm.num_pruned:.2f}",
        )
        for arm in report.arms
    ]
    print(f"{report.task}: {len(report.seeds)} seeds of {report.num_envs} envs, test split")
    _print_table([head, *rows])
    print("\n* on the Pareto front of accuracy against parameters\n")
    contrasts = [
        (
            f"{contrast.first} - {contrast.second}",
            estimate_text(contrast.final_pp),
            estimate_text(contrast.total_reward),
            estimate_text(contrast.probability, 2),
        )
        for contrast in report.contrasts
    ]
    _print_table([("difference", "final pp", "return", "P(better)"), *contrasts])


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        print("  ".join([first, *others]).rstrip())
