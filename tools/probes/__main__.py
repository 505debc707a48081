"""`python -m tools.probes`: trains a policy on each probe and prints what it earns.

For each probe: the return of the best policy and of the best open-loop schedule by exhaustive
search, the share of the best return that PPO earns greedily in held-out envs under each training
seed, the same for a policy whose observations are shuffled between envs, and the CPU time of one
training run. For `probe:growth` and `probe:contexts`, which are too large for that, the best rule
and the best schedule that a search over plans finds stand for them. Exits with 1 if a probe is
not learned, or if a blind policy learns it.

Usage: python -m tools.probes [NAME ...] [--seeds 1 2 3] [--speed]
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from esper.leyline.errors import UnknownNameError
from esper.leyline.probes import PROBES
from tools.markdown import table
from tools.probes.learning import job_of, last_checkpoint, play, setup_of, train
from tools.probes.plans import PLANNED, best_plan, mean_return
from tools.probes.solver import solve
from tools.probes.speed import speed_table

__all__ = ["REQUIRED_SHARE", "main"]

REQUIRED_SHARE: Final = 0.95
NEED_EYES: Final = frozenset({"context", "lottery", "memory", *PLANNED})
"""Probes that cannot be learned without observations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The results of one probe, as shares of the best return."""

    name: str
    best_return: float
    open_loop: float
    learned: tuple[float, ...]
    blind: float | None
    cpu_s: float

    @property
    def is_passed(self) -> bool:
        """Return whether every seed has learned it, and no blind policy has."""
        is_blind_beaten = self.blind is None or self.blind < REQUIRED_SHARE
        return min(self.learned) >= REQUIRED_SHARE and is_blind_beaten

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        return (
            f"`probe:{self.name}`",
            f"{self.best_return:.3f}",
            f"{self.open_loop:.0%}",
            ", ".join(f"{share:.1%}" for share in self.learned),
            "-" if self.blind is None else f"{self.blind:.0%}",
            f"{self.cpu_s:.0f} s",
            "yes" if self.is_passed else "**no**",
        )


HEAD: Final = ("probe", "best return", "open loop", "PPO, by seed", "blind", "CPU", "passed")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the probes and return 0 if all of them are passed."""
    parser = argparse.ArgumentParser(prog="python -m tools.probes", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all probes")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="SEED")
    parser.add_argument("--speed", action="store_true", help="only measure the engine's speed")
    arguments = parser.parse_args(argv)
    if arguments.speed:
        print(speed_table())
        return 0
    for name in arguments.names:
        if name not in PROBES:
            raise UnknownNameError("probe", name, PROBES)
    rows = [measured(name, arguments.seeds) for name in arguments.names or PROBES]
    print(table(HEAD, [row.cells() for row in rows]))
    return int(not all(row.is_passed for row in rows))


def measured(name: str, seeds: Sequence[int]) -> Row:
    """Train and play one probe, seeing under every seed and blind under the first."""
    best, schedule = references_of(name)
    began_s = time.process_time()
    learned = tuple(share_learned(name, seed) for seed in seeds)
    cpu_s = (time.process_time() - began_s) / len(seeds)
    return Row(
        name=name,
        best_return=best,
        open_loop=schedule / best,
        learned=learned,
        blind=share_learned(name, seeds[0], is_blind=True) if name in NEED_EYES else None,
        cpu_s=cpu_s,
    )


def references_of(name: str) -> tuple[float, float]:
    """Return what the best policy and the best open-loop schedule earn."""
    if name in PLANNED:
        schedule = best_plan(name, is_open_loop=True)
        return mean_return(name, best_plan(name)), mean_return(name, schedule)
    setup = setup_of(job_of(name))
    return solve(setup).mean_return, solve(setup, is_open_loop=True).mean_return


def share_learned(name: str, seed: int, *, is_blind: bool = False, **training: object) -> float:
    """Train a policy and return the share of the best return that it earns in held-out envs."""
    with tempfile.TemporaryDirectory() as directory:
        job = job_of(name, seed=seed, telemetry_dir=Path(directory), blind=is_blind, **training)
        played = play(last_checkpoint(train(job)))
    if name in PLANNED:
        share = played.mean_return / mean_return(name, best_plan(name))
    else:
        share = played.share_of(solve(setup_of(job_of(name, **training))))
    who = "blind policy" if is_blind else "policy"
    print(f"probe:{name}, {who} of seed {seed}: {share:.1%}", file=sys.stderr, flush=True)
    return share


if __name__ == "__main__":
    raise SystemExit(main())
