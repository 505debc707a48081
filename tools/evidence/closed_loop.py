"""The second experiment: does a policy act on what it sees? Policies, arms and comparisons.

Policies are trained on a probe, which models all contexts of digits, the lottery included, without
networks: five that see, under a training seed each, and one that is blind. On networks, on which
they have never been trained, they are compared with what searches find: on the contexts and on the
lottery with searches that begin on the same probe with as many episodes, and go on there; in other
contexts and on another data set with what was found in the contexts.
"""

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from esper.leyline.errors import ExitCode
from esper.scripts.train import main as esper_train
from esper.simic.training.checkpoints.resuming import load_run
from tools.calibration import main as calibrate
from tools.evidence.reports import (
    CALIBRATION,
    CLOSED_LOOP,
    CLOSED_LOOP_PROBE,
    COMPARED,
    PLANS,
    ROOT,
    inspection_path,
    report_path,
)
from tools.evidence.training import Course, num_at_once

__all__ = [
    "COMPARISONS",
    "Comparison",
    "calibrate_in",
    "compare_all",
    "courses_in",
    "inspect_all",
]

BLIND: Final = "closed-loop-blind"
COPIES: Final = ("yoked", "blind")
EXAMPLES: Final = ROOT / "examples"


class Comparison(NamedTuple):
    """A task that the policies are compared on."""

    name: str
    task: str
    settings: tuple[str, ...] = ()
    data: str = "auto"
    is_searched: bool = True
    """Whether schedules and rules are searched here; otherwise those of the first comparison are
    played, as the policies were not trained here either."""

    @property
    def has_oracle(self) -> bool:
        """Return whether an oracle can know more than a schedule, and is searched."""
        return self.is_searched and self.task != "digits_lottery"


# Neither this mixture nor these hosts and inputs were trained on.
HELD_OUT: Final = ("training.contexts.pointwise_wide=2", "training.contexts.pointwise_dim=1")
CONTEXTS, LOTTERY, HELD_OUT_CONTEXTS, FASHION = COMPARED
COMPARISONS: Final = (
    Comparison(CONTEXTS, "digits_contexts"),
    Comparison(LOTTERY, "digits_lottery"),
    Comparison(HELD_OUT_CONTEXTS, "digits_contexts", settings=HELD_OUT, is_searched=False),
    Comparison(FASHION, "fashion_contexts", data="real", is_searched=False),
)


def policies_in(out: Path, num_policies: int) -> list[Path]:
    """Return where the policies are kept."""
    return [out / f"closed-loop-{seed}.pt" for seed in range(1, num_policies + 1)]


def courses_in(out: Path, num_policies: int, flags: tuple[str, ...]) -> list[Course]:
    """Return what makes the policies, the blind one last."""
    seeing = [
        Course(CLOSED_LOOP_PROBE, seed, policy, flags)
        for seed, policy in enumerate(policies_in(out, num_policies), start=1)
    ]
    # Another seed, because a run is found again by its preset and seed.
    policy = out / f"{BLIND}.pt"
    blind = Course(CLOSED_LOOP_PROBE, num_policies + 1, policy, ("--blind", *flags))
    return [*seeing, blind]


def compare_all(
    comparisons: Sequence[Comparison],
    out: Path,
    num_policies: int,
    seeds: str,
    flags: tuple[str, ...],
) -> int:
    """Make every comparison; return the first exit code that is not 0."""
    found = out / "found"
    for comparison in comparisons:
        code = esper_train(
            [
                *("compare", "--task", comparison.task, "--data", comparison.data, "--greedy"),
                *("--arms", *_arms(comparison, out, num_policies, found)),
                *("--seeds", seeds, "--out", str(out / "comparisons")),
                *_search_flags(comparison, out, num_policies),
                *("--json", str(report_path(out, comparison.name))),
                *("--html", str(out / f"{comparison.name}.html")),
                *(("--keep-found", str(found)) if comparison.name == CONTEXTS else ()),
                *(word for setting in comparison.settings for word in ("--set", setting)),
                *flags,
            ]
        )
        if code:
            return code
    return 0


def _search_flags(comparison: Comparison, out: Path, num_policies: int) -> tuple[str, ...]:
    """Return how searches begin: with as many episodes of the probe as the first policy had."""
    if not comparison.is_searched:
        return ()
    trained = load_run(policies_in(out, num_policies)[0])
    num_episodes = trained.state.rounds_completed * trained.job.training.n_envs
    return ("--search-first", trained.job.training.task, str(num_episodes))


def _arms(comparison: Comparison, out: Path, num_policies: int, found: Path) -> tuple[str, ...]:
    paths = ",".join(map(str, policies_in(out, num_policies)))
    if not comparison.is_searched:
        files = (f"schedule:{found / 'schedule.json'}", f"rule:{found / 'rule.json'}")
        return (f"ppo:{paths}", *files, "wait", "heuristic")
    return (
        f"ppo:{paths}",
        *(f"{kind}:{paths}" for kind in COPIES),
        f"ppo:{out / BLIND}.pt",
        *("random-matched", "schedule:search", "rule:search"),
        *(f"{name.partition(':')[0]}:{EXAMPLES / name.partition(':')[2]}" for name in PLANS),
        *(("oracle",) if comparison.has_oracle else ()),
        *("wait", "heuristic"),
    )


def inspect_all(out: Path, num_policies: int, seeds: str) -> int:
    """Inspect every policy that is not inspected yet; return the first exit code that is not 0."""
    missing = [
        policy
        for policy in policies_in(out, num_policies)
        if not inspection_path(out, policy.stem).exists()
    ]
    # In processes: an inspection runs on threads, which share an interpreter.
    with ThreadPoolExecutor(num_at_once()) as pool:
        codes = list(pool.map(partial(_inspect, out, seeds), missing))
    return next((code for code in codes if code), ExitCode.OK)


def _inspect(out: Path, seeds: str, policy: Path) -> int:
    page, path = out / f"{policy.stem}.html", inspection_path(out, policy.stem)
    command = ["inspect", str(policy), "--preset", CLOSED_LOOP, "--seeds", seeds]
    done = subprocess.run(
        [sys.executable, "-m", "esper.scripts.train", *command, "--html", str(page), "--json"],
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode == ExitCode.OK:
        path.write_bytes(done.stdout)
        print(f"inspected {policy}", flush=True)
    return done.returncode


def calibrate_in(out: Path) -> None:
    """Measure whether contributions are worth acting on; its verdict is a claim of its own."""
    path = out / CALIBRATION
    if not path.exists():
        calibrate(["--json", str(path), "--html", str(path.with_suffix(".html"))])
