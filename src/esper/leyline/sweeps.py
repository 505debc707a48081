"""Sweeps: the table `[sweep]` of a configuration file, and what a sweep has found."""

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import msgspec

from esper.leyline.errors import ConfigError, InvalidValueError, UnknownKeyError, nearest_name
from esper.leyline.jobs import Layer
from esper.leyline.ranges import NonNegativeInt, PositiveInt, range_of

__all__ = ["Dimension", "SweepReport", "SweepSpec", "TrialRow", "split_sweep", "sweep_from"]

Setting: TypeAlias = str | int | float | bool | None

_TABLE = "sweep"


class Dimension(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The values of one key: some choices, or the numbers from `low` to `high`."""

    choices: tuple[Setting, ...] = ()
    low: int | float | None = None
    high: int | float | None = None
    step: int | float | None = None
    log: bool = False
    """Draw evenly on a logarithmic scale."""

    def problem(self) -> str | None:
        """Return why this cannot be searched, if so."""
        if self.choices:
            is_range = self.low is not None or self.high is not None
            return "has choices and a range; give one" if is_range else None
        if self.low is None or self.high is None:
            return "needs choices, or low and high"
        if self.low > self.high:
            return f"low ({self.low}) is above high ({self.high})"
        if self.log and (self.low <= 0 or self.step is not None):
            return "log needs low above 0 and no step"
        return None

    def ends(self) -> tuple[Setting, ...]:
        """Return the values that are checked before the first trial."""
        return self.choices or (self.low, self.high)


class SweepSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a sweep searches, and how."""

    name: str
    """Of the study, and the value of the tag `sweep` of its runs."""
    space: Annotated[dict[str, Dimension], msgspec.Meta(min_length=1)]
    """By configuration key, such as `training.lr`."""
    trials: PositiveInt = 20
    seeds: PositiveInt = 1
    """Runs of a trial, whose seeds count up from that of the configuration."""
    rounds: PositiveInt = 10
    """A run is worth the mean task return of its last rounds, at most this many."""
    storage: str | None = None
    """A journal file, or a database URL of SQLAlchemy; None names a file after the study."""
    is_pruned: bool = True
    """End trials whose return is below the median of others at the same point."""
    startup_trials: NonNegativeInt = 5
    """Trials that finish before any is pruned."""
    warmup_rounds: NonNegativeInt = 5
    """Rounds of a trial before it can be pruned."""
    sampler_seed: NonNegativeInt = 0

    @property
    def location(self) -> str:
        """Return where the study is stored."""
        return self.storage or f"{self.name}.journal"


def sweep_from(table: Mapping[str, object], source: str) -> SweepSpec:
    """Check the settings of a sweep.

    Args:
        table: the settings by name.
        source: where they were given, for messages.
    """
    kinds = {field.name: field.type for field in msgspec.structs.fields(SweepSpec)}
    for name in table:
        if name not in kinds:
            nearest = nearest_name(name, kinds)
            meant = None if nearest is None else f"{_TABLE}.{nearest}"
            raise UnknownKeyError(f"{_TABLE}.{name}", meant, source)
    try:
        return msgspec.convert(table, SweepSpec)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        name = place.strip("`").removeprefix("$.")
        if name not in table:
            where = f"{_TABLE}.{name}" if name else _TABLE
            raise ConfigError(f"{source}: {where}: {reason.lower()}") from None
        constraint = range_of(kinds[name]) or reason.lower()
        raise InvalidValueError(f"{_TABLE}.{name}", table[name], constraint, source) from None


def split_sweep(layer: Layer, source: str) -> tuple[SweepSpec, Layer]:
    """Return the sweep of a configuration file and the rest of it.

    Args:
        layer: the file's tables.
        source: its name, for messages.
    """
    if _TABLE not in layer:
        raise ConfigError(f"{source}: no table [{_TABLE}]; docs/sweeps.md has an example")
    table = layer[_TABLE]
    if not isinstance(table, Mapping):
        raise InvalidValueError(_TABLE, table, "must be a table", source)
    spec = sweep_from(table, source)
    for key, dimension in spec.space.items():
        problem = dimension.problem()
        if problem is not None:
            value = msgspec.to_builtins(dimension)
            raise InvalidValueError(f"{_TABLE}.space.{key}", value, problem, source)
    return spec, {key: value for key, value in layer.items() if key != _TABLE}


class TrialRow(msgspec.Struct, frozen=True, kw_only=True):
    """One trial."""

    number: int
    state: str
    """`complete`, `pruned`, `failed` or `running`."""
    task_return: float | None
    """Mean over its runs; of a pruned trial, the last one before its end."""
    settings: dict[str, Setting]
    runs: tuple[str, ...]
    """Ids of its runs."""
    reason: str | None
    """Why it failed."""


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep's trials, the best first."""

    name: str
    storage: str
    trials: tuple[TrialRow, ...]
