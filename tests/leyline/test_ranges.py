"""The range of every number of the configuration."""

import math
from collections.abc import Iterator
from typing import Any, Final, get_args

import msgspec
import pytest

from esper.leyline.config import Job
from esper.leyline.errors import InvalidValueError
from esper.leyline.jobs import Layer, merge_job

AT_LEAST: Final = {
    0: (
        "training.seed",
        "training.host_schedule.warmup_steps",
        "training.host_schedule.rewarmup_steps",
        "training.weight_decay",
        "training.value_coef",
        "training.value_coef_start",
        "training.value_warmup_batches",
        "training.entropy_coef",
        "training.entropy_coef_start",
        "training.entropy_coef_end",
        "training.entropy_coef_min",
        "training.entropy_anneal_episodes",
        "training.plateau_threshold",
        "training.improvement_threshold",
        "training.reward.drip_fraction",
        "training.reward.negative_drip_ratio",
        "run.profiler.torch_wait",
        "run.profiler.torch_repeat",
    ),
    1: (
        "training.n_episodes",
        "training.n_envs",
        "training.max_epochs",
        "training.max_seeds",
        "training.batch_size_per_env",
        "training.total_train_steps",
        "training.ppo_updates_per_batch",
        "training.recurrent_n_epochs",
        "training.lstm_hidden_dim",
        "training.feature_dim",
        "training.lifecycle.min_training_steps",
        "training.lifecycle.min_blending_steps",
        "training.lifecycle.embargo_steps",
        "training.lifecycle.resetting_steps",
        "training.lifecycle.full_legitimacy_holding_steps",
        "training.governor.snapshot_every",
        "training.telemetry.gradient_stride",
        "training.telemetry.escalation_steps",
        "training.reward.rent_host_params_floor",
        "training.reward.param_budget",
        "training.reward.escrow_stable_window",
        "training.reward.min_drip_steps",
        "run.lanes",
        "run.checkpoint_every",
        "run.fsync_interval_ms",
        "run.profiler.torch_warmup",
        "run.profiler.torch_active",
    ),
    2: ("training.governor.min_samples", "training.governor.history_window"),
}
"""The least value of each key that has one."""

ABOVE_0: Final = (
    "training.lr",
    "training.host_lr",
    "training.seed_lr",
    "training.max_grad_norm",
    "training.policy_max_grad_norm",
    "training.target_kl",
    "training.gamma",
    "training.gae_lambda",
    "training.clip_ratio",
    "training.reward.max_drip_per_step",
    "training.reward.fossilize_quality_ceiling",
    "training.reward.hacking_ratio_threshold",
    "training.reward.unbacked_contribution_scale",
    "training.loss_reward.loss_delta_std",
    "run.lane_deadline_s",
)

AT_MOST_1: Final = (
    "training.gamma",
    "training.gae_lambda",
    "training.clip_ratio",
    "training.reward.drip_fraction",
    "training.reward.negative_drip_ratio",
)

LEAST: Final = [(key, least) for least, keys in AT_LEAST.items() for key in keys]


def number_keys(struct: type[msgspec.Struct] = Job, path: str = "") -> Iterator[tuple[str, type]]:
    """Return every key that holds a number or None, and which kind of number."""
    for field in msgspec.structs.fields(struct):
        name = path + field.name
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from number_keys(field.type, f"{name}.")
        elif (kind := number_type(field.type)) is not None:
            yield name, kind


def number_type(kind: object) -> type | None:
    """Return int or float for a type that is one, maybe with a range, maybe with None."""
    if kind is int or kind is float:
        return kind
    if getattr(kind, "__origin__", None) in (tuple, dict):
        return None
    return next((found for part in get_args(kind) if (found := number_type(part))), None)


NUMBERS: Final = dict(number_keys())
FLOATS: Final = [key for key, kind in NUMBERS.items() if kind is float]


def just_below(key: str, bound: int) -> float:
    return bound - 1 if NUMBERS[key] is int else math.nextafter(bound, -math.inf)


def value_of(job: Job, key: str) -> Any:
    node: Any = job
    for part in key.split("."):
        node = getattr(node, part)
    return node


def nested(key: str, value: object) -> Layer:
    for part in reversed(key.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def merged(key: str, value: object) -> Job:
    # The fewest samples, so that history_window can be at its own least value.
    base = nested("training.governor.min_samples", 2)
    job, _ = merge_job(("base", base), ("file", nested(key, value)))
    return job


def refusal(key: str, value: object) -> str:
    with pytest.raises(InvalidValueError) as caught:
        merged(key, value)
    text = str(caught.value)
    assert text.startswith(f"file: {key} = {value!r}: must be ")
    assert "`" not in text
    return text


def test_the_tables_name_numbers_only() -> None:
    assert {*dict(LEAST), *ABOVE_0, *AT_MOST_1} <= set(NUMBERS)
    assert len(NUMBERS) > 150


@pytest.mark.parametrize(("key", "least"), LEAST)
def test_a_number_is_refused_just_below_its_least_value(key: str, least: int) -> None:
    assert f"at least {least}" in refusal(key, just_below(key, least))
    assert value_of(merged(key, least), key) == least


@pytest.mark.parametrize("key", ABOVE_0)
def test_a_number_that_must_be_above_0_is_refused_at_0(key: str) -> None:
    assert "above 0" in refusal(key, 0)
    assert "above 0" in refusal(key, 0.0)
    smallest = math.nextafter(0.0, 1.0)
    assert value_of(merged(key, smallest), key) == smallest


@pytest.mark.parametrize("key", AT_MOST_1)
def test_a_number_is_refused_just_above_1(key: str) -> None:
    assert "at most 1" in refusal(key, math.nextafter(1.0, 2.0))
    assert value_of(merged(key, 1.0), key) == 1.0


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused(key: str, value: float) -> None:
    assert "must be a finite number" in refusal(key, value)


@pytest.mark.parametrize("key", FLOATS)
def test_a_number_too_large_for_a_float_is_refused(key: str) -> None:
    with pytest.raises(InvalidValueError, match=f"file: {key} = "):
        merged(key, 10**400)
