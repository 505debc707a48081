"""Kills worker processes: row L18."""

from collections.abc import Iterator

from tools.bench.rows import Row
from tools.soak.worker_kills import kill_workers

from esper.tolaria.process_port import ProcessPort

QUICK_KILLS, FULL_KILLS = 8, 200
GAP_S = 0.6


def rows(is_quick: bool) -> Iterator[Row]:
    """Kill processes, compare: row L18."""
    target = QUICK_KILLS if is_quick else FULL_KILLS
    name = "L18 worker processes killed, run equal"
    yield from kill_workers(name, "processes", ProcessPort, target=target, gap_s=GAP_S)
