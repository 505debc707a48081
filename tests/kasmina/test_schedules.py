"""The learning rate of a host against closed forms."""

import math

import pytest
import torch

from esper.kasmina.schedules import ScheduledOptimizer, lr_factor
from esper.leyline.config import HostSchedule, LrCurve

NUM_STEPS = 8


def rates(schedule: HostSchedule, *topologies: str) -> list[float]:
    """Return the learning rates of passes over these sets of seeds, as factors."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=99.0)
    scheduled = ScheduledOptimizer(
        optimizer=optimizer, schedule=schedule, lr=0.5, num_steps=NUM_STEPS
    )
    found = []
    for step, topology in enumerate(topologies):
        scheduled.begin_pass(step, topology)
        found.append(optimizer.param_groups[0]["lr"] / 0.5)
    return found


def test_default_is_the_whole_rate_bit_for_bit_whatever_grows() -> None:
    assert rates(HostSchedule(), "", "a", "ab", "b", "") == [1.0] * 5


def test_cosine_falls_from_the_whole_rate_towards_0_at_the_end() -> None:
    found = rates(HostSchedule(curve=LrCurve.COSINE), *[""] * NUM_STEPS)

    assert found == pytest.approx([math.cos(math.pi * k / 16) ** 2 for k in range(NUM_STEPS)])


def test_warm_up_rises_in_equal_steps() -> None:
    found = rates(HostSchedule(warmup_steps=3), *[""] * 5)

    assert found == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_every_change_of_topology_but_the_first_set_warms_up_again() -> None:
    found = rates(HostSchedule(rewarmup_steps=2), "a", "a", "ab", "ab", "b", "b", "b", "b")

    third = 1 / 3
    assert found == pytest.approx([1, 1, third, 2 * third, third, 2 * third, 1, 1])


def test_curves_and_warm_ups_multiply() -> None:
    schedule = HostSchedule(curve=LrCurve.COSINE, warmup_steps=4, rewarmup_steps=1)

    factor = lr_factor(schedule, step=2, num_steps=NUM_STEPS, steps_since_change=0)

    assert factor == pytest.approx(math.cos(math.pi / 8) ** 2 * 0.6 * 0.5)
