"""Comparing groups of runs by what their last rounds reached."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Final

from esper.karn.mcp.messages import (
    GroupFacts,
    Interval,
    MetricDifference,
    PolicyComparison,
    Source,
)
from esper.leyline.errors import EventDecodeError
from esper.leyline.payloads import BatchEpochCompleted
from esper.leyline.telemetry import decode_event
from esper.nissa.reading.log_ends import read_ends
from esper.nissa.reading.run_lookup import find_log

__all__ = ["compare_groups"]

NUM_RESAMPLES: Final = 2000
FEW_RUNS: Final = 5
"""Fewer runs than this say little, whatever their interval."""
_METRICS: Final = ("mean_accuracy_pct", "mean_task_return")

_Values = dict[str, list[float]]
"""For each metric, one value for each run that has one."""


def compare_groups(
    groups: Mapping[str, Sequence[Path]], *, num_rounds: int, sources: list[Source]
) -> PolicyComparison:
    """Compare groups of runs, each run by the mean of its last rounds."""
    values = {name: _values_of(runs, num_rounds) for name, runs in groups.items()}
    first, *others = values
    return PolicyComparison(
        sources=sources,
        groups=[
            GroupFacts(
                name=name,
                num_runs=len(groups[name]),
                accuracy_pct=_interval(values[name][_METRICS[0]]),
                task_return=_interval(values[name][_METRICS[1]]),
            )
            for name in values
        ],
        differences=[
            MetricDifference(
                first=first,
                second=other,
                accuracy_pp=_difference(*(values[name][_METRICS[0]] for name in (first, other))),
                task_return=_difference(*(values[name][_METRICS[1]] for name in (first, other))),
            )
            for other in others
        ],
        caution=_caution(groups),
    )


def _caution(groups: Mapping[str, Sequence[Path]]) -> str | None:
    few = [name for name, runs in groups.items() if len(runs) < FEW_RUNS]
    if not few:
        return None
    return (
        f"fewer than {FEW_RUNS} runs in {', '.join(few)}: train more seeds before you conclude "
        "anything; 'esper-train compare' measures on the test split"
    )


def _values_of(runs: Sequence[Path], num_rounds: int) -> _Values:
    found: _Values = {metric: [] for metric in _METRICS}
    for run in runs:
        rounds = _last_rounds(run, num_rounds)
        for metric in _METRICS:
            numbers = [getattr(row, metric) for row in rounds]
            known = [number for number in numbers if number is not None]
            if known:
                found[metric].append(fmean(known))
    return found


def _last_rounds(run: Path, num_rounds: int) -> list[BatchEpochCompleted]:
    rounds = []
    for line in read_ends(find_log(run), num_rounds):
        try:
            data = decode_event(line).data
        except EventDecodeError:
            continue  # `validate` reports damage
        if isinstance(data, BatchEpochCompleted):
            rounds.append(data)
    return rounds


def _interval(values: Sequence[float]) -> Interval | None:
    if not values:
        return None
    random = Random(0)  # the same question has the same answer
    return _percentiles(
        fmean(values), [_resampled_mean(values, random) for _ in range(NUM_RESAMPLES)]
    )


def _difference(first: Sequence[float], second: Sequence[float]) -> Interval | None:
    if not first or not second:
        return None
    random = Random(0)
    return _percentiles(
        fmean(first) - fmean(second),
        [
            _resampled_mean(first, random) - _resampled_mean(second, random)
            for _ in range(NUM_RESAMPLES)
        ],
    )


def _resampled_mean(values: Sequence[float], random: Random) -> float:
    return fmean(random.choices(values, k=len(values)))


def _percentiles(mean: float, resampled: list[float]) -> Interval:
    ordered = sorted(resampled)
    edge = NUM_RESAMPLES // 40
    return Interval(mean=mean, low=ordered[edge], high=ordered[-edge - 1])
