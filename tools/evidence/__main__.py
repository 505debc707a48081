"""`make evidence`: trains policies, compares them and writes docs/evidence.md.

Whatever is there already is kept: an interrupted training run goes on from its last checkpoint, an
interrupted comparison with the runs it has.

Usage: python -m tools.evidence [--quick | --document] [--out DIR] [--policies N] [--native N]
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from esper.leyline.errors import ExitCode, UsageError
from esper.leyline.jobs import merge_job
from esper.runtime.tasks import all_tasks
from esper.scripts.train import main as esper_train
from esper.simic.training.assembly.worker_setup import load_data
from esper.simic.training.checkpoints.resuming import load_run, run_directory_of
from esper.tolaria.stopping import StopFlag
from tools.evidence.closed_loop import (
    COMPARISONS,
    calibrate_in,
    compare_all,
    courses_in,
    inspect_all,
)
from tools.evidence.document import write_document
from tools.evidence.pictures import take_pictures
from tools.evidence.reports import (
    FASHION,
    KNOWN,
    ROOT,
    keep_calibration,
    keep_inspections,
    keep_reports,
    report_path,
)
from tools.evidence.training import Course, runs_directory, train_all

__all__ = ["ARMS", "main"]

SCHEDULE: Final = ROOT / "examples" / "conv_heavy_everywhere.json"
"""The strongest blueprint in every slot at once: what a policy has to beat to be worth its cost."""
BASELINES: Final = ("wait", "random", "heuristic", "periodic", f"schedule:{SCHEDULE}")
ARMS: Final = (*BASELINES, "static-final")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How much is done."""

    num_policies: int
    seeds: str
    """Held out: policies are trained on 1, 2, 3 and so on."""
    flags: tuple[str, ...] = ()
    """Of training and comparing alike."""
    folder: str
    num_closed_loop: int = 5
    """Policies of the second experiment."""
    probe_flags: tuple[str, ...] = ()
    """Of their training."""
    closed_loop_seeds: str = "1000-1007"
    closed_loop_flags: tuple[str, ...] = ("--envs", "4", "--search-episodes", "128")
    """Of comparing: a blind policy needs other envs to be shown. Searches have these episodes of
    networks beside those of the probe, policies have none."""
    inspected_seeds: str = "1000-1007"
    """Of 8 envs each."""


FULL: Final = Plan(num_policies=3, seeds="1000-1019", folder="evidence")
LARGE_BATCHES: Final = ("--set", "training.batch_size_per_env=256")
QUICK: Final = Plan(
    num_policies=1,
    seeds="1000-1001",
    flags=(
        *("--rounds", "1", "--envs", "2", "--episode-length", "5", *LARGE_BATCHES),
        *("--set", "training.lifecycle.min_training_steps=1"),
    ),
    # Its policies have learned nothing: they must not be taken for the others.
    folder="evidence/quick",
    num_closed_loop=1,
    probe_flags=("--rounds", "1", "--envs", "2", "--episode-length", "3"),
    closed_loop_seeds="1000-1001",
    inspected_seeds="1000",
    closed_loop_flags=(
        *("--envs", "2", "--episode-length", "3", *LARGE_BATCHES, "--search-episodes", "16"),
        # An oracle searches in each context.
        *("--set", "training.contexts.pointwise=1", "--set", "training.contexts.noisy=1"),
    ),
)
FLAGS: Final = ("--envs", "1")
"""Of comparing: seeds are independent, envs of one seed are not, so more seeds count for more."""
UNKNOWN_SEEDS: Final = "1000-1011"
"""Fashion-MNIST takes 1.5 times as long as digits and serves one claim, so it gets fewer runs."""
NUM_NATIVE: Final = 0
"""Policies that are trained on the second data set, to measure the others by."""
REAL_DATA: Final = ("--data", "real")
"""Synthetic images say nothing about Fashion-MNIST."""


