"""How a job comes together: layers are merged, converted and cross-checked in one place.

The range of a single number stands on its field and is checked by the conversion.

Later layers win: the structs' own defaults, the task's, the preset's, a file's, and the command
line's. Every layer is checked for unknown keys under its own name; the merged job is converted and
checked as a whole, so that no combination slips through between two layers.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, TypeAlias, get_args

import msgspec

from esper.leyline.actions import BLUEPRINTS, HEADS
from esper.leyline.config import LATEST_RUN, Job, TrainingConfig
from esper.leyline.errors import ConfigError, InvalidValueError, UnknownKeyError, nearest_name
from esper.leyline.ranges import range_of
from esper.leyline.rewards import RewardFamily, RewardMode
from esper.leyline.slots import parse_slot_id
from esper.leyline.stages import Gate
from esper.leyline.tasks import TASKS, TaskSpec, preset_named, task_named
from esper.leyline.telemetry import TelemetryLevel
from esper.leyline.untyped_json import decode_json

__all__ = ["Layer", "layer_from_text", "merge_job", "merge_layers", "nested_layer"]

Layer: TypeAlias = Mapping[str, object]
"""Some of a job's keys: tables `training` and `run`, as a file has them."""

_LABEL: Final = re.compile(r"\w[\w.+:@-]{0,63}")
"""A name or a tag's key: one word, which a shell needs no quotes for."""
_SYNONYMS: Final = {
    "learning_rate": "lr",
    "rounds": "n_episodes",
    "epochs": "n_episodes",
    "envs": "n_envs",
    "num_envs": "n_envs",
    "steps": "max_epochs",
    "episode_length": "max_epochs",
    "batch_size": "batch_size_per_env",
}
"""What others call these keys."""
_OUT_OF_RANGE: Final = re.compile(r"` (of length )?[<>]=? ")
"""What msgspec's message has about a value of the right type outside its range."""


def merge_job(
    *layers: tuple[str, Layer], tasks: Mapping[str, TaskSpec] = TASKS
) -> tuple[Job, TaskSpec]:
    """Merge named layers, earliest first, over the defaults of their task and preset.

    Args:
        layers: pairs of where the layer comes from (for messages) and its keys.
        tasks: the tasks to choose from.

    Returns:
        The checked job and the task it trains.
    """
    # The last layer that names a preset or a task decides, before anything else is merged.
    preset_name = _last_named(layers, "preset")
    preset = {} if preset_name is None else dict(preset_named(preset_name).settings)
    task_name = _last_named(layers, "task") or preset.get("task") or TrainingConfig().task
    task = task_named(str(task_name), tasks)
    merged: dict[str, object] = {}
    base: list[tuple[str, Layer]] = [
        (f"task {task.name}", {"training": task.defaults}),
        (f"preset {preset_name}", {"training": {**preset, "preset": preset_name}}),
    ]
    named = (*base, *layers)
    for source, layer in named:
        try:
            # Each layer by itself, because only here is it known which file or flag an unknown key
            # is from.
            _check_keys(layer, Job, source, "")
        except RecursionError:
            raise ConfigError(f"{source}: is nested too deeply") from None
        merged = _overlay(merged, layer)
    job = _convert(merged, named)
    _check_job(job, task, named)
    return job, task


def merge_layers(layers: Iterable[tuple[str, Layer]]) -> Layer:
    """Return one layer that says what several say together, later ones winning."""
    merged: Layer = {}
    for _, layer in layers:
        merged = _overlay(merged, layer)
    return merged


