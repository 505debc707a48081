"""`esper-train`: the command that trains, evaluates and compares controllers."""

from esper.scripts.startup import end_process, prepare_process

if __name__ == "__main__":
    prepare_process()  # before the imports below, which take a moment

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from esper.leyline.errors import ExitCode, InterruptedRunError
from esper.leyline.jobs import Layer, merge_job, merge_layers
from esper.leyline.printable import printable
from esper.leyline.tasks import PRESETS
from esper.scripts.cli import CommandParser, add_version, run_command
from esper.scripts.job_flags import POLICY_FLAGS, add_job_flags, layers_from
from esper.scripts.summary import summary_of
from esper.scripts.terminal import dispensable_output, print_json
from esper.scripts.train_check import add_check_flags, run_check
from esper.scripts.train_compare import add_compare_flags, run_compare
from esper.scripts.train_eval import add_eval_flags, run_eval
from esper.scripts.train_export import add_export_flags, run_export
from esper.scripts.train_inspect import add_inspect_flags, run_inspect
from esper.scripts.train_sweep import add_sweep_flags, run_sweep_command

if TYPE_CHECKING:
    from esper.simic.training.run_result import TrainingResult

__all__ = ["build_parser", "main"]

CONTROLLERS: Final = {
    "ppo": "train a PPO policy that decides what to grow",
    "heuristic": "decide what to grow with a hand-written rule",
    "random": "sample legal actions at random",
    "periodic": "germinate every few steps in a fixed rotation",
    "wait": "grow nothing: train the host only",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `esper-train` and return its exit code."""
    return run_command(build_parser(), argv)


def build_parser() -> ArgumentParser:
    """Return the parser of `esper-train`."""
    parser = CommandParser(prog="esper-train", description="Train networks that grow.")
    add_version(parser)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, help_text in CONTROLLERS.items():
        train = commands.add_parser(
            name,
            help=help_text,
            description=help_text.capitalize() + ".",
            usage="%(prog)s [options]",
        )
        train.add_argument("--json", action="store_true", help="print the summary as JSON")
        add_job_flags(train, without_effect=() if name == "ppo" else (POLICY_FLAGS,))
        train.set_defaults(command=partial(_train, name))
    evaluate = commands.add_parser("eval", help="evaluate a checkpoint's policy on fresh hosts")
    add_eval_flags(evaluate)
    evaluate.set_defaults(command=run_eval)
    export = commands.add_parser(
        "export", help="write a grown network in a format that is read without Esper"
    )
    add_export_flags(export)
    export.set_defaults(command=run_export)
    compare = commands.add_parser(
        "compare",
        help="compare controllers on the test split",
        description="Compare controllers on the test split.",
        usage="%(prog)s [options]",
    )
    add_compare_flags(compare)
    compare.set_defaults(command=run_compare)
    sweep = commands.add_parser(
        "sweep",
        help="search configurations with Optuna (requires the extra 'search')",
        description="Search configurations for the best task return, with Optuna.",
        usage="%(prog)s --config FILE [options]",
    )
    add_sweep_flags(sweep)
    sweep.set_defaults(command=run_sweep_command)
    inspect = commands.add_parser(
        "inspect", help="show what a policy's choices depend on, and whether it notices sabotage"
    )
    add_inspect_flags(inspect)
    inspect.set_defaults(command=run_inspect)
    check = commands.add_parser(
        "check", help="check a machine: equal bits on every engine, fences, memory, speed"
    )
    add_check_flags(check)
    check.set_defaults(command=run_check)
    commands.add_parser("tasks", help="list the tasks").set_defaults(command=_list_tasks)
    commands.add_parser("presets", help="list the presets").set_defaults(command=_list_presets)
    config = commands.add_parser("config", help="inspect the configuration")
    actions = config.add_subparsers(title="actions", required=True, metavar="ACTION")
    show = actions.add_parser(
        "show",
        help="print the merged and validated configuration as JSON",
        usage="%(prog)s [options]",
    )
    add_job_flags(show)
    show.set_defaults(command=_show_config)
    return parser


def _train(controller: str, arguments: Namespace) -> int:
    layers = layers_from(arguments)
    try:
        return _run_controller(controller, arguments, layers)
    except InterruptedRunError as error:
        if not error.is_reported:
            raise
        return error.exit_code  # the last line is the summary's command to resume


def _run_controller(
    controller: str, arguments: Namespace, layers: Sequence[tuple[str, Layer]]
) -> int:
    # Imported here because both load torch, which parsing and --help must not.
    from esper.simic.training import vectorized
    from esper.simic.training.checkpoints.resuming import resolve_job

    # With --json, stdout carries only the JSON; progress goes to stderr.
    watch = sys.stderr if arguments.json else sys.stdout
    # By the public function, so that the command can do nothing that a program cannot.
    if controller == vectorized.POLICY_COMMAND:
        _, history = vectorized.train_ppo_vectorized(**_keywords(layers), watch=watch)
        _finish_output(history.result if arguments.json else None)
        return ExitCode.OK
    job, resumed = resolve_job(layers)
    result = vectorized.run_job(job, command=controller, resumed=resumed, watch=watch)
    _finish_output(result if arguments.json else None)
    return ExitCode.OK


def _finish_output(result: "TrainingResult | None") -> None:
    """Print the summary as JSON, if asked for; the run is complete even if that fails."""
    with dispensable_output():
        if result is not None:
            print_json(summary_of(result))


def _keywords(layers: Sequence[tuple[str, Layer]]) -> dict[str, Any]:
    """Return only the keys that file, flags and `--set` give, as keyword arguments."""
    from esper.runtime.tasks import tasks_for  # task plug-ins may import torch

    merge_job(*layers, tasks=tasks_for(layers))  # raises an error that names the invalid layer
    given = merge_layers(layers)
    return {key: value for table in given.values() for key, value in cast(Layer, table).items()}


def _list_tasks(_: Namespace) -> int:
    from esper.runtime.tasks import all_tasks  # task plug-ins may import torch

    rows = []
    for task in all_tasks().values():
        rows.append((task.name, task.summary))
        rows += [(f"  {item.name}", item.summary) for item in task.contexts if item.summary]
    _print_rows(rows)
    return ExitCode.OK


def _list_presets(_: Namespace) -> int:
    _print_rows([(preset.name, preset.summary) for preset in PRESETS.values()])
    return ExitCode.OK


def _print_rows(rows: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    for name, summary in rows:
        print(printable(f"{name:<{width}}  {summary}"))


def _show_config(arguments: Namespace) -> int:
    from esper.runtime.tasks import tasks_for  # task plug-ins may import torch

    layers = layers_from(arguments)
    job, _ = merge_job(*layers, tasks=tasks_for(layers))
    # Configurations are pasted into reports and chats.
    token = None if job.run.serve_token is None else "(hidden)"
    run = msgspec.structs.replace(job.run, serve_token=token)
    print_json(msgspec.structs.replace(job, run=run))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(end_process(main()))
