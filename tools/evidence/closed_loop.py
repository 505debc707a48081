"""The second experiment: does a policy act on what it sees? Policies, arms and comparisons.

One policy is trained on all contexts of digits, the lottery included, under each training seed, and
one more blind. They are compared with what a search finds without looking, on the contexts, on the
lottery, in contexts that no policy has been trained in, and on another data set.
"""

from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final, NamedTuple

from esper.scripts.train import main as esper_train
from tools.evidence.reports import CLOSED_LOOP, COMPARED, inspection_path, report_path
from tools.evidence.training import Course

__all__ = ["COMPARISONS", "Comparison", "compare_all", "courses_in", "inspect_all"]

BLIND: Final = "closed-loop-blind"
COPIES: Final = ("yoked", "blind")


class Comparison(NamedTuple):
    """A task that the policies are compared on."""

    name: str
    task: str
    settings: tuple[str, ...]
    data: str

    @property
    def has_contexts(self) -> bool:
        """Return whether an oracle can know more than a schedule."""
        return self.task != "digits_lottery"


# Neither this mixture nor these hosts and inputs were trained on.
HELD_OUT: Final = ("training.contexts.pointwise_wide=2", "training.contexts.pointwise_dim=1")
_FACTS: Final = (
    ("digits_contexts", (), "auto"),
    ("digits_lottery", (), "auto"),
    ("digits_contexts", HELD_OUT, "auto"),
    ("fashion_contexts", (), "real"),
)
COMPARISONS: Final = tuple(
    Comparison(name, *facts) for name, facts in zip(COMPARED, _FACTS, strict=True)
)


def policies_in(out: Path, num_policies: int) -> list[Path]:
    """Return where the policies are kept."""
    return [out / f"closed-loop-{seed}.pt" for seed in range(1, num_policies + 1)]


def courses_in(out: Path, num_policies: int, flags: tuple[str, ...]) -> list[Course]:
    """Return what makes the policies, the blind one last."""
    seeing = [
        Course(CLOSED_LOOP, seed, policy, flags)
        for seed, policy in enumerate(policies_in(out, num_policies), start=1)
    ]
    # Another seed, because a run is found again by its preset and seed.
    blind = Course(CLOSED_LOOP, num_policies + 1, out / f"{BLIND}.pt", ("--blind", *flags))
    return [*seeing, blind]


def compare_all(
    comparisons: Sequence[Comparison],
    out: Path,
    num_policies: int,
    seeds: str,
    flags: tuple[str, ...],
) -> int:
    """Make every comparison; return the first exit code that is not 0."""
    paths = ",".join(map(str, policies_in(out, num_policies)))
    for comparison in comparisons:
        arms = (
            f"ppo:{paths}",
            *(f"{kind}:{paths}" for kind in COPIES),
            f"ppo:{out / BLIND}.pt",
            *("random-matched", "schedule:search", "rule:search"),
            *(("oracle",) if comparison.has_contexts else ()),
            *("wait", "heuristic"),
        )
        code = esper_train(
            [
                *("compare", "--task", comparison.task, "--data", comparison.data, "--greedy"),
                *("--arms", *arms, "--seeds", seeds, "--out", str(out / "comparisons")),
                *("--json", str(report_path(out, comparison.name))),
                *("--html", str(out / f"{comparison.name}.html")),
                *(word for setting in comparison.settings for word in ("--set", setting)),
                *flags,
            ]
        )
        if code:
            return code
    return 0


def inspect_all(out: Path, num_policies: int, seeds: str) -> int:
    """Inspect every policy; return the first exit code that is not 0."""
    for policy in policies_in(out, num_policies):
        page = str(out / f"{policy.stem}.html")
        command = ["inspect", str(policy), "--seeds", seeds, "--html", page, "--json"]
        with inspection_path(out, policy.stem).open("w") as file, redirect_stdout(file):
            code = esper_train(command)
        if code:
            return code
    return 0
