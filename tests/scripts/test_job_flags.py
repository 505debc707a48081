"""Flags of a job: each of them sets its key, and nothing is a flag that no test knows."""

import json
from argparse import ArgumentParser
from functools import reduce
from typing import Any, NamedTuple

import pytest

from esper.leyline.config import DEFAULT_SERVER_ADDRESS
from esper.scripts.job_flags import add_job_flags
from esper.scripts.train import build_parser, main


class Case(NamedTuple):
    """What follows a flag, and where it ends up."""

    words: str
    key: str
    value: object


CASES = {
    "--task": Case("cifar_scale", "training.task", "cifar_scale"),
    "--preset": Case("cifar_baseline", "training.preset", "cifar_baseline"),
    "--rounds": Case("7", "training.n_episodes", 7),
    "--envs": Case("3", "training.n_envs", 3),
    "--episode-length": Case("9", "training.max_epochs", 9),
    "--slots": Case("r0c0 r0c1", "training.slots", ["r0c0", "r0c1"]),
    "--blueprints": Case("widen grad_max", "training.blueprints", ["widen", "grad_max"]),
    "--max-seeds": Case("2", "training.max_seeds", 2),
    "--seed": Case("5", "training.seed", 5),
    "--group": Case("treated", "training.group_id", "treated"),
    "--name": Case("mine", "run.name", "mine"),
    "--tag": Case("a=1 --tag b=x=y", "run.tags", {"a": "1", "b": "x=y"}),
    "--data": Case("synthetic", "training.data", "synthetic"),
    "--data-dir": Case("here", "run.data_dir", "here"),
    "--batch-size": Case("17", "training.batch_size_per_env", 17),
    "--gpu-preload": Case("", "training.gpu_preload", True),
    "--gpu-preload-augment": Case("", "training.gpu_preload_augment", True),
    "--device": Case("cpu", "training.device", "cpu"),
    "--devices": Case("cpu cpu", "training.devices", ["cpu", "cpu"]),
    "--blind": Case("", "training.blind", True),
    "--init-from": Case("policy.pt", "training.init_from", "policy.pt"),
    "--amp": Case("", "training.amp", True),
    "--amp-dtype": Case("bfloat16", "training.amp_dtype", "bfloat16"),
    "--tf32": Case("", "training.tf32", True),
    "--compile-mode": Case("off", "training.compile_mode", "off"),
    "--engine": Case("processes", "run.engine", "processes"),
    "--workers": Case("2", "run.workers", 2),
    "--lanes": Case("3", "run.lanes", 3),
    "--lane-deadline": Case("7.5", "run.lane_deadline_s", 7.5),
    "--lr": Case("0.5", "training.lr", 0.5),
    "--ppo-updates-per-batch": Case("3", "training.ppo_updates_per_batch", 3),
    "--ppo-epochs": Case("2", "training.recurrent_n_epochs", 2),
    "--lstm-hidden-dim": Case("33", "training.lstm_hidden_dim", 33),
    "--clip-ratio": Case("0.35", "training.clip_ratio", 0.35),
    "--entropy-coef": Case("0.07", "training.entropy_coef", 0.07),
    "--entropy-anneal-episodes": Case("11", "training.entropy_anneal_episodes", 11),
    "--value-warmup-batches": Case("4", "training.value_warmup_batches", 4),
    "--reward-family": Case("loss --reward-mode shaped", "training.reward_family", "loss"),
    "--reward-mode": Case("sparse", "training.reward_mode", "sparse"),
    "--telemetry-dir": Case("there", "run.telemetry_dir", "there"),
    "--telemetry-level": Case("debug", "training.telemetry.level", "debug"),
    "--telemetry-lifecycle-only": Case("", "training.telemetry.lifecycle_only", True),
    "--telemetry-fsync": Case("never", "run.fsync", "never"),
    "--gradient-telemetry-stride": Case("6", "training.telemetry.gradient_stride", 6),
    "--checkpoint-every": Case("5", "run.checkpoint_every", 5),
    "--save": Case("copy.pt", "run.save_path", "copy.pt"),
    "--resume": Case("old.pt", "run.resume_path", "old.pt"),
    "--serve": Case("", "run.serve", DEFAULT_SERVER_ADDRESS),
    "--serve-token": Case("word", "run.serve_token", "(hidden)"),
    "--serve-origins": Case("http://a:1 http://b:2", "run.serve_origins", ["http://a:1", "http://b:2"]),
    "--sink": Case("wandb:a --sink jsonl:b", "run.sinks", ["wandb:a", "jsonl:b"]),
    "--quiet": Case("", "run.quiet", True),
    "--no-phase-profiler": Case("", "run.profiler.phases", False),
    "--torch-profiler": Case("", "run.profiler.torch", True),
    "--torch-profiler-dir": Case("away", "run.profiler.torch_dir", "away"),
    "--torch-profiler-wait": Case("2", "run.profiler.torch_wait", 2),
    "--torch-profiler-warmup": Case("3", "run.profiler.torch_warmup", 3),
    "--torch-profiler-active": Case("4", "run.profiler.torch_active", 4),
    "--torch-profiler-repeat": Case("0", "run.profiler.torch_repeat", 0),
    "--torch-profiler-record-shapes": Case("", "run.profiler.torch_record_shapes", True),
    "--torch-profiler-profile-memory": Case("", "run.profiler.torch_profile_memory", True),
    "--torch-profiler-with-stack": Case("", "run.profiler.torch_with_stack", True),
    "--torch-profiler-summary": Case("", "run.profiler.torch_summary", True),
}  # fmt: skip
"""A value that is no default, for every flag."""

