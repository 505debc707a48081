"""The metrics of an update: their fields, how each is reduced, and the event they become.

A metric is None if it was not measured. Metrics are packed on the device in the order of their
declaration and transferred to the CPU at once.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, TypeAlias, TypeVar, get_type_hints

import torch
from torch import Tensor

from esper.leyline.actions import HEADS, Head, Op
from esper.leyline.payloads import HeadUpdate, LstmHealth, PPOUpdateCompleted
from esper.tamiyo.network import LstmState

__all__ = [
    "HeadMetrics",
    "LossMetrics",
    "PPOMetrics",
    "ReturnMetrics",
    "materialize_figures",
    "materialize_heads",
    "materialize_lstm_health",
    "pack",
    "ppo_update_event",
    "reduced",
    "reduced_heads",
    "reducers_of",
]

T = TypeVar("T")

# --- Reducers: combine several measurements into one, ignoring None -----------------------------


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are not None."""
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else None


def max_of(values: Sequence[float | None]) -> float | None:
    """Return the largest value that is not None."""
    return max((value for value in values if value is not None), default=None)


def min_of(values: Sequence[float | None]) -> float | None:
    """Return the smallest value that is not None."""
    return min((value for value in values if value is not None), default=None)


def first_of(values: Sequence[T]) -> T:
    """Return the first value."""
    return values[0]


def last_of(values: Sequence[T]) -> T:
    """Return the last value."""
    return values[-1]


def last_measured_of(values: Sequence[T | None]) -> T | None:
    """Return the last value that is not None."""
    return next((value for value in reversed(values) if value is not None), None)


