"""Metrics of values, returns and advantages against closed forms and numpy."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.simic.agent.rollouts import small_config

from esper.simic.agent.gae import Advantages
from esper.simic.agent.ppo_metrics import ReturnMetrics, materialize_figures
from esper.simic.agent.return_metrics import pack_return_metrics

SHAPE = (3, 4)
FLOOR = small_config().return_variance_floor
GENERATOR = torch.Generator().manual_seed(3)
VALID = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)


def drawn() -> torch.Tensor:
    return torch.randn(SHAPE, generator=GENERATOR)


VALUES, ADVANTAGES, ERRORS, REALIZED = drawn(), drawn(), drawn(), drawn()


def metrics(
    values: torch.Tensor = VALUES,
    realized: torch.Tensor = REALIZED,
    *,
    valid: torch.Tensor = VALID,
    advantages: torch.Tensor = ADVANTAGES,
    targets: torch.Tensor = VALUES + ADVANTAGES,
    q_values: tuple[float, ...] = (1.0, -2.0, 0.5),
) -> ReturnMetrics:
    # Only these two of a rollout's tensors are read.
    batch: Any = SimpleNamespace(valid=valid, is_forced=torch.arange(12).view(SHAPE) % 2 == 0)
    packed = pack_return_metrics(
        batch,
        Advantages(advantages=advantages, returns=targets, realized=realized, td_errors=ERRORS),
        values,
        torch.tensor(q_values),
        small_config(),
    )
    [found] = materialize_figures(ReturnMetrics, [packed])
    return found


def of_valid(tensor: torch.Tensor) -> np.ndarray:
    return tensor[VALID].double().numpy()


def test_moments_and_quantiles_are_those_of_the_valid_rows() -> None:
    found = metrics()
    v, r, a, td = map(of_valid, (VALUES, REALIZED, ADVANTAGES, ERRORS))
    centred = (a - a.mean()) / a.std()
    expected = {
        "value_mean": v.mean(),
        "value_std": v.std(),
        "value_min": v.min(),
        "value_max": v.max(),
        "td_error_mean": td.mean(),
        "td_error_std": td.std(),
        "bellman_error": np.abs(td).mean(),
        "return_mean": r.mean(),
        "return_variance": r.var(ddof=1),
        "return_std": r.std(),
        "return_p10": np.quantile(r, 0.1),
        "return_p50": np.quantile(r, 0.5),
        "return_p90": np.quantile(r, 0.9),
        "value_return_correlation": np.corrcoef(v, r)[0, 1],
        "explained_variance": 1 - (r - v).var(ddof=1) / max(r.var(ddof=1), FLOOR),
        "advantage_mean": a.mean(),
        "advantage_std": a.std(),
        "advantage_skewness": (centred**3).mean(),
        "advantage_kurtosis": (centred**4).mean() - 3,
        "advantage_positive_fraction": (a > 0).mean(),
        "forced_fraction": 0.5,
        "q_spread": 3.0,
    }
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_perfect_critic_explains_everything() -> None:
    found = metrics(values=REALIZED)
    assert found.explained_variance == 1.0
    assert found.value_nrmse == 0.0
    assert found.value_return_correlation == pytest.approx(1.0)


def test_constant_critic_explains_nothing_and_has_no_correlation() -> None:
    # Far above the floor of the variance.
    found = metrics(values=torch.ones(SHAPE), realized=100.0 * REALIZED)
    assert found.explained_variance == pytest.approx(0.0, abs=1e-6)
    assert found.value_return_correlation is None


def test_constant_returns_are_bounded_by_the_variance_floor() -> None:
    found = metrics(realized=torch.zeros(SHAPE), values=torch.full(SHAPE, 0.25))
    assert found.return_variance == 0.0
    assert found.explained_variance == 1.0
    assert found.return_skewness is None


def test_single_row_is_measured_too() -> None:
    one = torch.zeros(SHAPE, dtype=torch.bool)
    one[1, 2] = True
    found = metrics(valid=one)
    assert found.return_mean == pytest.approx(REALIZED[1, 2].item())
    assert found.return_variance == 0.0
    assert found.advantage_skewness is None


def test_rows_that_are_not_valid_change_nothing() -> None:
    other = torch.where(VALID, VALUES, torch.full(SHAPE, 1e6))
    assert metrics(values=other) == metrics()


def test_targets_of_the_critics_are_not_measured() -> None:
    """They contain the critic's own values, so that they would speak for any critic."""
    assert metrics(targets=100.0 * VALUES) == metrics()
    assert metrics(realized=100.0 * REALIZED) != metrics()
