"""Gradient telemetry: norms per tensor, and what they say about a seed or the policy."""

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
"""Ten times the norm that training clips to."""
MIN_NORM: Final = 1e-8
RATIO_MEMORY: Final = 0.9
LARGE_GRADIENT: Final = 10.0


def gradient_norms(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Return the L2 norm of each tensor's gradient, on the device, in float64.

    Squares of float32 overflow long before the norm itself does.
    """
    listed = list(parameters)
    gradients = [parameter.grad for parameter in listed if parameter.grad is not None]
    if not gradients:
        device = listed[0].device if listed else None
        return torch.zeros(0, dtype=torch.float64, device=device)
    norms = torch._foreach_norm([gradient.double() for gradient in gradients])
    return torch.stack(norms)


def gradient_health(norms: Sequence[float]) -> float:
    """Return 1 for healthy gradients, less for vanishing and exploding tensors, 0 for unusable."""
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
    """Return the seed's gradient over the host's, each per square root of its parameters."""
    if min(seed_norm, host_norm) < MIN_NORM or min(num_seed_params, num_host_params) == 0:
        return 0.0
    host = host_norm / math.sqrt(num_host_params) + MIN_NORM
    return (seed_norm / math.sqrt(num_seed_params)) / host


def reading_of(norms: Sequence[float], ratio: float) -> GradientReading:
    """Sum up one seed's gradient."""
    return GradientReading(
        norm=math.hypot(*norms),
        ratio=ratio,
        health=gradient_health(norms),
        has_vanishing=any(norm < VANISHING_NORM for norm in norms),
        has_exploding=any(not norm <= EXPLODING_NORM for norm in norms),
    )


def smoothed(previous: float | None, current: float) -> float:
    """Return the running mean of a ratio; the first one stands for itself."""
    return current if previous is None else RATIO_MEMORY * previous + (1 - RATIO_MEMORY) * current


def seed_anomalies(
    readings: Mapping[str, GradientReading], host_norm: float | None
) -> tuple[GradientAnomaly, ...]:
    """Return what is wrong with a step's gradients, seed by seed and for the host."""
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
    # A fresh seed's zeroed scale lets nothing through to the tensors behind it for a step, so a
    # single vanishing tensor is no news; a seed that gets no gradient at all is.
    kinds = ["exploding"] if reading.has_exploding else []
    return kinds + (["vanishing"] if reading.norm < VANISHING_NORM else [])


def collect_per_layer_gradients(model: nn.Module) -> tuple[LayerGradient, ...]:
    """Look at a network's gradients layer by layer; slow, for a close look after an anomaly."""
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
    """Bring a few numbers to the host in one transfer."""
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
    """Return the names of the numbers that are not finite; a missing number is no fault."""
    return tuple(
        name for name, value in named.items() if value is not None and not math.isfinite(value)
    )
