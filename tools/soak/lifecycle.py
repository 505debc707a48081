"""Long random lives of seeds, every state of them checked: `python -m tools.soak.lifecycle`."""

import argparse
import random
import sys
import time

import torch
from tests.kasmina.body_walk import BodyWalk
from tests.kasmina.lifecycle_walk import PureWalk


def main(argv: list[str] | None = None) -> int:
    """Walk, and say how far."""
    parser = argparse.ArgumentParser(prog="lifecycle", description=__doc__)
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--body-transitions", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    started = time.perf_counter()
    walk = PureWalk(random.Random(arguments.seed))
    walk.run(arguments.transitions)
    print(
        f"pure machine: {walk.num_changes:,} transitions in {walk.num_operations:,} operations, "
        f"{time.perf_counter() - started:.1f} s, no illegal state"
    )
    started = time.perf_counter()
    body = BodyWalk(random.Random(arguments.seed))
    body.run(arguments.body_transitions)
    print(
        f"real modules: {body.num_changes:,} transitions in {body.num_operations:,} operations, "
        f"{time.perf_counter() - started:.1f} s, no illegal state, no leak"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
