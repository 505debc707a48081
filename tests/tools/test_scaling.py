"""The cost model of many workers against its simulation, and against cases with known answers."""

import pytest
from tools.scaling import Costs, predicted, simulated_s

CASES = [(4, 1), (64, 8), (512, 64), (4096, 512), (10_000, 512)]


@pytest.mark.parametrize(("num_envs", "num_workers"), CASES)
def test_the_model_agrees_with_the_simulation(num_envs: int, num_workers: int) -> None:
    step_s = predicted(Costs(), num_envs, num_workers).total_s
    assert step_s == pytest.approx(simulated_s(Costs(), num_envs, num_workers), rel=0.2)


def test_workers_without_jitter_and_driver_costs_divide_the_work() -> None:
    free = Costs(env_jitter=0, control_s=0, control_env_s=0, message_s=0, byte_s=0)
    for num_workers in (1, 8, 64, 512):
        step_s = predicted(free, 4096, num_workers).total_s
        assert step_s == pytest.approx(4096 / num_workers * free.env_s)
        assert step_s == pytest.approx(simulated_s(free, 4096, num_workers))


def test_control_is_the_limit_of_many_envs() -> None:
    part = predicted(Costs(), 10_000, 512)
    assert part.control_s == max(part.work_s, part.barrier_s, part.control_s, part.messages_s)
