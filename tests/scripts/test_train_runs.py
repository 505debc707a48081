"""`esper-train` as its user runs it: training, resuming, evaluating, refusing."""

import json
import socket
from pathlib import Path

import pytest

import esper
from esper.scripts.train import main

TINY = ["--rounds", "1", "--envs", "2", "--episode-length", "3"]


def trained(tmp_path: Path, *arguments: str) -> Path:
    assert main(["ppo", *TINY, "--quiet", "--telemetry-dir", str(tmp_path), *arguments]) == 0
    (run_dir,) = tmp_path.iterdir()
    return run_dir


def test_a_run_in_a_pipe_writes_whole_lines_and_a_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wait", *TINY, "--telemetry-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "round 1/1" in out
    assert "completed" in out
    assert "\x1b" not in out


def test_json_summary_is_all_that_stdout_gets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["heuristic", *TINY, "--json", "--telemetry-dir", str(tmp_path)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [row["round"] for row in summary["rounds"]] == [0]
    assert Path(summary["run_dir"]).is_dir()


def test_resume_latest_goes_on_with_the_stored_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = trained(tmp_path)
    more = ["ppo", "--resume", "latest", "--rounds", "2", "--json", "--telemetry-dir"]
    assert main([*more, str(tmp_path)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [row["round"] for row in summary["rounds"]] == [0, 1]
    assert summary["run_dir"] == str(run_dir)


def test_evaluation_reports_every_env_and_saves_a_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = trained(tmp_path / "runs")
    checkpoint = str(run_dir / "checkpoints" / "round-000001.pt")
    model = tmp_path / "grown.pt"
    arguments = ["eval", "--checkpoint", checkpoint, "--seeds", "5", "6"]
    assert main([*arguments, "--save-model", str(model), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(score["seed"], score["env_id"]) for score in report["envs"]] == [
        (5, 0),
        (5, 1),
        (6, 0),
        (6, 1),
    ]
    assert esper.load_grown(model) is not None

    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [
        *("seed", "env", "test", "accuracy", "params", "added", "kept", "pruned", "reward")
    ]
    assert lines[-1].split()[0] == "mean"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ppo", "--device", "cuda:77"], "cuda:77"),
        (["ppo", "--device", "tpu"], "tpu"),
        (["ppo", "--task", "digts"], "did you mean 'digits'"),
        (["ppo", "--resume", "latest"], "holds no checkpoint"),
        (["ppo", "--resume", "nowhere.pt"], "nowhere.pt"),
        (["ppo", "--data", "real", "--task", "cifar_baseline", "--data-dir", "."], "cifar"),
        (["ppo", "--serve", "0.0.0.0:0"], "--serve-token"),
        (["eval", "--checkpoint", "nowhere.pt"], "nowhere.pt"),
    ],
)
def test_bad_input_is_one_sentence_with_code_two_and_creates_nothing(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--telemetry-dir", str(tmp_path / "runs")] if arguments[0] == "ppo" else []
    assert main([*arguments, *where]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_port_in_use_is_told_before_anything_is_created(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["ppo", *TINY, "--serve", address, "--telemetry-dir", str(tmp_path / "runs")]
        assert main(arguments) == 2
    assert f"cannot serve on {address}" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_an_unwritable_telemetry_directory_is_told_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(["wait", *TINY, "--telemetry-dir", str(tmp_path / "file")]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "file") in error
    assert error.count("\n") == 1


def test_a_checkpoint_of_another_task_may_not_be_resumed_as_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = trained(tmp_path)
    checkpoint = str(run_dir / "checkpoints" / "round-000001.pt")
    before = {path: path.stat().st_size for path in run_dir.rglob("*")}
    assert main(["ppo", "--resume", checkpoint, "--task", "bytes_lm"]) == 2
    assert "'digits'" in capsys.readouterr().err
    assert {path: path.stat().st_size for path in run_dir.rglob("*")} == before
