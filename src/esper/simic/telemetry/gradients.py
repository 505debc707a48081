"""Gradient telemetry: norms per tensor, and the health of a seed or the policy."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from esper.leyline.payloads import GradientAnomaly, LayerGradient
from esper.leyline.reports import GradientReading

__all__ = [
    "check_numerical_stability",
    "collect_per_layer_gradients",
    "gradient_health",
    "gradient_norms",
    "gradient_ratio",
    "reading_of",
    "seed_anomalies",
]

VANISHING_NORM: Final = 1e-7
EXPLODING_NORM: Final = 10.0
"""Ten times the clipping norm of training."""
MIN_NORM: Final = 1e-8
RATIO_MEMORY: Final = 0.9
LARGE_GRADIENT: Final = 10.0


def gradient_norms(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the L2 norm of each tensor's gradient, on the device, in float64.

    float64, because the squares of float32 gradients overflow before the norm itself does.
    """
    listed = list(parameters)
    gradients = [parameter.grad for parameter in listed if parameter.grad is not None]
    if not gradients:
        device = listed[0].device if listed else None
        return torch.zeros(0, dtype=torch.float64, device=device)
    norms = torch._foreach_norm([gradient.double() for gradient in gradients])
    return torch.stack(norms)


def gradient_health(norms: Sequence[float]) -> float:
    """Return 1 for healthy gradients, less for vanishing or exploding ones, 0 if not finite."""
    if not norms:
        return 1.0
    if not all(map(math.isfinite, norms)):
        return 0.0
    vanishing = sum(norm < VANISHING_NORM for norm in norms) / len(norms)
    exploding = sum(norm > EXPLODING_NORM for norm in norms) / len(norms)
    return min(1.0, max(0.0, 1.0 - 0.5 * vanishing - 0.8 * exploding))


def gradient_ratio(
    seed_norm: float, num_seed_params: int, host_norm: float, num_host_params: int
) -> float:
    """Return the seed/host ratio of gradient norms, each divided by sqrt(number of parameters)."""
    # A host at rest would make every seed look strong.
    if min(seed_norm, host_norm) < MIN_NORM or min(num_seed_params, num_host_params) == 0:
        return 0.0
    host = host_norm / math.sqrt(num_host_params) + MIN_NORM
    return (seed_norm / math.sqrt(num_seed_params)) / host


def reading_of(norms: Sequence[float], ratio: float) -> GradientReading:
    """Return the gradient reading of one seed."""
    return GradientReading(
        norm=math.hypot(*norms),
        ratio=ratio,
        health=gradient_health(norms),
        has_vanishing=any(norm < VANISHING_NORM for norm in norms),
        # `not <=` and not `>`: NaN counts as exploding, too.
        has_exploding=any(not norm <= EXPLODING_NORM for norm in norms),
    )


def smoothed(previous: float | None, current: float) -> float:
    """Return the exponential moving average of a ratio, starting at its first value."""
    return current if previous is None else RATIO_MEMORY * previous + (1 - RATIO_MEMORY) * current


def seed_anomalies(
    readings: Mapping[str, GradientReading], host_norm: float | None
) -> tuple[GradientAnomaly, ...]:
    """Return the gradient anomalies of a step, for each seed and for the host."""
    found = [
        GradientAnomaly(kind=kind, slot_id=slot_id, layer=None, norm=reading.norm)
        for slot_id, reading in readings.items()
        for kind in _kinds(reading)
    ]
    if host_norm is not None and not math.isfinite(host_norm):
        found.append(GradientAnomaly(kind="nonfinite", slot_id=None, layer=None, norm=host_norm))
    return tuple(found)


def _kinds(reading: GradientReading) -> list[str]:
    if not math.isfinite(reading.norm):
        return ["nonfinite"]
    # The zero-initialized scale of a new seed blocks the gradient of the tensors behind it for one
    # step, so single vanishing tensors are normal; a seed without any gradient is not.
    kinds = ["exploding"] if reading.has_exploding else []
    return kinds + (["vanishing"] if reading.norm < VANISHING_NORM else [])


def collect_per_layer_gradients(model: nn.Module) -> tuple[LayerGradient, ...]:
    """Return a network's gradients layer by layer; slow, for diagnostics after an anomaly."""
    named = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    return tuple(_layer_gradient(name, gradient.double()) for name, gradient in named)


def _layer_gradient(name: str, gradient: Tensor) -> LayerGradient:
    facts = torch.stack(
        [
            gradient.norm(),
            (gradient == 0).double().mean(),
            (gradient.abs() > LARGE_GRADIENT).double().mean(),
            gradient.isnan().double().sum(),
            gradient.isinf().double().sum(),
        ]
    )
    norm, zero_fraction, large_fraction, num_nan, num_inf = materialize_facts(facts)
    return LayerGradient(
        layer=name,
        norm=norm,
        health=_layer_health(zero_fraction, large_fraction, num_nan + num_inf),
        zero_fraction=zero_fraction,
        nan_count=int(num_nan),
        inf_count=int(num_inf),
    )


def materialize_facts(facts: Tensor) -> list[float]:
    """Transfer a few values to the CPU at once."""
    numbers: list[float] = facts.tolist()
    return numbers


def _layer_health(zero_fraction: float, large_fraction: float, num_nonfinite: float) -> float:
    if num_nonfinite or zero_fraction > 0.9:
        return 0.0
    if large_fraction > 0.1:
        return 0.1
    if zero_fraction > 0.5 or large_fraction > 0.05:
        return 0.5
    return 0.7 if zero_fraction > 0.3 else 1.0


def check_numerical_stability(named: Mapping[str, float | None]) -> tuple[str, ...]:
    """Return the names of the values that are not finite; None is allowed."""
    return tuple(
        name for name, value in named.items() if value is not None and not math.isfinite(value)
    )
