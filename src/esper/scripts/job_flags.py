"""Flags that stand for keys of a job: one table, from which parser, help and layers are made."""

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec

from esper.leyline.config import DEFAULT_SERVER_ADDRESS, Job
from esper.leyline.errors import ConfigError, UnreadableFileError
from esper.leyline.jobs import Layer, layer_from_text
from esper.leyline.tasks import TASKS
from esper.leyline.untyped_json import decode_json

__all__ = ["FLAGS", "JobFlag", "add_job_flags", "layers_from"]


class JobFlag(msgspec.Struct, frozen=True, kw_only=True):
    """One flag and the key it sets."""

    name: str
    key: str
    """Dotted, such as `training.n_envs`."""
    help: str
    kind: Callable[[str], object] | None = str
    """Reads the value; None for a switch, which also has a `--no-` form."""
    takes_many: bool = False
    implied: str | None = None
    """The value of the flag without a value, where it may stand alone."""
    choices: tuple[str, ...] | None = None

    @property
    def attribute(self) -> str:
        """Return the name that argparse stores the value under."""
        return self.name.removeprefix("--").replace("-", "_")


def _field(key: str) -> Any:
    node: Any = Job()
    for part in key.split("."):
        node = getattr(node, part)
    return node


def _enum_choices(key: str) -> tuple[str, ...] | None:
    value = _field(key)
    if not isinstance(value, Enum):
        return None
    return tuple(str(member.value) for member in type(value))


def _flag(name: str, key: str, help: str, kind: Callable[[str], object] | None = str) -> JobFlag:
    return JobFlag(name=name, key=key, help=help, kind=kind, choices=_enum_choices(key))


def _many(name: str, key: str, help: str) -> JobFlag:
    return JobFlag(name=name, key=key, help=help, takes_many=True)


def _switch(name: str, key: str, help: str) -> JobFlag:
    return JobFlag(name=name, key=key, help=help, kind=None)


FLAGS: Final[Mapping[str, tuple[JobFlag, ...]]] = {
    "what to train": (
        _flag("--task", "training.task", "the task; 'esper-train tasks' lists them"),
        _flag("--preset", "training.preset", "named settings; 'esper-train presets' lists them"),
        _flag("--rounds", "training.n_episodes", "rollouts of all envs, each with an update", int),
        _flag("--envs", "training.n_envs", "hosts that are trained at once", int),
        _flag("--episode-length", "training.max_epochs", "steps per episode", int),
        _many("--slots", "training.slots", "slots that seeds may grow in"),
        _flag("--max-seeds", "training.max_seeds", "seeds at once in one env", int),
        _flag("--seed", "training.seed", "the seed of every random stream", int),
        _flag("--group", "training.group_id", "cohort of an A/B comparison"),
    ),
    "data": (
        _flag("--data", "training.data", "where data may come from"),
        _flag("--data-dir", "run.data_dir", "directory with the task's files"),
        _flag("--batch-size", "training.batch_size_per_env", "samples per env and batch", int),
        _switch("--gpu-preload", "training.gpu_preload", "keep the data on the envs' devices"),
        _switch(
            "--gpu-preload-augment", "training.gpu_preload_augment", "augment preloaded data too"
        ),
    ),
    "devices": (
        _flag("--device", "training.device", "the policy's device"),
        _many("--devices", "training.devices", "the envs' devices, in turn"),
        _switch("--amp", "training.amp", "train hosts in mixed precision"),
        _flag("--amp-dtype", "training.amp_dtype", "precision under --amp"),
        _flag("--compile-mode", "training.compile_mode", "how the policy is compiled"),
        _flag("--lanes", "run.lanes", "worker threads, or processes of a comparison", int),
        _flag("--lane-deadline", "run.lane_deadline_s", "silence after which a lane hangs", float),
    ),
    "policy and update": (
        _flag("--lr", "training.lr", "learning rate of the policy", float),
        _flag(
            "--ppo-updates-per-batch",
            "training.ppo_updates_per_batch",
            "PPO updates on each round's rollout",
            int,
        ),
        _flag("--ppo-epochs", "training.recurrent_n_epochs", "inner epochs of an update", int),
        _flag("--memory-size", "training.lstm_hidden_dim", "size of the policy's memory", int),
        _flag("--clip-ratio", "training.clip_ratio", "how far an update may move", float),
        _flag("--entropy-coef", "training.entropy_coef", "weight of exploration", float),
        _flag(
            "--entropy-anneal-episodes",
            "training.entropy_anneal_episodes",
            "episodes over which exploration is annealed",
            int,
        ),
        _flag(
            "--value-warmup-batches",
            "training.value_warmup_batches",
            "updates over which the value loss gains its weight",
            int,
        ),
    ),
    "rewards": (
        _flag("--reward-family", "training.reward_family", "what rewards are made of"),
        _flag("--reward-mode", "training.reward_mode", "how dense they are"),
    ),
    "telemetry": (
        _flag("--telemetry-dir", "run.telemetry_dir", "where run directories are made"),
        JobFlag(
            name="--telemetry-level",
            key="training.telemetry.level",
            help="how much is told",
            choices=("off", "minimal", "normal", "debug"),
        ),
        _switch(
            "--telemetry-lifecycle-only",
            "training.telemetry.lifecycle_only",
            "of the per-step events, only those of seeds",
        ),
        _flag("--telemetry-fsync", "run.fsync", "when the log is forced to the disk"),
        _flag(
            "--gradient-telemetry-stride",
            "training.telemetry.gradient_stride",
            "batches between two gradient measurements",
            int,
        ),
    ),
    "checkpoints": (
        _flag("--checkpoint-every", "run.checkpoint_every", "rounds between checkpoints", int),
        _flag("--save", "run.save_path", "where the last checkpoint is written once more"),
        _flag("--resume", "run.resume_path", "a checkpoint to go on from, or 'latest'"),
    ),
    "watching": (
        JobFlag(
            name="--serve",
            key="run.serve",
            help="serve the dashboard and the live tail at HOST:PORT",
            implied=DEFAULT_SERVER_ADDRESS,
        ),
        _flag("--serve-token", "run.serve_token", "what a client must know; needed off loopback"),
        _many("--serve-origins", "run.serve_origins", "other pages that may connect"),
        _switch("--quiet", "run.quiet", "print nothing but errors"),
    ),
    "profiling": (
        _switch("--phase-profiler", "run.profiler.phases", "tell where each step's time goes"),
        _switch("--torch-profiler", "run.profiler.torch", "write traces of what threads compute"),
        _flag("--torch-profiler-dir", "run.profiler.torch_dir", "where, seen from the run"),
        _flag("--torch-profiler-wait", "run.profiler.torch_wait", "steps before a trace", int),
        _flag(
            "--torch-profiler-warmup", "run.profiler.torch_warmup", "steps recorded in vain", int
        ),
        _flag("--torch-profiler-active", "run.profiler.torch_active", "steps of a trace", int),
        _flag(
            "--torch-profiler-repeat",
            "run.profiler.torch_repeat",
            "traces; 0 writes them until the run ends",
            int,
        ),
        _switch(
            "--torch-profiler-record-shapes",
            "run.profiler.torch_record_shapes",
            "record the shapes of tensors",
        ),
        _switch(
            "--torch-profiler-profile-memory",
            "run.profiler.torch_profile_memory",
            "record what is allocated",
        ),
        _switch(
            "--torch-profiler-with-stack",
            "run.profiler.torch_with_stack",
            "record Python's stack, which is slow",
        ),
        _switch(
            "--torch-profiler-summary",
            "run.profiler.torch_summary",
            "write a table of the costliest operations beside a trace",
        ),
    ),
}
"""Every flag that sets a key, in groups of the help."""

