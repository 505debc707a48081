"""`esper-train`: the command that trains."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from esper.leyline.errors import ConfigError, ExitCode, UnreadableFileError
from esper.leyline.jobs import Layer, layer_from_text, merge_job
from esper.leyline.tasks import PRESETS, TASKS
from esper.scripts.cli import add_version, run_command

__all__ = ["main"]

_FLAG_KEYS: Final = {
    "task": "task",
    "preset": "preset",
    "rounds": "n_episodes",
    "envs": "n_envs",
    "episode_length": "max_epochs",
    "slots": "slots",
    "seed": "seed",
}
"""Flags that stand for a field of TrainingConfig."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `esper-train` and return its exit code."""
    return run_command(_build_parser(), argv)


def _build_parser() -> ArgumentParser:
    parser = ArgumentParser(prog="esper-train", description="Train networks that grow.")
    add_version(parser)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    tasks = commands.add_parser("tasks", help="list the tasks")
    tasks.set_defaults(command=_list_tasks)
    presets = commands.add_parser("presets", help="list the presets")
    presets.set_defaults(command=_list_presets)
    config = commands.add_parser("config", help="look at configurations")
    actions = config.add_subparsers(title="actions", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print the merged and checked configuration as JSON")
    _add_job_flags(show)
    show.set_defaults(command=_show_config)
    return parser


def _add_job_flags(parser: ArgumentParser) -> None:
    default = "default: the preset's or the task's"
    parser.add_argument("--config", metavar="FILE", help="TOML or JSON file with [training], [run]")
    parser.add_argument("--preset", metavar="NAME", help="named settings (default: none)")
    parser.add_argument("--task", metavar="NAME", help="what to train (default: digits)")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"rollouts and updates ({default})")
    parser.add_argument("--envs", type=int, metavar="N", help=f"hosts trained at once ({default})")
    parser.add_argument(
        "--episode-length", type=int, metavar="N", help=f"steps per episode ({default})"
    )
    parser.add_argument("--slots", nargs="+", metavar="SLOT", help=f"slots in use ({default})")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of every stream (default: 42)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set any key, such as training.reward.rent_weight=0.3; may be repeated",
    )


def _list_tasks(_: Namespace) -> int:
    _print_rows({task.name: task.summary for task in TASKS.values()})
    return ExitCode.OK


def _list_presets(_: Namespace) -> int:
    _print_rows({preset.name: preset.summary for preset in PRESETS.values()})
    return ExitCode.OK


def _print_rows(rows: Mapping[str, str]) -> None:
    width = max(map(len, rows))
    for name, summary in rows.items():
        print(f"{name:<{width}}  {summary}")


def _show_config(arguments: Namespace) -> int:
    job, _ = merge_job(*_layers_from(arguments))
    json.dump(msgspec.to_builtins(job), sys.stdout, indent=2)
    print()
    return ExitCode.OK


def _layers_from(arguments: Namespace) -> list[tuple[str, Layer]]:
    layers: list[tuple[str, Layer]] = []
    if arguments.config is not None:
        layers.append((arguments.config, _read_layer(Path(arguments.config))))
    flags = {key: getattr(arguments, flag) for flag, key in _FLAG_KEYS.items()}
    given = {key: value for key, value in flags.items() if value is not None}
    layers.append(("command line", {"training": given} if given else {}))
    layers.extend(("--set " + text, _layer_from_setting(text)) for text in arguments.set)
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
    value: object
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        value = raw
    for part in reversed(key.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


if __name__ == "__main__":
    sys.exit(main())
