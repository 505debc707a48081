"""Kills Ray actors: row L19."""

from collections.abc import Iterator

from tools.bench.rows import Row
from tools.soak.worker_kills import kill_workers

from esper.tolaria.ray_port import RayPort

QUICK_KILLS, FULL_KILLS = 3, 50
GAP_S = 2.0


def rows(is_quick: bool) -> Iterator[Row]:
    """Kill actors, compare: row L19."""
    target = QUICK_KILLS if is_quick else FULL_KILLS
    name = "L19 Ray actors killed, run equal"
    yield from kill_workers(name, "ray", RayPort, target=target, gap_s=GAP_S)
