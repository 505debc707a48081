"""Benchmarks without targets: scaling with slots, seeds, rounds, levels and subscribers."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from esper.kasmina.counterfactual import full_factorial
from esper.kasmina.model import MorphogeneticModel
from esper.leyline.tasks import TASKS
from tools.bench.counterfactual import grown_model
from tools.bench.memory import peak_kib
from tools.bench.pairing import Sample, sampled, thread_seconds
from tools.bench.rows import Point, Row, bench
from tools.bench.training import repetitions, worker_cpu_s
from tools.bench.workloads import DIGITS, GROWTH, SLOTS, Workload, run_workload
from tools.probes.speed import control_rate

SLOT_COUNTS: Final = (1, 2, 5, 10)
LEVELS: Final = ("off", "minimal", "normal", "debug")
SUBSCRIBER_COUNTS: Final = (0, 1, 10, 32, 64, 128)
"""The server refuses more than 128 at a time."""
WORKER_COUNTS: Final = (1, 2, 3, 4, 6, 8)
CONTROL_ENVS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MIN_CONTROL_STEPS: Final = 4_000
"""Env-steps of a measurement: few envs make up for it by more rounds."""

_RUN_ROUNDS: Final = """
from dataclasses import replace
from tools.bench.workloads import GROWTH, run_workload
run_workload(replace(GROWTH, num_rounds={num_rounds}, num_steps=2))
"""


def _rows(samples: Mapping[str, Sample], unit: str) -> Iterator[Row]:
    for name, sample in samples.items():
        yield Row(name=name, measured=sample.median, unit=unit, note=sample.note)


@bench("G slots")
def slots(is_quick: bool) -> Iterator[Row]:
    """Measure a host with ten slots, of which some are offered to seeds and none is taken."""
    torch.set_num_threads(1)
    all_slots = TASKS["cifar_deep_multichannel"].host.slot_ids
    rates: dict[str, Sample] = {}
    for count in SLOT_COUNTS[::3] if is_quick else SLOT_COUNTS:
        workload = replace(SLOTS, settings={"slots": all_slots[:count]})
        call = partial(worker_cpu_s, workload, command="wait")
        sample = sampled(call, repetitions(is_quick))
        per_s = tuple(workload.num_env_steps / value for value in sample.values)
        rates[f"G slots: {count}"] = Sample(per_s)
    yield from _rows(rates, "env-steps per CPU second of the lanes")


@bench("G seeds")
def active_seeds(is_quick: bool) -> Iterator[Row]:
    """Measure a batch of 64 through a model with 0 to 4 blended seeds."""
    torch.set_num_threads(1)
    x = torch.randn((64, 3, 32, 32), generator=torch.Generator().manual_seed(1))
    y = torch.arange(64) % 10
    for num_seeds in range(5):
        model = grown_model(num_seeds)
        for name, call in (("training", _train), ("validation, all subsets", _validate)):
            measure = partial(thread_seconds, partial(call, model, x, y))
            sample = sampled(measure, (False, *[True] * (5 if is_quick else 15)))
            yield Row(
                name=f"G seeds: {num_seeds}, {name}",
                measured=1e3 * sample.median,
                unit="CPU ms per batch",
                note=f"{2**num_seeds} configurations",
            )


def _train(model: MorphogeneticModel, x: Tensor, y: Tensor) -> None:
    model.train()
    nn.functional.cross_entropy(model(x), y).backward()
    model.zero_grad()


def _validate(model: MorphogeneticModel, x: Tensor, _y: Tensor) -> None:
    model.eval()
    with torch.inference_mode():
        model.fused_forward(x, full_factorial(model.blended_slots()))


@bench("G levels")
def levels(is_quick: bool) -> Iterator[Row]:
    """Measure the CPU time of lanes and control at each telemetry level."""
    workload = replace(DIGITS, num_steps=2 if is_quick else 8)
    for level in LEVELS[::3] if is_quick else LEVELS:
        call = partial(worker_cpu_s, workload, level=level)
        sample = sampled(call, repetitions(is_quick))
        per_step = 1e3 * sample.median / workload.num_env_steps
        yield Row(name=f"G level: {level}", measured=per_step, unit="CPU ms per env-step")


@bench("G subscribers")
def subscribers(is_quick: bool) -> Iterator[Row]:
    """Measure the CPU time of lanes and control with some live subscribers."""
    workload = replace(DIGITS, num_steps=2 if is_quick else 8)
    for count in SUBSCRIBER_COUNTS[:2] if is_quick else SUBSCRIBER_COUNTS:
        call = partial(worker_cpu_s, workload, num_subscribers=count)
        sample = sampled(call, repetitions(is_quick))
        per_step = 1e3 * sample.median / workload.num_env_steps
        yield Row(
            name=f"G subscribers: {count}",
            measured=per_step,
            unit="CPU ms per env-step",
            note=sample.note,
            point=Point("subscribers", count),
        )


@bench("G workers")
def workers(is_quick: bool) -> Iterator[Row]:
    """Measure the rounds of eight envs on 1 to 8 worker processes, without their start."""
    torch.set_num_threads(1)
    workload = replace(GROWTH, num_envs=8, num_steps=2 if is_quick else 20)
    for count in WORKER_COUNTS[:2] if is_quick else WORKER_COUNTS:
        call = partial(_worker_rate, workload, count)
        sample = sampled(call, repetitions(is_quick))
        yield Row(
            name=f"G workers: {count}",
            measured=sample.median,
            unit="env-steps per second",
            note=sample.note,
            point=Point("workers", count),
        )


def _worker_rate(workload: Workload, num_workers: int) -> float:
    result = run_workload(workload, command="wait", engine="processes", workers=num_workers)
    return workload.num_env_steps / sum(summary.duration_s for summary in result.history)


@bench("G control")
def control(is_quick: bool) -> Iterator[Row]:
    """Measure the control thread alone: observation, policy and rewards of the probe engine."""
    for count in CONTROL_ENVS[::4] if is_quick else CONTROL_ENVS:
        per_env_step_us = partial(_control_us, count, 400 if is_quick else MIN_CONTROL_STEPS)
        sample = sampled(per_env_step_us, (True,) * (1 if is_quick else 5))
        yield Row(
            name=f"G control, envs: {count}",
            measured=sample.median,
            unit="CPU µs per env-step",
            note=sample.note,
            point=Point("control", count),
        )


def _control_us(num_envs: int, min_steps: int) -> float:
    return 1e6 / control_rate(num_envs, min_steps)


@bench("G rounds")
def rounds(is_quick: bool) -> Iterator[Row]:
    """Measure the peak of memory after more and more rounds."""
    if not Path("/proc/self/status").exists():
        return
    for count in (1, 4) if is_quick else (1, 4, 16):
        peak_mib = peak_kib(_RUN_ROUNDS.format(num_rounds=count)) / 1024
        yield Row(name=f"G rounds: {count}", measured=peak_mib, unit="MiB, peak")
