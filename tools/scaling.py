"""Cost model of a step over many workers, and a simulation that it is checked with.

Usage: python -m tools.scaling
"""

import random
from dataclasses import dataclass
from math import log

from esper.simic.training.control import MAX_ENVS_DECIDED_APART
from esper.simic.training.step import MIN_DECIDED_SHARE
from tools.markdown import table

LEAD_FACTOR = 0.5
"""Share of the barrier that is left if a worker may be one step ahead; fitted to the simulation."""


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
    """How long the mean worker waits for slower ones."""
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
    if num_envs <= MAX_ENVS_DECIDED_APART:
        spread *= LEAD_FACTOR
    return StepTime(
        work_s=work_s,
        barrier_s=work_s * costs.env_jitter * spread,
        control_s=costs.control_s + num_envs * costs.control_env_s,
        messages_s=num_workers * costs.message_s + num_envs * costs.env_bytes * costs.byte_s,
    )


def simulated_s(costs: Costs, num_envs: int, num_workers: int, *, num_steps: int = 200) -> float:
    """Return the mean time of a step; workers differ, and the driver serves one at a time."""
    source = random.Random(num_workers)
    sizes = [len(range(index, num_envs, num_workers)) for index in range(num_workers)]
    share = MIN_DECIDED_SHARE if num_envs <= MAX_ENVS_DECIDED_APART else 1.0
    decided_s = [0.0] * num_workers
    step_ended_s = 0.0
    for _ in range(num_steps):
        waiting = sorted(
            (began_s + size * costs.env_s * max(0.1, source.gauss(1.0, costs.env_jitter)), index)
            for index, (began_s, size) in enumerate(zip(decided_s, sizes, strict=True))
        )
        now_s = step_ended_s
        while waiting:
            # The evidence of a part of the envs, as of the moment when so many are ready.
            num_ready = num_served = 0
            while num_served < len(waiting) and (
                num_ready < share * num_envs or waiting[num_served][0] <= now_s
            ):
                ready_s, index = waiting[num_served]
                now_s = max(now_s, ready_s) + costs.message_s
                now_s += sizes[index] * costs.env_bytes * costs.byte_s
                num_ready += sizes[index]
                num_served += 1
            now_s += costs.control_s + num_envs * costs.control_env_s
            for _, index in waiting[:num_served]:
                decided_s[index] = now_s
            del waiting[:num_served]
        step_ended_s = now_s
    return step_ended_s / num_steps


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
