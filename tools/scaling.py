"""Cost model of a step over many workers, and a simulation that it is checked with.

Usage: python -m tools.scaling
"""

import random
from dataclasses import dataclass
from math import log

from tools.markdown import table


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Measured costs of the parts of a step, in seconds, and of messages, in bytes."""

    env_s: float = 0.088
    """Train, validate and apply of one env on one core."""
    env_jitter: float = 0.2
    """Standard deviation of a worker's time, as a fraction of it."""
    control_s: float = 0.015
    """Deciding for any number of envs."""
    control_env_s: float = 0.000_195
    """Deciding for one more env."""
    message_s: float = 0.000_020
    """One round trip to a worker, carried out by the driver."""
    byte_s: float = 1 / 300e6
    """Encoding, copying and decoding a byte in the driver."""
    env_bytes: int = 7_000
    """Evidence, decision and outcome of one env and step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Where the time of a step goes."""

    work_s: float
    """Mean over the workers."""
    barrier_s: float
    """What the slowest worker takes longer than the mean."""
    control_s: float
    messages_s: float

    @property
    def total_s(self) -> float:
        """Return the time of the step."""
        return self.work_s + self.barrier_s + self.control_s + self.messages_s


def predicted(costs: Costs, num_envs: int, num_workers: int) -> StepTime:
    """Return the time of a step by the model.

    The slowest of n workers is about sqrt(2 ln n) standard deviations above the mean.
    """
    work_s = -(-num_envs // num_workers) * costs.env_s
    spread = (2 * log(num_workers)) ** 0.5 if num_workers > 1 else 0.0
    return StepTime(
        work_s=work_s,
        barrier_s=work_s * costs.env_jitter * spread,
        control_s=costs.control_s + num_envs * costs.control_env_s,
        messages_s=num_workers * costs.message_s + num_envs * costs.env_bytes * costs.byte_s,
    )


def simulated_s(costs: Costs, num_envs: int, num_workers: int, *, num_steps: int = 50) -> float:
    """Return the mean time of a step; workers differ, and the driver serves one at a time."""
    source = random.Random(num_workers)
    total_s = 0.0
    for _ in range(num_steps):
        sizes = [len(range(index, num_envs, num_workers)) for index in range(num_workers)]
        arrivals = sorted(
            (size * costs.env_s * max(0.1, source.gauss(1.0, costs.env_jitter)), size)
            for size in sizes
        )
        free_s = 0.0
        for arrival_s, size in arrivals:
            cost_s = costs.message_s + size * costs.env_bytes * costs.byte_s
            free_s = max(free_s, arrival_s) + cost_s
        total_s += free_s + costs.control_s + num_envs * costs.control_env_s
    return total_s / num_steps


def rows(costs: Costs) -> list[tuple[str, ...]]:
    """Return the cases of docs/scaling.md: envs, workers, parts of a step, simulated time."""
    found = []
    for num_envs, num_workers in ((4, 1), (64, 8), (512, 64), (4096, 512), (10_000, 512)):
        part = predicted(costs, num_envs, num_workers)
        numbers = (part.work_s, part.barrier_s, part.control_s, part.messages_s, part.total_s)
        seconds = (*numbers, simulated_s(costs, num_envs, num_workers))
        found.append((f"{num_envs:,}", f"{num_workers}", *(f"{value:.3f}" for value in seconds)))
    return found


HEAD = ("envs", "workers", "work", "barrier", "control", "messages", "step", "simulated")

if __name__ == "__main__":
    print(table(HEAD, rows(Costs())))
