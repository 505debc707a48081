"""Command-line flags for the keys of a job: one table defines parser, help and config layers."""

from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

import msgspec

from esper.leyline.config import DEFAULT_SERVER_ADDRESS, Job
from esper.leyline.errors import ConfigError, UnreadableFileError
from esper.leyline.jobs import Layer, layer_from_text, nested_layer
from esper.leyline.tasks import TASKS
from esper.leyline.untyped_json import decode_json
from esper.nissa.storage.files import read_limited

__all__ = [
    "ALL_FLAGS",
    "FLAGS",
    "POLICY_FLAGS",
    "WITHOUT_RUN",
    "JobFlag",
    "add_job_flags",
    "layers_from",
    "read_layer",
]

MAX_CONFIG_BYTES: Final = 1 << 20
LOOPBACK: Final = DEFAULT_SERVER_ADDRESS.partition(":")[0]


class JobFlag(msgspec.Struct, frozen=True, kw_only=True):
    """One flag and the key it sets."""

    name: str
    key: str
    """Dotted key, such as `training.n_envs`."""
    help: str
    kind: Callable[[str], object] | None = str
    """Parses the value; None for a boolean switch, which also has a `--no-` form."""
    takes_many: bool = False
    is_repeated: bool = False
    """Whether it takes one value, any number of times."""
    is_pair: bool = False
    """Whether it takes KEY=VALUE, any number of times."""
    implied: str | None = None
    """The value used when the flag is given without one; None if it requires a value."""
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


def _server_address(text: str) -> str:
    """Return an address; a port alone is one of this machine's."""
    return f"{LOOPBACK}:{text}" if text.isdecimal() else text