NOT_KEYS = {"--help", "--config", "--set"}
"""What is no key of a job; tests of the command cover them."""


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["config", "show", *arguments]) == 0
    job: dict[str, Any] = json.loads(capsys.readouterr().out)
    return job


def value_at(job: dict[str, Any], key: str) -> object:
    return reduce(dict.__getitem__, key.split("."), job)


def test_every_flag_of_the_parser_has_a_case() -> None:
    parser = ArgumentParser()
    add_job_flags(parser)
    for action in parser._actions:
        names = set(action.option_strings) & (set(CASES) | NOT_KEYS)
        assert names, f"{action.option_strings} has no case"


@pytest.mark.parametrize("flag", CASES)
def test_flag_reaches_the_configuration(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[flag]
    before = value_at(shown(capsys), case.key)
    after = value_at(shown(capsys, flag, *case.words.split()), case.key)
    assert after == case.value
    assert after != before


def test_port_alone_is_served_on_loopback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--serve", "9321"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["serve"] == "127.0.0.1:9321"
    assert main(["config", "show", "--serve", "99999"]) == 2


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--epochs", "--rounds or --episode-length"),
        ("--learning-rate", "--lr"),
        ("--rouds", "--rounds"),
    ],
)
def test_unknown_flag_comes_with_the_one_that_was_meant(
    flag: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ppo", flag, "5"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        f"esper-train ppo: error: unrecognized arguments: {flag} 5; did you mean {meant}?"
    )


@pytest.mark.parametrize(
    ("command", "listed", "left_out"),
    [
        ("ppo", "--clip-ratio", "--arms"),
        ("wait", "--rounds", "--clip-ratio"),
        ("compare", "--engine", "--resume"),
        ("compare", "--seed", "--rounds"),
        ("config show", "--clip-ratio", "--arms"),
    ],
)
def test_help_lists_what_matters_to_the_command_and_every_flag_is_accepted(
    command: str, listed: str, left_out: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = build_parser()
    with pytest.raises(SystemExit):
        parser.parse_args([*command.split(), "--help"])
    text = capsys.readouterr().out
    assert f"  {listed} " in text
    assert f"  {left_out} " not in text
    parsed = parser.parse_args([*command.split(), "--lr", "0.5", "--resume", "latest"])
    assert (parsed.lr, parsed.resume) == (0.5, "latest")
