"""Reward figures that no reward could be computed with are refused."""

import pytest

from esper.leyline.errors import InvalidValueError
from esper.leyline.jobs import merge_job


def with_training(**settings) -> None:
    merge_job(("file", {"training": settings}))


@pytest.mark.parametrize(
    "name",
    [
        "rent_host_params_floor",
        "param_budget",
        "escrow_stable_window",
        "min_drip_steps",
        "max_drip_per_step",
        "fossilize_quality_ceiling",
        "hacking_ratio_threshold",
        "unbacked_contribution_scale",
    ],
)
def test_a_figure_that_rewards_divide_by_must_be_positive(name: str) -> None:
    with pytest.raises(InvalidValueError, match=rf"reward\.{name} = .*: must be positive"):
        with_training(reward={name: 0})


@pytest.mark.parametrize("name", ["drip_fraction", "negative_drip_ratio"])
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_a_share_lies_from_0_to_1(name: str, value: float) -> None:
    with pytest.raises(InvalidValueError, match="must be from 0 to 1"):
        with_training(reward={name: value})


def test_the_spread_of_losses_must_be_positive() -> None:
    with pytest.raises(InvalidValueError, match="loss_delta_std = 0"):
        with_training(loss_reward={"loss_delta_std": 0})


def test_full_legitimacy_needs_at_least_a_step() -> None:
    with pytest.raises(InvalidValueError, match="full_legitimacy_holding_steps = 0"):
        with_training(lifecycle={"full_legitimacy_holding_steps": 0})