POLICY_FLAGS: Final = "policy and PPO update"
"""The group of what only a policy that learns has."""
FLAGS: Final[Mapping[str, tuple[JobFlag, ...]]] = {
    "what to train": (
        _flag("--task", "training.task", "the task; 'esper-train tasks' lists them"),
        _flag("--preset", "training.preset", "named settings; 'esper-train presets' lists them"),
        _flag(
            "--rounds",
            "training.n_episodes",
            "rollouts of all envs, each followed by a PPO update",
            int,
        ),
        _flag("--envs", "training.n_envs", "host networks trained in parallel", int),
        _flag("--episode-length", "training.max_epochs", "steps per episode", int),
        _many("--slots", "training.slots", "slots where seeds may be germinated"),
        _many(
            "--blueprints",
            "training.blueprints",
            "registered blueprints that seeds may have beside those of every run",
        ),
        _flag(
            "--max-seeds", "training.max_seeds", "maximum number of seeds per env at a time", int
        ),
        _flag("--seed", "training.seed", "random seed of the run (no module that grows)", int),
        _flag("--group", "training.group_id", "group label for A/B comparisons"),
        _flag("--name", "run.name", "name of the run, which commands accept instead of its path"),
        JobFlag(
            name="--tag",
            key="run.tags",
            help="tag of the run, a column when runs are listed or queried; may be repeated",
            is_pair=True,
        ),
    ),
    "data": (
        _flag("--data", "training.data", "data source"),
        _flag("--data-dir", "run.data_dir", "directory of the task's data files"),
        _flag("--batch-size", "training.batch_size_per_env", "batch size per env", int),
        _switch("--gpu-preload", "training.gpu_preload", "preload the data onto the env devices"),
        _switch(
            "--gpu-preload-augment",
            "training.gpu_preload_augment",
            "augment preloaded data as well",
        ),
    ),
    "devices": (
        _flag("--device", "training.device", "device of the policy"),
        _many("--devices", "training.devices", "devices of the envs, assigned round-robin"),
        _switch("--amp", "training.amp", "train hosts with automatic mixed precision"),
        _flag("--amp-dtype", "training.amp_dtype", "dtype for --amp"),
        _switch("--tf32", "training.tf32", "multiply float32 matrices on a GPU in TF32"),
        _flag("--compile-mode", "training.compile_mode", "torch.compile mode of the policy"),
        _flag("--engine", "run.engine", "what the envs live in; auto takes the fastest"),
        _flag("--workers", "run.workers", "processes or Ray actors that the envs live in", int),
        _flag("--lanes", "run.lanes", "worker threads; worker processes in a comparison", int),
        _flag(
            "--lane-deadline",
            "run.lane_deadline_s",
            "seconds without a heartbeat before a lane counts as hung",
            float,
        ),
    ),
    POLICY_FLAGS: (
        _switch("--blind", "training.blind", "show the policy of each env the state of another"),
        _flag(
            "--init-from",
            "training.init_from",
            "checkpoint, run or builtin:NAME whose policy this one begins with",
        ),
        _flag("--lr", "training.lr", "learning rate of the policy", float),
        _flag(
            "--ppo-updates-per-batch",
            "training.ppo_updates_per_batch",
            "PPO updates per round, on the same rollout",
            int,
        ),
        _flag("--ppo-epochs", "training.recurrent_n_epochs", "epochs per PPO update", int),
        _flag(
            "--lstm-hidden-dim", "training.lstm_hidden_dim", "LSTM hidden size of the policy", int
        ),
        _flag("--clip-ratio", "training.clip_ratio", "PPO clip range", float),
        _flag("--entropy-coef", "training.entropy_coef", "entropy bonus coefficient", float),
        _flag(
            "--entropy-anneal-episodes",
            "training.entropy_anneal_episodes",
            "episodes over which the entropy coefficient is annealed",
            int,
        ),
        _flag(
            "--value-warmup-batches",
            "training.value_warmup_batches",
            "PPO updates over which the value loss coefficient is warmed up",
            int,
        ),
    ),
    "rewards": (
        _flag(
            "--reward-family",
            "training.reward_family",
            "reward family: by seed contribution or by loss",
        ),
        _flag(
            "--reward-mode",
            "training.reward_mode",
            "reward mode, which sets how dense the reward is",
        ),
    ),
    "telemetry": (
        _flag("--telemetry-dir", "run.telemetry_dir", "parent directory of the run directories"),
        JobFlag(
            name="--telemetry-level",
            key="training.telemetry.level",
            help="event verbosity",
            choices=("off", "minimal", "normal", "debug"),
        ),
        _switch(
            "--telemetry-lifecycle-only",
            "training.telemetry.lifecycle_only",
            "emit only the seed lifecycle events among the per-step events",
        ),
        _flag("--telemetry-fsync", "run.fsync", "when the event log is fsynced"),
        _flag(
            "--gradient-telemetry-stride",
            "training.telemetry.gradient_stride",
            "batches between gradient measurements",
            int,
        ),
    ),
    "checkpoints": (
        _flag("--checkpoint-every", "run.checkpoint_every", "rounds between checkpoints", int),
        _flag("--save", "run.save_path", "additional path for the last checkpoint"),
        _flag("--resume", "run.resume_path", "run or checkpoint to resume from, or 'latest'"),
    ),
    "monitoring": (
        JobFlag(
            name="--serve",
            key="run.serve",
            help="serve the dashboard and live events at HOST:PORT, or at a port of 127.0.0.1",
            kind=_server_address,
            implied=DEFAULT_SERVER_ADDRESS,
        ),
        _flag(
            "--serve-token",
            "run.serve_token",
            "token clients must send, or @FILE; required unless on loopback; $ESPER_SERVE_TOKEN "
            "is used if none is given",
        ),
        _many("--serve-origins", "run.serve_origins", "additional allowed web origins"),
        JobFlag(
            name="--sink",
            key="run.sinks",
            help="where events go as well: tensorboard[:DIR], wandb[:PROJECT], jsonl:PATH or a "
            "plug-in; may be repeated",
            is_repeated=True,
        ),
        _switch("--quiet", "run.quiet", "print errors only"),
    ),
    "profiling": (
        _switch(
            "--phase-profiler", "run.profiler.phases", "measure the time of each phase of a step"
        ),
        _switch("--torch-profiler", "run.profiler.torch", "write torch.profiler traces"),
        _flag(
            "--torch-profiler-dir", "run.profiler.torch_dir", "trace directory, relative to the run"
        ),
        _flag(
            "--torch-profiler-wait",
            "run.profiler.torch_wait",
            "steps to skip before each trace",
            int,
        ),
        _flag(
            "--torch-profiler-warmup",
            "run.profiler.torch_warmup",
            "warm-up steps (discarded)",
            int,
        ),
        _flag(
            "--torch-profiler-active", "run.profiler.torch_active", "recorded steps per trace", int
        ),
        _flag(
            "--torch-profiler-repeat",
            "run.profiler.torch_repeat",
            "number of traces; 0 repeats until the run ends",
            int,
        ),
        _switch(
            "--torch-profiler-record-shapes",
            "run.profiler.torch_record_shapes",
            "record tensor shapes",
        ),
        _switch(
            "--torch-profiler-profile-memory",
            "run.profiler.torch_profile_memory",
            "record memory allocations",
        ),
        _switch(
            "--torch-profiler-with-stack",
            "run.profiler.torch_with_stack",
            "record Python stack traces (slow)",
        ),
        _switch(
            "--torch-profiler-summary",
            "run.profiler.torch_summary",
            "write a table of the most expensive operators next to each trace",
        ),
    ),
}
"""Every flag that sets a key, by the group it is listed under in the help."""