ALL_FLAGS: Final = tuple(flag for group in FLAGS.values() for flag in group)

_TASK_KEYS: Final = frozenset(f"training.{key}" for task in TASKS.values() for key in task.defaults)
"""Keys whose default depends on the task."""


def add_job_flags(parser: ArgumentParser) -> None:
    """Add every flag of the table, a configuration file, and a way to set any other key."""
    parser.add_argument("--config", metavar="FILE", help="TOML or JSON file with [training], [run]")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set any key, such as training.reward.rent_weight=0.3; may be repeated",
    )
    for title, flags in FLAGS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            group.add_argument(flag.name, **_arguments(flag))


def _arguments(flag: JobFlag) -> dict[str, Any]:
    arguments: dict[str, Any] = {"default": None, "help": f"{flag.help} ({_default_text(flag)})"}
    if flag.kind is None:
        return {**arguments, "action": BooleanOptionalAction}
    arguments |= {"type": flag.kind, "choices": flag.choices}
    if flag.choices is None:
        arguments["metavar"] = flag.attribute.upper()
    if flag.takes_many:
        arguments["nargs"] = "+"
    if flag.implied is not None:
        arguments |= {"nargs": "?", "const": flag.implied}
    return arguments


def _default_text(flag: JobFlag) -> str:
    value = _field(flag.key)
    shown = " ".join(value) if isinstance(value, tuple) else value
    plain = "none" if value is None else str(shown)
    # BooleanOptionalAction adds nothing to a help that names its default itself.
    return f"default: the task's, else {plain}" if flag.key in _TASK_KEYS else f"default: {plain}"


def layers_from(arguments: Namespace) -> list[tuple[str, Layer]]:
    """Return what file, flags and `--set` say, in the order in which they win."""
    layers: list[tuple[str, Layer]] = []
    if arguments.config is not None:
        layers.append((arguments.config, _read_layer(Path(arguments.config))))
    for flag in ALL_FLAGS:
        value = getattr(arguments, flag.attribute)
        if value is not None:
            layers.append((flag.name, _nested(flag.key, value)))
    layers.extend((f"--set {text}", _layer_from_setting(text)) for text in arguments.set)
    return layers


def _read_layer(path: Path) -> Layer:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UnreadableFileError(path, f"cannot read the configuration: {reason}") from None
    return layer_from_text(text, source=str(path), is_toml=path.suffix.lower() != ".json")


def _layer_from_setting(text: str) -> Layer:
    """Turn `training.reward.rent_weight=0.3` into nested tables; words need no quotes."""
    key, separator, raw = text.partition("=")
    if not separator or not key:
        raise ConfigError(f"--set {text}: expected KEY=VALUE, such as training.lr=0.001")
    try:
        return _nested(key, decode_json(raw))
    except ValueError:
        return _nested(key, raw)


def _nested(key: str, value: object) -> Layer:
    for part in reversed(key.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value