def joined(values: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return every name once, in order of appearance."""
    return tuple(dict.fromkeys(name for names in values for name in names))


def reduced(items: Sequence[T]) -> T:
    """Reduce several measurements of the same kind, each field by its declared reducer."""
    kind: type[Any] = type(items[0])
    values = {
        name: reducer([getattr(item, name) for item in items])
        for name, reducer in reducers_of(kind).items()
    }
    joint: T = kind(**values)
    return joint


def reduced_if_any(items: Sequence[T | None]) -> T | None:
    """Reduce the items that are not None."""
    present = [item for item in items if item is not None]
    return reduced(present) if present else None


def reduced_heads(items: Sequence[Mapping[Head, T]]) -> dict[Head, T]:
    """Reduce head by head."""
    present = [item for item in items if item]
    return {head: reduced([item[head] for item in present]) for head in HEADS if present}


def reducers_of(kind: type[Any]) -> dict[str, Callable[[Sequence[Any]], Any]]:
    """Return each field's declared reducer."""
    return {
        name: hint.__metadata__[0]
        for name, hint in get_type_hints(kind, include_extras=True).items()
    }


Mean: TypeAlias = Annotated[float | None, mean_of]
Max: TypeAlias = Annotated[float | None, max_of]
Min: TypeAlias = Annotated[float | None, min_of]
Count: TypeAlias = Annotated[int, sum]
Flag: TypeAlias = Annotated[bool, any]
First = Annotated[T, first_of]
Last = Annotated[T, last_of]

# --- Metrics --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class LossMetrics:
    """Metrics of one optimizer step, or of several reduced."""

    policy_loss: Mean
    value_loss: Mean
    q_loss: Mean
    contribution_loss: Mean
    entropy: Mean
    floor_penalty: Mean
    gradient_norm: Max
    value_gradient_norm: Max
    q_gradient_norm: Max
    clip_fraction: Mean
    clip_fraction_positive: Mean
    clip_fraction_negative: Mean
    ratio_mean: Mean
    ratio_std: Mean
    ratio_min: Min
    ratio_max: Max
    log_prob_min: Min
    log_prob_max: Max


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadMetrics:
    """Metrics of one head in one optimizer step, or of several reduced."""

    entropy: Mean
    learnable_fraction: Mean
    gradient_norm: Max
    ratio_max: Max
    clip_fraction: Mean


@dataclass(frozen=True, kw_only=True, slots=True)
class ReturnMetrics:
    """A round's values, returns and advantages before the first optimizer step."""

    explained_variance: float | None
    value_nrmse: float | None
    value_return_correlation: float | None
    value_mean: float | None
    value_std: float | None
    value_min: float | None
    value_max: float | None
    td_error_mean: float | None
    td_error_std: float | None
    bellman_error: float | None
    return_mean: float | None
    return_std: float | None
    return_p10: float | None
    return_p50: float | None
    return_p90: float | None
    return_skewness: float | None
    advantage_mean: float | None
    advantage_std: float | None
    advantage_skewness: float | None
    advantage_kurtosis: float | None
    advantage_positive_fraction: float | None
    return_variance: float | None
    forced_fraction: float | None
    q_spread: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PPOMetrics:
    """All metrics of one update, or of a round's updates reduced."""

    losses: Annotated[LossMetrics | None, reduced_if_any]
    """None if no optimizer step was taken."""
    heads: Annotated[Mapping[Head, HeadMetrics], reduced_heads]
    """Empty if no optimizer step was taken."""
    returns: First[ReturnMetrics | None]
    """Metrics of the rollout, shared by all updates of a round; None if the round had no rows."""
    op_q_values: First[tuple[float, ...]]
    """Mean over the envs' first steps, in op order; empty if the round had no rows."""
    lstm_update: Annotated[LstmHealth | None, last_measured_of]
    lstm_rollout: Last[LstmHealth | None]
    learning_rate: Last[float]
    entropy_coef: Last[float]
    value_coef: Last[float]
    has_low_return_variance: Flag
    is_advantage_std_floored: Flag
    num_updates: Count
    num_optimizer_steps: Count
    num_finiteness_skips: Count
    nan_gradient_count: Count
    inf_gradient_count: Count
    usable_steps: First[int]
    """A count of the rollout, like the next two."""
    rollback_count: First[int]
    rollback_steps_forfeited: First[int]
    kl_stop_epoch: Annotated[int | None, min_of]
    """The epoch in which the KL early stop ended the update; None if it completed."""
    kl_divergence: Max
    """KL of the last minibatch; after a KL early stop, that of the step that was not taken."""
    nonfinite: Annotated[tuple[str, ...], joined]
    """Names of heads, critics or gradients that were not finite in a skipped step."""

    @property
    def has_learned(self) -> bool:
        """Return whether at least one optimizer step was taken."""
        return self.num_optimizer_steps > 0

    @property
    def skip_reason(self) -> str | None:
        """Return why no optimizer step was taken, or None."""
        if self.has_learned:
            return None
        if self.num_finiteness_skips:
            return "nonfinite"
        return "no_rows" if self.usable_steps == 0 else "kl_stop"


# --- From the device ------------------------------------------------------------------------------


def pack(kind: type, **figures: Tensor) -> Tensor:
    """Stack metrics [...] in the order in which `kind` declares them, [num_fields, ...]."""
    return torch.stack([figures[item.name].float() for item in fields(kind)])


def materialize_figures(kind: type[T], packed: Sequence[Tensor]) -> list[T]:
    """Transfer packed metrics to the CPU at once; NaN becomes None (not measured)."""
    names = [item.name for item in fields(kind)]  # type: ignore[arg-type]
    rows = torch.stack(list(packed)).tolist()
    return [kind(**dict(zip(names, map(_measured, row), strict=True))) for row in rows]


def materialize_heads(packed: Sequence[Tensor]) -> list[dict[Head, HeadMetrics]]:
    """Transfer packed metrics of all heads, [num_fields, heads] each, to the CPU at once."""
    by_head = [tensor.T for tensor in packed]
    flat = materialize_figures(HeadMetrics, list(torch.cat(by_head)))
    rows = [flat[first : first + len(HEADS)] for first in range(0, len(flat), len(HEADS))]
    return [dict(zip(HEADS, row, strict=True)) for row in rows]


def materialize_lstm_health(state: LstmState) -> LstmHealth:
    """Measure the recurrent state of all envs, in one transfer."""
    both = torch.stack((state.h, state.c)).double()
    env_rms = both.square().mean(-1).sqrt()
    figures = torch.cat(
        (
            both.square().mean((1, 2)).sqrt(),
            env_rms.amax(-1),
            both.abs().amax((1, 2)),
            both.isnan().any().double().view(1),
            both.isinf().any().double().view(1),
        )
    )
    h_rms, c_rms, h_env, c_env, h_abs, c_abs, has_nan, has_inf = figures.tolist()
    return LstmHealth(
        h_rms=h_rms,
        c_rms=c_rms,
        h_env_rms_max=h_env,
        c_env_rms_max=c_env,
        h_abs_max=h_abs,
        c_abs_max=c_abs,
        has_nan=bool(has_nan),
        has_inf=bool(has_inf),
    )


def _measured(value: float) -> float | None:
    return None if math.isnan(value) else value


# --- To events ------------------------------------------------------------------------------------


def ppo_update_event(metrics: PPOMetrics, update_ms: float) -> PPOUpdateCompleted:
    """Return the event of an update that took at least one optimizer step."""
    assert metrics.losses is not None, "no optimizer step was taken"
    assert metrics.returns is not None, "the round had no rows"
    known = {
        **asdict(metrics.losses),
        **asdict(metrics.returns),
        **{item.name: getattr(metrics, item.name) for item in fields(metrics)},
        "heads": {head.value: HeadUpdate(**asdict(row)) for head, row in metrics.heads.items()},
        "op_q_values": {op.name: q for op, q in zip(Op, metrics.op_q_values, strict=True)},
        "update_ms": update_ms,
    }
    return PPOUpdateCompleted(
        **{name: known[name] for name in PPOUpdateCompleted.__struct_fields__}
    )