def nested_layer(key: str, value: object) -> Layer:
    """Return the layer that sets one dotted key."""
    for part in reversed(key.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def _last_named(layers: Sequence[tuple[str, Layer]], key: str) -> str | None:
    for _, layer in reversed(layers):
        table = layer.get("training")
        if isinstance(table, Mapping) and isinstance(table.get(key), str):
            return str(table[key])
    return None


def _check_keys(layer: Layer, struct: type[msgspec.Struct], source: str, path: str) -> None:
    """Refuse unknown keys and numbers that are not finite, at any depth."""
    fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
    for key, value in layer.items():
        name = f"{path}{key}"
        if key not in fields:
            raise UnknownKeyError(name, _nearest_key(key, path, fields), source)
        kind = fields[key]
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if not isinstance(value, Mapping):
                raise InvalidValueError(name, value, "must be a table", source)
            _check_keys(value, kind, source, f"{name}.")
        # Before the layers are merged: TOML has nan and inf, and no key of ours has a meaning for
        # them.
        for leaf in _leaves_of(value):
            if isinstance(leaf, float) and not math.isfinite(leaf):
                raise InvalidValueError(name, leaf, "must be a finite number", source)
            if isinstance(leaf, str) and not _is_text(leaf):
                raise InvalidValueError(name, leaf, "must be UTF-8 text without NUL", source)


def _nearest_key(key: str, path: str, siblings: Collection[str]) -> str | None:
    """Return the key that was meant: a usual synonym, a similar sibling, or the name elsewhere."""
    synonym = _SYNONYMS.get(key)
    sibling = synonym if synonym in siblings else nearest_name(key, siblings)
    if sibling is not None:
        return path + sibling
    return next((known for known in _all_keys(Job, "") if known.endswith(f".{key}")), None)


def _all_keys(struct: type[msgspec.Struct], path: str) -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        yield path + field.name
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _all_keys(field.type, f"{path}{field.name}.")


def _leaves_of(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from _leaves_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves_of(item)
    else:
        yield value


def _is_text(value: str) -> bool:
    """Return whether a text can be stored and name a file; not all arguments are UTF-8."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def _overlay(lower: Layer, upper: Layer) -> dict[str, object]:
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        # Tables are merged key by key, lists are replaced: a list of slots is one decision.
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = _overlay(below, value)
        else:
            merged[key] = value
    return merged


def _convert(merged: Layer, layers: Sequence[tuple[str, Layer]]) -> Job:
    try:
        return msgspec.convert(merged, Job)
    except msgspec.ValidationError as error:
        raise _invalid_value(str(error), merged, layers) from None


def _invalid_value(
    message: str, merged: Layer, layers: Sequence[tuple[str, Layer]]
) -> InvalidValueError:
    """Turn msgspec's message, which ends in the path of a value, into a sentence about its key."""
    reason, _, location = message.partition(" - at ")
    key = location.partition("$.")[2].rstrip("`").removesuffix("[...]")
    parts = [part for part in re.split(r"[.\[\]]+", key) if part]
    constraint = _constraint_at(parts, reason)
    return InvalidValueError(
        key, _value_at(merged, parts), constraint, _source_of(layers, parts) or "config"
    )


def _source_of(layers: Sequence[tuple[str, Layer]], parts: Sequence[str]) -> str | None:
    """Return the layer that decides the value at this place: the last one that has it."""
    return next((source for source, layer in reversed(layers) if _has(layer, parts)), None)


def _has(node: object, parts: Sequence[str]) -> bool:
    if not parts or not isinstance(node, Mapping):
        return True
    return parts[0] in node and _has(node[parts[0]], parts[1:])


def _value_at(node: object, parts: Sequence[str]) -> object:
    for part in parts:
        if isinstance(node, Mapping):
            node = node[part]
        elif isinstance(node, Sequence) and part.isdigit():
            node = node[int(part)]
    return node


def _constraint_at(parts: Sequence[str], reason: str) -> str:
    kind: object = Job
    for part in parts:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            kind = {field.name: field.type for field in msgspec.structs.fields(kind)}[part]
    # msgspec's own message does not name the allowed values of an enum.
    choices = _choices(kind)
    if choices:
        return f"must be one of {', '.join(choices)}"
    allowed = range_of(kind) if _OUT_OF_RANGE.search(reason) else None
    return reason.lower() if allowed is None else allowed


def _choices(kind: object) -> list[str]:
    """Return the values of an enum field, or nothing for other fields."""
    return [
        str(member.value)
        for item in (kind, *get_args(kind))
        if isinstance(item, type) and issubclass(item, Enum)
        for member in item
    ]


_Check: TypeAlias = tuple[str, object, bool, str]


def _check_job(job: Job, task: TaskSpec, layers: Sequence[tuple[str, Layer]]) -> None:
    """Check what types cannot say: names, and fields that must agree with each other."""
    for key, value, is_valid, constraint in (
        *_training_checks(job.training),
        *_slot_checks(job.training, task),
        *_context_checks(job.training, task),
        *_group_checks(job.training),
        *_run_checks(job),
    ):
        if not is_valid:
            source = _source_of(layers, key.split(".")) or "config"
            raise InvalidValueError(key, value, constraint, source)


def _training_checks(config: TrainingConfig) -> Iterator[_Check]:
    family, mode = config.reward_family, config.reward_mode
    is_pair = family is RewardFamily.CONTRIBUTION or mode is RewardMode.SHAPED
    yield "training.reward_mode", mode.value, is_pair, "must be shaped with the loss family"
    is_unique = len(config.blueprints) == len(set(config.blueprints))
    yield "training.blueprints", config.blueprints, is_unique, "must name each blueprint once"
    for name in config.blueprints:
        is_added = name not in BLUEPRINTS
        yield "training.blueprints", name, is_added, "names blueprints beside those of every run"
    heads = f"must be one of {', '.join(HEADS)}"
    for name in config.entropy_coef_per_head:
        yield "training.entropy_coef_per_head", name, name in HEADS, heads
    is_valid = config.n_envs > 1 or not config.blind
    yield "training.blind", config.blind, is_valid, "must have at least two envs to swap"
    if config.devices is not None:
        is_valid = len(config.devices) <= config.n_envs
        yield "training.devices", config.devices, is_valid, "must name 1 to n_envs devices"


def _slot_checks(config: TrainingConfig, task: TaskSpec) -> Iterator[_Check]:
    for slot_id in config.slots:
        parse_slot_id(slot_id)
    is_unique = len(config.slots) == len(set(config.slots))
    yield "training.slots", config.slots, is_unique, "must name each slot once"
    offered = task.host.slot_ids
    for slot_id in config.slots:
        constraint = f"task {task.name} has no such slot; it has {', '.join(offered)}"
        yield "training.slots", slot_id, slot_id in offered, constraint


def _context_checks(config: TrainingConfig, task: TaskSpec) -> Iterator[_Check]:
    known = [context.name for context in task.contexts]
    for name in config.contexts:
        constraint = f"task {task.name} has no such context; it has {', '.join(known) or 'none'}"
        yield "training.contexts", name, name in known, constraint
    is_valid = not config.contexts or any(config.contexts.values())
    yield "training.contexts", config.contexts, is_valid, "must have a weight above 0"


def _group_checks(config: TrainingConfig) -> Iterator[_Check]:
    lifecycle, governor, telemetry = config.lifecycle, config.governor, config.telemetry
    for gate in lifecycle.auto_forward:
        is_valid = gate in (Gate.G1, Gate.G2, Gate.G3)
        yield "training.lifecycle.auto_forward", gate.name, is_valid, "must be among G1, G2, G3"
    window, least = governor.history_window, governor.min_samples
    constraint = f"must be at least min_samples ({least})"
    yield "training.governor.history_window", window, window >= least, constraint
    levels = [level.name.lower() for level in TelemetryLevel]
    constraint = f"must be one of {', '.join(levels)}"
    yield "training.telemetry.level", telemetry.level, telemetry.level in levels, constraint


def _run_checks(job: Job) -> Iterator[_Check]:
    yield from _label_checks(job)
    serve, profiler = job.run.serve, job.run.profiler
    if serve is not None:
        host, _, port = serve.rpartition(":")
        is_valid = bool(host) and port.isdecimal() and len(port) <= 5 and int(port) <= 65535
        yield "run.serve", serve, is_valid, "must be HOST:PORT, such as 127.0.0.1:8765"
    num_steps = job.training.n_episodes * job.training.max_epochs
    is_reached = profiler.torch_wait + profiler.torch_warmup < num_steps
    constraint = f"with torch_warmup it leaves nothing of the run's {num_steps} steps to trace"
    is_valid = is_reached or not profiler.torch
    yield "run.profiler.torch_wait", profiler.torch_wait, is_valid, constraint


def _label_checks(job: Job) -> Iterator[_Check]:
    """Check that a name can stand where a command expects a run, and tags where it prints them."""
    if job.run.name is not None:
        is_valid = _LABEL.fullmatch(job.run.name) is not None and job.run.name != LATEST_RUN
        constraint = (
            "must be 1 to 64 letters, digits or any of _ . + : @ -, must start with a letter or "
            f"a digit, and must not be {LATEST_RUN!r}"
        )
        yield "run.name", job.run.name, is_valid, constraint
    for key in job.run.tags:
        constraint = "must be KEY=VALUE with a key of letters, digits or any of _ . + : @ -"
        yield "run.tags", key, _LABEL.fullmatch(key) is not None, constraint


def layer_from_text(text: str, *, source: str, is_toml: bool) -> Layer:
    """Read a configuration file's text as a layer."""
    try:
        layer = msgspec.toml.decode(text) if is_toml else decode_json(text)
    except (msgspec.DecodeError, ValueError) as error:
        kind = "TOML" if is_toml else "JSON"
        raise ConfigError(f"{source}: not {kind}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{source}: is nested too deeply") from None
    if not isinstance(layer, dict):
        raise ConfigError(f"{source}: must be a table with the keys training and run")
    return layer
