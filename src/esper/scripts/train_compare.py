"""`esper-train compare`: compare controllers on the test split."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from esper.karn.report.comparison_tables import (
    FRONT_MARK,
    Table,
    contexts_table,
    costs_table,
    differences_table,
    oracle_table,
    scores_table,
    target_table,
    training_table,
)
from esper.leyline.comparison import ArmRun, ComparisonReport
from esper.leyline.errors import ExitCode, UsageError, shown
from esper.leyline.jobs import merge_job
from esper.leyline.learning import LearningReport
from esper.leyline.printable import printable
from esper.leyline.untyped_json import readable_json
from esper.nissa.storage.files import FileSystem, write_atomically
from esper.scripts.cli import explain_interruption
from esper.scripts.job_flags import POLICY_FLAGS, WITHOUT_RUN, add_job_flags, layers_from
from esper.scripts.terminal import print_json

__all__ = ["add_compare_flags", "print_table", "run_compare", "seeds_from", "write_report"]

DEFAULT_ARMS: Final = ("wait", "random", "heuristic", "periodic")
DEFAULT_SEEDS: Final = ("1000-1004",)
DEFAULT_DIRECTORY: Final = "./comparisons"
STDOUT: Final = "-"
FEW_SEEDS: Final = 5
"""With fewer, a bootstrap over seeds has next to nothing to draw from."""
RULES: Final = {
    "wait": "grows nothing",
    "random": "random legal actions",
    "heuristic": "a hand-written rule",
    "periodic": "germinates in a fixed rotation",
}
ARMS_HELP: Final = (
    "wait, random, heuristic, periodic, ppo:CHECKPOINT[,CHECKPOINT...], "
    "ppo:builtin:NAME, static-final (the networks grown by the preceding ppo arm, trained "
    "from scratch), static-final:RUN (the networks recorded in the last round of a run), "
    "schedule:FILE (a fixed list of actions), rule:FILE (a threshold rule), yoked:CHECKPOINT (what "
    "the policy did under another seed), blind:CHECKPOINT (the policy, shown the observations of "
    "other envs), random-matched (chance, as often with each op as the preceding ppo arm), "
    "schedule:search and rule:search (the best fixed schedule and the best threshold rule that "
    "Optuna finds), oracle (the best schedule found for each context) "
    f"(default: {' '.join(DEFAULT_ARMS)})"
)
MAX_SEED_DIGITS: Final = 18
MAX_SEEDS: Final = 100_000


def add_compare_flags(parser: ArgumentParser) -> None:
    """Add the flags of `compare`, followed by those of the job."""
    group = parser.add_argument_group("comparison")
    group.add_argument(
        "--arms",
        nargs="+",
        default=list(DEFAULT_ARMS),
        metavar="ARM",
        help=ARMS_HELP,
    )
    group.add_argument(
        "--seeds",
        nargs="+",
        default=list(DEFAULT_SEEDS),
        metavar="SEED",
        help="random seeds of the runs, or ranges of seeds; --seed seeds the bootstrap "
        f"(default: {' '.join(DEFAULT_SEEDS)})",
    )
    group.add_argument(
        "--greedy", action="store_true", help="policies take the most likely actions (default: no)"
    )
    group.add_argument(
        "--out",
        default=DEFAULT_DIRECTORY,
        metavar="DIR",
        help="directory of the runs; runs that it already contains are reused "
        f"(default: {DEFAULT_DIRECTORY})",
    )
    group.add_argument(
        "--training-runs",
        nargs="+",
        type=Path,
        default=[],
        metavar="RUN",
        help="run directories of the policies' training; their learning curves are added to the "
        "report (default: none)",
    )
    group.add_argument(
        "--html", metavar="FILE", help="write an HTML report with plots (default: none)"
    )
    group.add_argument(
        "--json",
        nargs="?",
        const=STDOUT,
        metavar="FILE",
        help="write the report as JSON; without FILE, print it instead of the tables (default: no)",
    )
    _add_search_flags(parser)
    add_job_flags(parser, without_effect=(POLICY_FLAGS, *WITHOUT_RUN))


def _add_search_flags(parser: ArgumentParser) -> None:
    """Add the flags of arms that are searched for."""
    group = parser.add_argument_group("search of a schedule or rule")
    group.add_argument(
        "--search-episodes",
        type=int,
        metavar="N",
        help="episodes of each search (default: as many as the first policy was trained on, or "
        "480)",
    )
    group.add_argument(
        "--search-first",
        nargs=2,
        metavar=("TASK", "N"),
        help="search so many episodes of a cheaper task first, such as probe:contexts, and begin "
        "with the best found there (default: begin with random trials)",
    )
    group.add_argument(
        "--keep-found",
        type=Path,
        metavar="DIR",
        help="write what schedule:search and rule:search find to DIR/schedule.json and "
        "DIR/rule.json, for schedule:FILE and rule:FILE (default: none)",
    )


def run_compare(arguments: Namespace) -> int:
    """Run the missing runs of a comparison and print its report."""
    seeds = seeds_from(arguments.seeds)
    # Imported here, and before signals raise: they load torch, which parsing must not.
    import esper.simic.evaluation.arms
    import esper.simic.evaluation.compare  # noqa: F401

    with explain_interruption(
        f"comparison interrupted; finished runs are saved in {arguments.out}; "
        "run the same command again to continue"
    ):
        report = _compare(arguments, seeds)
        written = [f"runs in {arguments.out}"]
        if arguments.html is not None:
            write_report(Path(arguments.html), _page(report))
            written.append(arguments.html)
        if arguments.json == STDOUT:
            print_json(report)
            return ExitCode.OK
        if arguments.json is not None:
            write_report(Path(arguments.json), readable_json(report))
            written.append(arguments.json)
        _print_report(report)
        print(f"\nwrote {printable(', '.join(written))}")
    return ExitCode.OK


def _compare(arguments: Namespace, seeds: Sequence[int]) -> ComparisonReport:
    learning = _learning(arguments.training_runs) if arguments.training_runs else None
    # Imported here because they load torch, which parsing and --help must not.
    from esper.runtime.tasks import tasks_for
    from esper.simic.evaluation.arms import parse_arms
    from esper.simic.evaluation.compare import FirstSearch, compare

    first = None
    if arguments.search_first is not None:
        task, number = arguments.search_first
        first = FirstSearch(task, _positive(number, "--search-first"))
    layers = layers_from(arguments)
    job, _ = merge_job(*layers, tasks=tasks_for(layers))
    arms = parse_arms(arguments.arms)
    progress = _Progress(len(seeds) * sum(arm.num_strata for arm in arms))
    if not job.run.quiet:
        progress.announce([arm.name for arm in arms], seeds, arguments.out)
    report = compare(
        job,
        arms,
        seeds=seeds,
        directory=Path(arguments.out),
        greedy=arguments.greedy,
        search_episodes=arguments.search_episodes,
        search_first=first,
        keep_found=arguments.keep_found,
        progress=None if job.run.quiet else progress,
    )
    return msgspec.structs.replace(report, learning=learning)


def _positive(text: str, flag: str) -> int:
    if not text.isdecimal() or len(text) > MAX_SEED_DIGITS or int(text) == 0:
        raise UsageError(f"{flag} {shown(text)}: expected a number of episodes, such as 4096")
    return int(text)


def _page(report: ComparisonReport) -> bytes:
    # Every command imports this module to build its parser; only this one needs the HTML page.
    from esper.karn.report.comparison_page import comparison_page

    return comparison_page(report).encode()


def _learning(training_runs: Sequence[Path]) -> LearningReport:
    # Imported here for the same reason: reading logs imports half of the view model.
    from esper.karn.report.learning_curves import read_learning

    return read_learning(training_runs)


def seeds_from(texts: Sequence[str]) -> list[int]:
    """Parse seeds such as `7` and inclusive ranges such as `1000-1019`."""
    seeds: list[int] = []
    for text in texts:
        first, dash, last = text.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UsageError(
                f"--seeds {shown(text)}: expected a seed or a range, such as 7 or 1000-1019"
            )
        if max(len(first), len(last)) > MAX_SEED_DIGITS:
            raise UsageError(f"--seeds {shown(text)}: a seed has at most {MAX_SEED_DIGITS} digits")
        span = range(int(first), int(last if dash else first) + 1)
        if len(span) > MAX_SEEDS:
            raise UsageError(f"--seeds {text}: at most {MAX_SEEDS} seeds can be compared")
        seeds.extend(span)
    return seeds


@dataclass(eq=False, slots=True)
class _Progress:
    """Prints a line per run on stderr, as stdout is for the report."""

    num_runs: int
    _num_done: int = 0

    def announce(self, arms: Sequence[str], seeds: Sequence[int], directory: str) -> None:
        """Print what is going to be run, and where it is saved."""
        what = ", ".join(f"{name} ({RULES[name]})" if name in RULES else name for name in arms)
        self._print(f"{len(arms)} arms: {what}")
        self._print(f"{len(seeds)} random seeds, {self.num_runs} runs, saved in {directory}")

    def __call__(self, run: ArmRun, was_found: bool) -> None:
        """Print a run that was executed or found."""
        self._num_done += 1
        alone = "" if run.wall_s is None else f", {run.wall_s:.1f} s"
        how = "reused" if was_found else f"run{alone}"
        accuracies = [env.final_pct for env in run.envs]
        mean = f"{sum(accuracies) / len(accuracies):.1f} %" if accuracies else "all envs failed"
        place = f"{self._num_done:>{len(str(self.num_runs))}} of {self.num_runs}"
        self._print(f"{place}  seed {run.seed}  {run.arm}  {mean}  ({how})")

    @staticmethod
    def _print(text: str) -> None:
        print(printable(text), file=sys.stderr, flush=True)


def write_report(path: Path, data: bytes) -> None:
    """Write a report, or raise a sentence about why it cannot be written."""
    try:
        write_atomically(FileSystem(), path, data)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{path}: cannot write the report: {reason}") from None


def _print_report(report: ComparisonReport) -> None:
    labels = report.labels()
    print(
        f"{printable(report.task)}: {len(report.seeds)} seeds of {report.num_envs} envs, test split"
    )
    for name, label in labels.items():
        if label != name:
            print(printable(f"{label}: {name.partition(':')[2]}"))
    print_table(scores_table(report))
    if len(report.seeds) < FEW_SEEDS:
        print(
            f"\nonly {len(report.seeds)} random seeds: intervals over so few say little, and arms "
            f"that look different may not be; {FEW_SEEDS} or more are better, 20 are good"
        )
    print(f"\n{FRONT_MARK} on the Pareto front of accuracy against parameters")
    found = (target_table(report), oracle_table(report), contexts_table(report))
    optional = [table for table in found if table.rows]
    others = [costs_table(report), *optional, differences_table(report)]
    for table in (*others, *([training_table(report.learning)] if report.learning else ())):
        print()
        print_table(table)


def print_table(table: Table) -> None:
    """Print a table with aligned columns."""
    rows = [table.head, *table.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        print(printable("  ".join([first, *others]).rstrip()))
