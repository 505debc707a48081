"""`esper-train eval`: evaluate a trained policy on fresh hosts and the test split."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from esper.leyline.errors import ExitCode
from esper.leyline.evaluation import EnvScore, EvaluationReport, MeanScore
from esper.leyline.printable import printable
from esper.scripts.terminal import print_json
from esper.scripts.train_compare import seeds_from

__all__ = ["add_eval_flags", "run_eval"]


def add_eval_flags(parser: ArgumentParser) -> None:
    """Add the flags of `eval`."""
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="FILE|RUN",
        help="checkpoint, run (for its newest checkpoint), or builtin:NAME for a policy that ships "
        "with Esper",
    )
    parser.add_argument(
        "--seeds",
        nargs="+",
        default=["1001-1003"],
        metavar="SEED",
        help="random seeds (no modules that grow) or ranges of seeds, one evaluation round of "
        "fresh hosts each (default: 1001-1003)",
    )
    parser.add_argument(
        "--task",
        metavar="FILE.py:NAME",
        help="the run's task, if it was named by its file or module; other tasks are found by name",
    )
    parser.add_argument(
        "--greedy", action="store_true", help="take the most likely actions instead of sampling"
    )
    parser.add_argument(
        "--context",
        metavar="NAME",
        help="context of all episodes, for a task that has several (default: as in the run)",
    )
    parser.add_argument(
        "--lanes", type=int, metavar="N", help="worker threads (default: number of cores)"
    )
    parser.add_argument(
        "--lane-deadline",
        type=float,
        metavar="SECONDS",
        help="seconds without a heartbeat before a lane counts as hung (default: as in the run)",
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="data directory (default: as in the run)"
    )
    parser.add_argument(
        "--save-model",
        type=Path,
        metavar="FILE",
        help="save the best network, to be loaded with esper.load_grown (default: none)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run_eval(arguments: Namespace) -> int:
    """Evaluate a checkpoint's controller on fresh envs and the test split."""
    seeds = seeds_from(arguments.seeds)
    # They import torch.
    from esper.runtime.tasks import load_task
    from esper.simic.evaluation.evaluate import evaluate_policy
    from esper.simic.training.checkpoints.builtin import checkpoint_at

    if arguments.task is not None:
        load_task(arguments.task)
    report = evaluate_policy(
        checkpoint_at(arguments.checkpoint),
        seeds=seeds,
        greedy=arguments.greedy,
        context=arguments.context,
        lanes=arguments.lanes,
        lane_deadline_s=arguments.lane_deadline,
        data_dir=arguments.data_dir,
        save_model=arguments.save_model,
        progress=_Progress(len(seeds)),
    )
    if arguments.json:
        print_json(report)
    else:
        print(*map(printable, _lines(report)), sep="\n")
    return ExitCode.OK


@dataclass(eq=False, slots=True)
class _Progress:
    """Prints a line per seed on stderr, as stdout is for the report."""

    num_seeds: int
    _num_done: int = 0

    def __call__(self, scores: Sequence[EnvScore]) -> None:
        """Print the mean over the envs of one seed."""
        self._num_done += 1
        known = [score.test_accuracy_pct for score in scores if score.test_accuracy_pct is not None]
        mean = f"{sum(known) / len(known):.1f} %" if known else "no accuracy"
        text = f"{self._num_done} of {self.num_seeds}  seed {scores[0].seed}  {mean}"
        print(text, file=sys.stderr, flush=True)


def _lines(report: EvaluationReport) -> Iterable[str]:
    how = "greedy actions" if report.is_greedy else "sampled actions"
    yield (
        f"{report.controller} on {report.task}, {how}: {report.num_steps} steps, "
        f"measured on {report.num_test_samples} held-out test samples"
    )
    rows = [
        (
            str(score.seed),
            str(score.env_id),
            _number(score.test_accuracy_pct, " %"),
            str(score.num_params_added),
            str(score.episode.num_fossilized),
            str(score.episode.num_pruned),
            _reward(score.episode.task_return),
            _reward(score.episode.total_reward),
        )
        for score in report.envs
    ]
    head = (
        *("seed", "env", "test accuracy", "params added", "kept", "pruned"),
        *("task return", "reward"),
    )
    yield from _table([head, *rows, _mean_row(report.mean)])


def _mean_row(mean: MeanScore) -> tuple[str, ...]:
    return (
        "mean",
        "",
        _number(mean.test_accuracy_pct, " %"),
        _number(mean.num_params_added, ""),
        _number(mean.num_fossilized, ""),
        _number(mean.num_pruned, ""),
        _reward(mean.task_return),
        _reward(mean.total_reward),
    )


def _number(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.1f}{unit}"


def _reward(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _table(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
