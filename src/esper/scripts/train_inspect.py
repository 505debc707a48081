"""`esper-train inspect`: show what a policy's choices depend on."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Final

from esper.leyline.errors import ExitCode
from esper.leyline.inspection import InspectionReport
from esper.leyline.printable import printable
from esper.scripts.terminal import print_json
from esper.scripts.train_compare import print_table, seeds_from, write_report

__all__ = ["add_inspect_flags", "run_inspect"]

DEFAULT_SEEDS: Final = ("1000-1004",)
DEFAULT_SABOTAGE_STEP: Final = 12


def add_inspect_flags(parser: ArgumentParser) -> None:
    """Add the flags of `inspect`."""
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="checkpoint, run (for its newest checkpoint), or builtin:NAME",
    )
    parser.add_argument(
        "--seeds",
        nargs="+",
        default=list(DEFAULT_SEEDS),
        metavar="SEED",
        help="random seeds, or ranges of seeds; each is played twice, the second time with "
        f"sabotage (default: {' '.join(DEFAULT_SEEDS)})",
    )
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help="the job that it grows, such as closed_loop for a policy of closed_loop_probe "
        "(default: the job that it was trained on)",
    )
    parser.add_argument(
        "--sabotage-step",
        type=int,
        default=DEFAULT_SABOTAGE_STEP,
        metavar="N",
        help=f"first step in which a seed may be scrambled (default: {DEFAULT_SABOTAGE_STEP})",
    )
    parser.add_argument(
        "--html", metavar="FILE", help="write an HTML report with a plot (default: none)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run_inspect(arguments: Namespace) -> int:
    """Inspect the policy of a checkpoint."""
    seeds = seeds_from(arguments.seeds)
    # They import torch.
    from esper.leyline.jobs import merge_job
    from esper.runtime.tasks import all_tasks
    from esper.simic.evaluation.inspection import inspect_policy
    from esper.simic.training.checkpoints.builtin import checkpoint_at
    from esper.simic.training.checkpoints.resuming import load_run

    job = None
    if arguments.preset is not None:
        layer = {"training": {"preset": arguments.preset}}
        job, _ = merge_job(("--preset", layer), tasks=all_tasks())
    report = inspect_policy(
        load_run(checkpoint_at(arguments.checkpoint)),
        name=Path(arguments.checkpoint).name,
        seeds=seeds,
        sabotage_step=arguments.sabotage_step,
        job=job,
    )
    # Every command imports this module to build its parser; only this one needs the HTML page.
    from esper.karn.report.inspection_page import inspection_page

    if arguments.html is not None:
        write_report(Path(arguments.html), inspection_page(report).encode())
    if arguments.json:
        print_json(report)
    else:
        _print_report(report)
    return ExitCode.OK


def _print_report(report: InspectionReport) -> None:
    # Imported here for the same reason.
    from esper.karn.report.inspection_page import sabotage_table, shifts_table

    print(
        printable(
            f"{report.policy} on {report.task}: {len(report.seeds)} seeds of {report.num_envs} "
            f"envs, {report.num_decisions} decisions in which a measured seed could be pruned"
        )
    )
    print_table(shifts_table(report))
    sabotage = report.sabotage
    print(
        f"\npruned within {sabotage.window} steps after sabotage from step {sabotage.first_step} on"
    )
    print_table(sabotage_table(report))
