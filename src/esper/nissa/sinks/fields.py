"""The one table of which event field becomes which scalar, histogram or table of a sink."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from esper.leyline.payloads import TrainingStarted
from esper.leyline.telemetry import Event, EventType

__all__ = ["FIELDS", "FieldRow", "Measurement", "Measurer", "Shape"]


class Shape(StrEnum):
    """What a field becomes."""

    SCALAR = "scalar"
    """A number over rounds or env steps; of a mapping or struct, one number for each key."""
    HISTOGRAM = "histogram"
    """The distribution of several numbers over rounds."""
    TABLE = "table"
    """Rows, each with its round."""


class FieldRow(NamedTuple):
    """One row: a field of an event type, or one of each value of a mapping (`heads.entropy`)."""

    event_type: EventType
    field: str
    shape: Shape
    name: str
    """What sinks call it; the name of an env's field ends in `/env_N` as well."""


class Measurement(NamedTuple):
    """What a sink stores of an event."""

    name: str
    place: int
    """The round, or for an env the steps since the start of the run, counted from 1."""
    value: float | tuple[float, ...] | tuple[dict[str, object], ...]
    """A scalar, the values of a histogram, or the rows of a table."""
    shape: Shape


def _scalars(event_type: EventType, group: str, *fields: str) -> tuple[FieldRow, ...]:
    return tuple(
        FieldRow(event_type, field, Shape.SCALAR, f"{group}/{field.replace('.', '/')}")
        for field in fields
    )


_T = EventType

FIELDS: Final = (
    *_scalars(
        _T.BATCH_EPOCH_COMPLETED,
        "round",
        *("mean_accuracy_pct", "rolling_accuracy_pct", "mean_reward", "mean_task_return"),
    ),
    FieldRow(
        _T.BATCH_EPOCH_COMPLETED, "env_accuracies_pct", Shape.HISTOGRAM, "round/env_accuracies_pct"
    ),
    FieldRow(_T.BATCH_EPOCH_COMPLETED, "env_rewards", Shape.HISTOGRAM, "round/env_rewards"),
    *_scalars(
        _T.BATCH_STATS,
        "growth",
        *("seeds_germinated", "seeds_fossilized", "seeds_pruned", "rollback_attempts"),
    ),
    *_scalars(_T.SCOREBOARD_UPDATED, "growth", "params_added", "compute_cost"),
    FieldRow(_T.SCOREBOARD_UPDATED, "blueprints", Shape.TABLE, "blueprints"),
    FieldRow(_T.TOPOLOGY_MANIFEST_RECORDED, "slots", Shape.TABLE, "topology"),
    *_scalars(
        _T.PPO_UPDATE_COMPLETED,
        "policy",
        *("policy_loss", "value_loss", "q_loss", "contribution_loss", "entropy", "gradient_norm"),
        *("kl_divergence", "clip_fraction", "ratio_max", "explained_variance", "value_nrmse"),
        *("return_mean", "return_std", "advantage_mean", "advantage_std", "learning_rate"),
        *("entropy_coef", "value_coef", "num_optimizer_steps", "forced_fraction", "update_ms"),
        *("op_q_values", "heads.entropy", "heads.gradient_norm", "heads.clip_fraction"),
    ),
    *_scalars(_T.ACTION_DISTRIBUTION, "actions", "counts", "successes"),
    *_scalars(_T.REWARD_SUMMARY, "reward", "mean_components", "hindsight_credit", "reward_scale"),
    *_scalars(_T.THROUGHPUT, "speed", "env_steps_per_s", "feeder_wait_s", "duration_s"),
    *_scalars(_T.ALLOCATOR_STATS, "memory", "allocated_bytes", "reserved_bytes"),
    *_scalars(
        _T.EPOCH_COMPLETED,
        "host",
        *("train_loss", "train_accuracy_pct", "val_loss", "val_accuracy_pct"),
        "host_gradient_norm",
    ),
    *_scalars(_T.LAST_ACTION, "decision", "value_estimate", "reward"),
    *_scalars(
        _T.EPISODE_OUTCOME,
        "episode",
        *("final_accuracy_pct", "best_accuracy_pct", "total_reward", "task_return"),
        *("param_ratio", "num_germinated", "num_fossilized", "num_pruned", "num_rollbacks"),
    ),
)
"""The table."""

_ROWS: Final[Mapping[EventType, tuple[FieldRow, ...]]] = {
    event_type: tuple(row for row in FIELDS if row.event_type is event_type)
    for event_type in {row.event_type for row in FIELDS}
}


class Measurer:
    """Takes from events what the table lists."""

    def __init__(self, started: TrainingStarted | None) -> None:
        self._started = started

    def measure(self, event: Event) -> Iterator[Measurement]:
        """Yield what sinks store of an event; numbers that were not measured are left out."""
        if isinstance(event.data, TrainingStarted):
            self._started = event.data
        for row in _ROWS.get(event.event_type, ()):
            yield from _measured(row, event, self._place(event))

    def _place(self, event: Event) -> int:
        if event.step is None or self._started is None:
            return (event.round or 0) + 1
        return (event.round or 0) * self._started.num_steps + event.step + 1


def _measured(row: FieldRow, event: Event, place: int) -> Iterator[Measurement]:
    # Behind the name, so that a pattern selects a field of all envs; rows of tables have a column.
    env = "" if event.env_id is None else f"/env_{event.env_id}"
    value = _value_of(event, row.field)
    match row.shape:
        case Shape.SCALAR:
            for key, number in _numbers(value):
                yield Measurement(f"{row.name}{key}{env}", place, number, row.shape)
        case Shape.HISTOGRAM:
            numbers = tuple(number for _, number in _numbers(value))
            yield Measurement(f"{row.name}{env}", place, numbers, row.shape)
        case Shape.TABLE:
            assert isinstance(value, tuple)
            scope = {"round": (event.round or 0) + 1, "env_id": event.env_id}
            rows = tuple({**scope, **msgspec.to_builtins(item)} for item in value)
            yield Measurement(row.name, place, rows, row.shape)


def _value_of(event: Event, field: str) -> object:
    outer, _, inner = field.partition(".")
    value: object = getattr(event.data, outer)
    if inner:
        assert isinstance(value, Mapping)
        return {key: getattr(item, inner) for key, item in value.items()}
    return value


def _numbers(value: object) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a value and what each adds to the name."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from ((f"/{key}{rest}", number) for rest, number in _numbers(item))
    elif isinstance(value, tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int | float):
        yield "", float(value)