WITHOUT_RUN: Final = (
    *("--rounds", "--group", "--name", "--tag"),
    *("telemetry", "checkpoints", "profiling"),
    *("--serve", "--serve-token", "--serve-origins"),
)
"""Groups and flags that change nothing where no run directory is written."""

ALL_FLAGS: Final = tuple(flag for group in FLAGS.values() for flag in group)

_TASK_KEYS: Final = frozenset(f"training.{key}" for task in TASKS.values() for key in task.defaults)
"""Keys whose default depends on the task."""


def add_job_flags(parser: ArgumentParser, without_effect: Collection[str] = ()) -> None:
    """Add every flag of the table, `--config`, and `--set` for any other key.

    Args:
        parser: of a command that takes a job.
        without_effect: groups and flags that change nothing for this command. They are accepted,
            so that all commands take the same job, and left out of the help.
    """
    if without_effect:
        parser.epilog = "Flags of other commands are accepted, and have no effect on this one."
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
            arguments = _arguments(flag)
            if title in without_effect or flag.name in without_effect:
                arguments["help"] = SUPPRESS
            group.add_argument(flag.name, **arguments)


def _arguments(flag: JobFlag) -> dict[str, Any]:
    arguments: dict[str, Any] = {"default": None, "help": f"{flag.help} ({_default_text(flag)})"}
    if flag.kind is None:
        return {**arguments, "action": BooleanOptionalAction}
    if flag.is_pair:
        return {**arguments, "action": "append", "metavar": "KEY=VALUE"}
    if flag.is_repeated:
        return {**arguments, "action": "append", "metavar": flag.attribute.upper()}
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
    plain = "none" if value in (None, {}, ()) else str(shown)
    # Written here because BooleanOptionalAction does not add the default to the help.
    return f"default: the task's, else {plain}" if flag.key in _TASK_KEYS else f"default: {plain}"


def layers_from(arguments: Namespace) -> list[tuple[str, Layer]]:
    """Return the layers of file, flags and `--set`, in order of increasing precedence."""
    layers: list[tuple[str, Layer]] = []
    if arguments.config is not None:
        layers.append((arguments.config, read_layer(Path(arguments.config))))
    for flag in ALL_FLAGS:
        value = getattr(arguments, flag.attribute)
        if value is not None:
            value = _pairs(flag.name, value) if flag.is_pair else value
            layers.append((flag.name, nested_layer(flag.key, value)))
    layers.extend((f"--set {text}", _layer_from_setting(text)) for text in arguments.set)
    return layers


def _pairs(flag: str, texts: Iterable[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ConfigError(f"{flag} {text}: expected KEY=VALUE, such as {flag} sweep=lr")
        pairs[key] = value
    return pairs


def read_layer(path: Path) -> Layer:
    """Read a configuration file."""
    try:
        text = read_limited(path, MAX_CONFIG_BYTES, "configuration").decode()
    except UnicodeDecodeError:
        raise UnreadableFileError(path, "cannot read the configuration: not a text file") from None
    return layer_from_text(text, source=str(path), is_toml=path.suffix.lower() != ".json")


def _layer_from_setting(text: str) -> Layer:
    """Parse `training.reward.rent_weight=0.3` into nested tables; strings need no quotes."""
    key, separator, raw = text.partition("=")
    if not separator or not key:
        raise ConfigError(f"--set {text}: expected KEY=VALUE, such as training.lr=0.001")
    try:
        return nested_layer(key, decode_json(raw))
    except ValueError:
        return nested_layer(key, raw)
