"""`esper-train` as its user calls it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from esper import __version__
from esper.leyline.tasks import PRESETS, TASKS
from esper.scripts.train import main
from esper.simic.training import vectorized


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, object]]:
    assert main(["config", "show", *arguments]) == 0
    result = json.loads(capsys.readouterr().out)
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize(("command", "names"), [("tasks", TASKS), ("presets", PRESETS)])
def test_tables_are_listed_name_first(
    capsys: pytest.CaptureFixture[str], command: str, names: dict[str, object]
) -> None:
    assert main([command]) == 0
    lines = capsys.readouterr().out.splitlines()
    # The contexts of a task are indented below it.
    listed = [line.split()[0] for line in lines if not line.startswith(" ")]
    # Tasks that were registered in this process follow those that ship.
    assert listed[: len(names)] == list(names)


def test_flags_files_and_settings_are_merged_in_that_order(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "job.toml"
    path.write_text("[training]\nn_envs = 2\nmax_epochs = 9\nlr = 0.5\n[run]\nlanes = 3\n")

    job = shown(
        capsys, "--config", str(path), "--envs", "5", "--set", "training.max_epochs=11",
        "--set", "training.reward_mode=sparse",
    )  # fmt: skip

    assert job["training"]["n_envs"] == 5
    assert job["training"]["max_epochs"] == 11
    assert job["training"]["lr"] == 0.5
    assert job["training"]["reward_mode"] == "sparse"
    assert job["run"]["lanes"] == 3


def test_a_shown_configuration_can_be_used_as_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = shown(capsys, "--preset", "tinystories", "--seed", "7")
    path = tmp_path / "job.json"
    path.write_text(json.dumps(first))
    assert shown(capsys, "--config", str(path)) == first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "digts"], "unknown task 'digts'; did you mean 'digits'?"),
        (["--set", "training.lrr=1"], "did you mean 'training.lr'?"),
        (["--set", "lr"], "--set lr: expected KEY=VALUE"),
        (["--set", "=1"], "--set =1: expected KEY=VALUE"),
        (["--slots", "late"], "slot id 'late'"),
        (["--envs", "0"], "--envs: training.n_envs = 0: must be at least 1"),
        (["--lr", "nan"], "--lr: training.lr = nan: must be a finite number"),
        (["--set", "training.gamma=2"], "training.gamma = 2: must be above 0 and at most 1"),
        (["--torch-profiler-wait", "-1"], "torch_wait = -1: must be at least 0"),
        (["--torch-profiler-warmup", "0"], "torch_warmup = 0: must be at least 1"),
        (["--torch-profiler-active", "0"], "torch_active = 0: must be at least 1"),
        (["--torch-profiler-repeat", "-2"], "torch_repeat = -2: must be at least 0"),
        (
            ["--torch-profiler", "--rounds", "1", "--episode-length", "2"],
            "leaves nothing of the run's 2 steps to trace",
        ),
        (["--config", "nowhere.toml"], "nowhere.toml: cannot read the configuration: No such"),
    ],
)
def test_bad_input_ends_with_one_sentence_and_code_two(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["config", "show", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("esper-train: ")


def test_a_file_that_is_no_text_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert main(["config", "show", "--config", str(path)]) == 2
    assert "not a text file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("n_envs = 0", "training.n_envs = 0: must be at least 1"),
        ("lr = -inf", "training.lr = -inf: must be a finite number"),
        ("reward.drip_fraction = 2", "drip_fraction = 2: must be at least 0 and at most 1"),
    ],
)
def test_a_number_out_of_range_names_the_file_that_sets_it(
    setting: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(f"[training]\n{setting}\n")
    assert main(["config", "show", "--config", str(path), "--rounds", "3"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"esper-train: {path}: training.")
    assert message in error


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"esper-train {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["config"], ["no-such-command"], ["--no-such-flag"]])
def test_unusable_command_lines_end_with_code_two(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert main(arguments) == 2
    assert "usage: esper-train" in capsys.readouterr().err


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace the entry point and keep the arguments that it is called with."""
    calls: list[dict[str, Any]] = []

    def entry_point(**arguments: Any) -> tuple[None, list[object]]:
        calls.append(arguments)
        return None, []

    monkeypatch.setattr("esper.simic.training.vectorized.train_ppo_vectorized", entry_point)
    return calls


def test_training_a_policy_calls_the_entry_point_with_what_was_given_and_nothing_else(
    calls: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "job.toml"
    path.write_text("[training]\nn_envs = 2\nlr = 0.5\n[run]\nlanes = 3\n")

    code = main(
        ["ppo", "--config", str(path), "--envs", "5", "--rounds", "1", "--slots", "r0c1",
         "--set", "training.reward.rent_weight=0.3", "--telemetry-level", "off", "--quiet"]
    )  # fmt: skip

    assert code == 0
    assert calls == [
        {
            "n_envs": 5,
            "lr": 0.5,
            "lanes": 3,
            "n_episodes": 1,
            "slots": ["r0c1"],
            "reward": {"rent_weight": 0.3},
            "telemetry": {"level": "off"},
            "quiet": True,
            "watch": sys.stdout,
        }
    ]


def test_console_dashboard_and_json_are_the_entry_points_too(
    calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ppo", "--serve", "--serve-token", "secret", "--resume", "latest"]) == 0
    (arguments,) = calls
    assert arguments["watch"] is sys.stdout
    assert arguments["serve"] == "127.0.0.1:8765"
    assert arguments["serve_token"] == "secret"
    assert arguments["resume_path"] == "latest"


def test_json_leaves_stdout_to_the_summary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    seen: list[object] = []
    original = vectorized.train_ppo_vectorized

    def noted(**arguments: Any) -> Any:
        seen.append(arguments["watch"])
        return original(**arguments)

    monkeypatch.setattr(vectorized, "train_ppo_vectorized", noted)
    flags = "--rounds 1 --envs 1 --episode-length 1 --json --telemetry-dir"
    assert main(["ppo", *flags.split(), str(tmp_path)]) == 0
    assert seen == [sys.stderr]
    (run_dir,) = tmp_path.iterdir()
    assert json.loads(capsys.readouterr().out)["run_dir"] == str(run_dir)


def test_a_mistake_names_the_flag_it_was_made_in_before_the_entry_point_is_called(
    calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ppo", "--set", "training.lrr=1"]) == 2
    assert "--set training.lrr=1" in capsys.readouterr().err
    assert calls == []


@pytest.mark.parametrize("command", ["heuristic", "random", "periodic", "wait"])
def test_other_controllers_do_not_call_the_policys_entry_point(
    command: str, calls: list[dict[str, Any]], tmp_path: Path
) -> None:
    flags = "--rounds 1 --envs 1 --episode-length 1 --quiet --telemetry-dir"
    assert main([command, *flags.split(), str(tmp_path)]) == 0
    assert calls == []
