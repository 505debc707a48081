"""The lives of seeds as a row of the soak."""

import random
from collections.abc import Iterator

import torch
from tools.bench.rows import Row
from tools.soak.body import BodyWalk
from tools.soak.lifecycle import PureWalk

QUICK_CHANGES, FULL_CHANGES = 20_000, 1_000_000
QUICK_BODY_CHANGES, FULL_BODY_CHANGES = 500, 20_000


def rows(is_quick: bool) -> Iterator[Row]:
    """Live at random, on the pure machine and in real models: row L7."""
    torch.set_num_threads(1)
    walk = PureWalk(random.Random(0))
    walk.run(QUICK_CHANGES if is_quick else FULL_CHANGES)
    yield _row("pure machine", walk.num_changes, QUICK_CHANGES if is_quick else FULL_CHANGES)
    body = BodyWalk(random.Random(0))
    target = QUICK_BODY_CHANGES if is_quick else FULL_BODY_CHANGES
    body.run(target)
    yield _row("real modules, no leak", body.num_changes, target)


def _row(where: str, num_changes: int, target: int) -> Row:
    return Row(
        name="L7 legal transitions",
        measured=num_changes,
        target=target,
        unit="transitions",
        is_at_least=True,
        note=where,
    )
