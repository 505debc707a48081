"""Gradient telemetry against closed forms."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from esper.leyline.reports import GradientReading
from esper.simic.telemetry.gradients import (
    check_numerical_stability,
    collect_per_layer_gradients,
    gradient_health,
    gradient_norms,
    gradient_ratio,
    reading_of,
    seed_anomalies,
    smoothed,
)


def parameters(*gradients: torch.Tensor | None) -> list[nn.Parameter]:
    listed = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros(() if gradient is None else gradient.shape))
        parameter.grad = gradient
        listed.append(parameter)
    return listed


def test_norms_are_taken_tensor_by_tensor_in_double_precision() -> None:
    norms = gradient_norms(parameters(torch.tensor([3.0, 4.0]), None, torch.full((2, 2), -1.0)))
    assert norms.dtype is torch.float64
    assert norms.tolist() == [5.0, 2.0]


def test_a_norm_whose_square_overflows_single_precision_is_finite() -> None:
    [norm] = gradient_norms(parameters(torch.full((4,), 1e30))).tolist()
    assert norm == pytest.approx(2e30, rel=1e-6)


def test_no_gradients_have_no_norms_and_stay_on_the_device() -> None:
    assert gradient_norms([]).shape == (0,)
    resting = nn.Parameter(torch.zeros(2, device="meta"))
    assert gradient_norms([resting]).device.type == "meta"


norms = st.lists(st.floats(0, 1e3) | st.sampled_from([0.0, 1e-8, 1e-7, 10.0, 11.0]), min_size=1)


@given(norms)
def test_health_loses_half_for_vanishing_and_four_fifths_for_exploding_tensors(
    values: list[float],
) -> None:
    vanishing = sum(value < 1e-7 for value in values) / len(values)
    exploding = sum(value > 10.0 for value in values) / len(values)
    expected = min(max(1 - 0.5 * vanishing - 0.8 * exploding, 0), 1)
    assert gradient_health(values) == pytest.approx(expected)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_unusable_and_counts_as_exploding(value: float) -> None:
    reading = reading_of([1.0, value], 0.5)
    assert reading.health == 0.0
    assert reading.has_exploding
    assert not math.isfinite(reading.norm)


@given(norms)
def test_a_reading_sums_up_its_tensors(values: list[float]) -> None:
    reading = reading_of(values, 0.25)
    assert reading.norm == pytest.approx(math.sqrt(math.fsum(value**2 for value in values)))
    assert reading.has_vanishing == any(value < 1e-7 for value in values)
    assert reading.has_exploding == any(value > 10.0 for value in values)
    assert reading.ratio == 0.25


def test_the_ratio_compares_gradients_per_square_root_of_parameters() -> None:
    assert gradient_ratio(6.0, 9, 8.0, 16) == pytest.approx(1.0)
    assert gradient_ratio(3.0, 9, 8.0, 16) == pytest.approx(0.5)
    assert gradient_ratio(6.0, 36, 8.0, 16) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "arguments", [(0.0, 9, 8.0, 16), (6.0, 9, 0.0, 16), (6.0, 0, 8.0, 16), (6.0, 9, 8.0, 0)]
)
def test_the_ratio_of_nothing_is_zero(arguments: tuple[float, int, float, int]) -> None:
    assert gradient_ratio(*arguments) == 0.0


def test_a_ratio_remembers_nine_tenths_of_its_past() -> None:
    assert smoothed(None, 3.0) == 3.0
    assert smoothed(1.0, 2.0) == pytest.approx(1.1)


def reading(norm: float, **flags: bool) -> GradientReading:
    facts = {"has_vanishing": False, "has_exploding": False, **flags}
    return GradientReading(norm=norm, ratio=1.0, health=1.0, **facts)


@pytest.mark.parametrize(
    ("seen", "kinds"),
    [
        (reading(1.0), []),
        (reading(1.0, has_vanishing=True), []),
        (reading(20.0, has_exploding=True), ["exploding"]),
        (reading(0.0, has_vanishing=True), ["vanishing"]),
        (reading(math.nan, has_exploding=True), ["nonfinite"]),
        (reading(math.inf, has_exploding=True), ["nonfinite"]),
    ],
)
def test_a_seeds_gradient_is_reported_when_it_is_lost(
    seen: GradientReading, kinds: list[str]
) -> None:
    found = seed_anomalies({"r0c1": seen}, host_norm=1.0)
    assert [anomaly.kind for anomaly in found] == kinds
    assert all(anomaly.slot_id == "r0c1" for anomaly in found)


def test_a_hosts_gradient_is_reported_when_it_is_not_finite() -> None:
    assert seed_anomalies({}, host_norm=None) == ()
    assert seed_anomalies({}, host_norm=1e9) == ()
    [found] = seed_anomalies({}, host_norm=math.nan)
    assert (found.kind, found.slot_id) == ("nonfinite", None)


LAYERS = {
    "healthy": (torch.ones(20), 1.0),
    "empty": (torch.zeros(20), 0.0),
    "sparse": (torch.tensor([1.0] * 12 + [0.0] * 8), 0.7),
    "sparser": (torch.tensor([1.0] * 8 + [0.0] * 12), 0.5),
    "steep": (torch.tensor([1.0] * 16 + [11.0] * 4), 0.1),
    "somewhat steep": (torch.tensor([1.0] * 18 + [11.0] * 2), 0.5),
    "poisoned": (torch.tensor([1.0, math.nan, math.inf]), 0.0),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_looked_at_one_by_one(name: str) -> None:
    gradient, health = LAYERS[name]
    model = nn.ParameterDict(
        {"w": nn.Parameter(torch.zeros_like(gradient)), "resting": nn.Parameter(torch.ones(1))}
    )
    model["w"].grad = gradient
    [layer] = collect_per_layer_gradients(model)
    assert layer.layer == "w"
    assert layer.health == health
    assert layer.zero_fraction == pytest.approx((gradient == 0).float().mean().item())
    assert (layer.nan_count, layer.inf_count) == (
        int(gradient.isnan().sum()),
        int(gradient.isinf().sum()),
    )
    if gradient.isfinite().all():
        assert layer.norm == pytest.approx(gradient.norm().item())


def test_numbers_that_are_not_finite_are_named_and_missing_ones_are_not() -> None:
    named = {"a": 1.0, "b": math.nan, "c": None, "d": -math.inf}
    assert check_numerical_stability(named) == ("b", "d")
