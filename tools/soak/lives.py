"""The lifecycle row of the soak tests."""

import random
from collections.abc import Iterator

import torch
from tests.kasmina.body_walk import BodyWalk
from tests.kasmina.lifecycle_walk import PureWalk
from tools.bench.rows import Row

QUICK_CHANGES, FULL_CHANGES = 20_000, 1_000_000
QUICK_BODY_CHANGES, FULL_BODY_CHANGES = 500, 20_000


def rows(is_quick: bool) -> Iterator[Row]:
    """Walk at random on the pure state machine and in real models: row L7."""
    torch.set_num_threads(1)
    walk = PureWalk(random.Random(0))
    walk.run(QUICK_CHANGES if is_quick else FULL_CHANGES)
    yield _row("pure state machine", walk.num_changes, QUICK_CHANGES if is_quick else FULL_CHANGES)
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