def main(argv: Sequence[str] | None = None) -> int:
    """Train, compare, write down, and return the first exit code that is not 0."""
    arguments = _parser().parse_args(argv)
    plan = QUICK if arguments.quick else FULL
    out = Path(plan.folder) if arguments.out is None else arguments.out
    if not arguments.document:
        code = _experiment(plan, out, arguments.policies or plan.num_policies, arguments.native)
        code = code or _closed_loop(plan, out)
        if code or arguments.quick:
            return code
    for path in (*keep_reports(out), *keep_inspections(out), *keep_calibration(out)):
        print(f"kept {path}")
    print(f"wrote {write_document()}")
    for path in take_pictures():
        print(f"wrote {path}")
    return ExitCode.OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make evidence", description=__doc__)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--quick", action="store_true", help="see that it works; shows nothing")
    form.add_argument(
        "--document", action="store_true", help="only write down the reports that DIR holds"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"default: {FULL.folder}")
    parser.add_argument("--policies", type=int, metavar="N", help="policies to train (default: 3)")
    parser.add_argument(
        "--native",
        type=int,
        default=NUM_NATIVE,
        metavar="N",
        help=f"policies to train on {FASHION}, to measure the others by (default: {NUM_NATIVE}); "
        "the quick form trains none",
    )
    return parser


def _experiment(plan: Plan, out: Path, num_policies: int, num_native: int) -> int:
    out.mkdir(parents=True, exist_ok=True)
    policies = [out / f"policy-{seed}.pt" for seed in range(1, num_policies + 1)]
    natives = [out / f"{FASHION}-{seed}.pt" for seed in range(1, num_native + 1)]
    has_second = plan is not QUICK and _has_data(FASHION)
    courses = _courses(KNOWN, policies, plan.flags)
    if has_second:
        courses += _courses(FASHION, natives, (*REAL_DATA, *plan.flags))
    arms = (*_arms(policies), *ARMS)
    code = train_all(courses, out) or _compare(KNOWN, arms, plan.seeds, policies, plan, out)
    if code or not has_second:
        return code
    arms = (*_arms(policies), *(_arms(natives) if natives else ()), *BASELINES)
    return _compare(FASHION, arms, UNKNOWN_SEEDS, natives, plan, out, *REAL_DATA)


def _closed_loop(plan: Plan, out: Path) -> int:
    """Train and compare the policies that have to look."""
    num_policies = plan.num_closed_loop
    is_known = [item.data != "real" or _has_data(item.task, "task") for item in COMPARISONS]
    comparisons = [item for item, known in zip(COMPARISONS, is_known, strict=True) if known]
    if plan is QUICK:
        comparisons = comparisons[:1]
    code = (
        train_all(courses_in(out, num_policies, plan.probe_flags), out)
        or compare_all(
            comparisons, out, num_policies, plan.closed_loop_seeds, plan.closed_loop_flags
        )
        or inspect_all(out, num_policies, plan.inspected_seeds)
    )
    if code == ExitCode.OK and plan is not QUICK:
        calibrate_in(out)
    return code


def _courses(preset: str, policies: Sequence[Path], flags: tuple[str, ...]) -> list[Course]:
    """Return what makes policies under the seeds 1, 2, 3 and so on."""
    return [Course(preset, seed, policy, flags) for seed, policy in enumerate(policies, start=1)]


def _has_data(name: str, key: str = "preset") -> bool:
    """Return whether the real data of a preset or task are there."""
    layer = {"training": {key: name, "data": "real"}}
    job, _ = merge_job(("evidence", layer), tasks=all_tasks())
    try:
        load_data(job, StopFlag())
    except UsageError as error:
        print(f"{name} is left out: {error}")
        return False
    return True


def _arms(policies: Sequence[Path]) -> tuple[str, ...]:
    return (f"ppo:{','.join(map(str, policies))}",)


def _compare(
    preset: str,
    arms: Sequence[str],
    seeds: str,
    trained_here: Sequence[Path],
    plan: Plan,
    out: Path,
    *more: str,
) -> int:
    """Compare arms, and report how the policies that were trained here learned."""
    runs = [run for policy in trained_here if (run := _training_run(policy, out)) is not None]
    return esper_train(
        [
            # Greedy actions, because exploration is not part of a policy's performance.
            *("compare", "--preset", preset, "--greedy", "--arms", *arms, "--seeds", seeds),
            *("--out", str(out / "comparisons"), "--html", str(out / f"{preset}.html")),
            *("--json", str(report_path(out, preset))),
            *(("--training-runs", *map(str, runs)) if runs else ()),
            *FLAGS,
            *more,
            *plan.flags,
        ]
    )


def _training_run(policy: Path, out: Path) -> Path | None:
    try:
        return run_directory_of(load_run(policy), runs_directory(out))
    except UsageError as error:
        print(f"how it learned is left out of the report: {error}")
        return None


if __name__ == "__main__":
    raise SystemExit(main())
