"""`esper-train` as its user runs it: training, resuming, evaluating, refusing."""

import json
import math
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from tests.builders.tiny_tasks import TINY as TINY_TASK
from tests.builders.tiny_tasks import TINY_LM, register_tiny_tasks
from tests.runtime.data_files import fashion_files, write_files
from tests.scripts.test_json_output import is_readable
from tests.simic.training.runs import lines_of, weights_digest

import esper
from esper.scripts.train import main
from esper.simic.training.checkpoints.resuming import resolve_job
from esper.tolaria.stopping import StopFlag

TINY = ["--rounds", "1", "--envs", "2", "--episode-length", "3"]
BUILTIN_EVAL = ["eval", "--checkpoint", "builtin:digits_growth"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run without a console."""
    return trained(tmp_path_factory.mktemp("finished"))


def contents_of(run_dir: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}


def checkpoint_in(run_dir: Path) -> Path:
    return run_dir / "checkpoints" / "round-000001.pt"


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


def test_interrupted_run_ends_with_the_command_that_resumes_it_from_its_checkpoint(
    tmp_path: Path,
) -> None:
    flags = ["--envs", "1", "--episode-length", "2", "--rounds", "900", "--engine", "threads"]
    command = [sys.executable, "-m", "esper.scripts.train", "wait", *flags]
    with subprocess.Popen(
        [*command, "--telemetry-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        next(line for line in process.stdout if "round 1/900" in line)
        process.send_signal(signal.SIGINT)
        last = process.stdout.read().splitlines()[-1]
        errors = process.stderr.read()
    assert (process.returncode, errors) == (130, "")
    [run_dir] = tmp_path.iterdir()
    assert last == f"esper-train wait --resume {run_dir}"
    words = shlex.split(last)[1:]
    assert resolve_job([("command", {"run": {"resume_path": words[-1]}})])[1] is not None


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


def test_finished_run_that_is_resumed_says_so(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / finished.name
    shutil.copytree(finished, run_dir)
    assert main(["ppo", "--resume", str(run_dir)]) == 0
    assert "the run has finished its 1 rounds; --rounds 2 or more" in capsys.readouterr().out


def test_evaluation_reports_every_env_and_saves_a_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = trained(tmp_path / "runs")
    checkpoint = str(run_dir / "checkpoints" / "round-000001.pt")
    model = tmp_path / "grown.pt"
    arguments = ["eval", "--checkpoint", checkpoint, "--seeds", "5-6"]
    assert main([*arguments, "--save-model", str(model), "--json"]) == 0
    text, progress = capsys.readouterr()
    assert is_readable(text)
    report = json.loads(text)
    assert re.fullmatch(r"1 of 2  seed 5  [\d.]+ %\n2 of 2  seed 6  [\d.]+ %\n", progress)
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
        *("seed", "env", "test", "accuracy", "params", "added", "kept", "pruned"),
        *("task", "return", "reward"),
    ]
    name, *_, task_return, total = lines[-1].split()
    assert name == "mean"
    assert float(task_return) == pytest.approx(report["mean"]["task_return"], abs=0.005)
    assert float(total) == pytest.approx(report["mean"]["total_reward"], abs=0.005)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ppo", "--device", "cuda:77"], "cuda:77"),
        (["ppo", "--device", "tpu"], "tpu"),
        (["ppo", "--task", "digts"], "did you mean 'digits'"),
        (["ppo", "--preset", "cifar_baselin"], "did you mean 'cifar_baseline'"),
        (["ppo", "--slots", "r0c9"], "task digits has no such slot; it has r0c0"),
        (["ppo", "--slots", "late"], "slot id 'late'"),
        (["ppo", "--set", "training.reward_mode=dense"], "must be one of shaped"),
        (["ppo", "--reward-family", "loss", "--reward-mode", "sparse"], "with the loss family"),
        (["ppo", "--envs", "0"], "n_envs = 0: must be at least 1"),
        (["ppo", "--rounds", "0"], "n_episodes = 0: must be at least 1"),
        (["ppo", "--lanes", "-1"], "run.lanes = -1: must be at least 1"),
        (["ppo", "--envs", "1", "--devices", "cpu", "cpu"], "must name 1 to n_envs devices"),
        (["ppo", "--torch-profiler", "--torch-profiler-active", "0"], "torch_active = 0"),
        (["ppo", "--resume", "latest"], "contains no checkpoint"),
        (["ppo", "--resume", "nowhere.pt"], "nowhere.pt"),
        (["ppo", "--data", "real", "--task", "cifar_baseline", "--data-dir", "."], "cifar"),
        (["ppo", "--serve", "0.0.0.0:0"], "--serve-token"),
        (["eval", "--checkpoint", "nowhere.pt"], "nowhere.pt"),
        ([*BUILTIN_EVAL, "--lanes", "0"], "run.lanes = 0: must be at least 1"),
        ([*BUILTIN_EVAL, "--lane-deadline", "0"], "run.lane_deadline_s = 0.0: must be above 0"),
        ([*BUILTIN_EVAL, "--lane-deadline", "nan"], "lane_deadline_s = nan: must be a finite"),
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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task", "bytes_lm"], "training.task was 'digits' and is now 'bytes_lm'"),
        (["--slots", "r0c0"], "training.slots was"),
        (["--lstm-hidden-dim", "16"], "training.lstm_hidden_dim was"),
        (["--envs", "3"], "training.n_envs was 2 and is now 3"),
        (["--seed", "7"], "training.seed was 42 and is now 7"),
        (["--rounds", "0"], "n_episodes = 0: must be at least 1"),
    ],
)
def test_a_resume_with_what_may_not_differ_is_refused_and_loses_nothing(
    flags: list[str], message: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents_of(finished)
    assert main(["ppo", "--resume", str(checkpoint_in(finished)), *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert contents_of(finished) == before


def test_a_resume_by_another_controller_is_refused_and_loses_nothing(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents_of(finished)
    assert main(["wait", "--resume", str(checkpoint_in(finished))]) == 2
    assert "'ppo'" in capsys.readouterr().err
    assert contents_of(finished) == before


@pytest.mark.parametrize("share", [0.0, 0.5, None])
@pytest.mark.parametrize("command", ["ppo --resume", "eval --checkpoint"])
def test_a_checkpoint_that_is_cut_or_not_ours_is_refused_and_creates_nothing(
    command: str,
    share: float | None,
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole, path = checkpoint_in(finished).read_bytes(), tmp_path / "damaged.pt"
    path.write_bytes(b"not ours" if share is None else whole[: int(share * len(whole))])
    assert main([*command.split(), str(path)]) == 2
    error = capsys.readouterr().err
    assert "damaged.pt: not a checkpoint of Esper, or damaged" in error
    assert error.count("\n") == 1
    assert [item.name for item in tmp_path.iterdir()] == ["damaged.pt"]


def test_a_data_file_that_is_damaged_is_named_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_files(tmp_path / "data", fashion_files())
    (tmp_path / "data" / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03 cut off")
    where = ["--data-dir", str(tmp_path / "data"), "--telemetry-dir", str(tmp_path / "runs")]
    assert main(["ppo", "--task", "fashion_mnist", "--data", "real", *where]) == 2
    error = capsys.readouterr().err
    assert "train-images-idx3-ubyte" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_run_that_is_served_answers_throughout_and_equals_one_that_is_not(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    over, is_up, statuses = threading.Event(), threading.Event(), []
    client = threading.Thread(
        target=ask_until, args=(f"http://{address}/healthz", over, is_up, statuses)
    )
    check = StopFlag.checkpoint

    def held(flag: StopFlag) -> None:
        # Holds the lanes, not the event loop: the server's process takes a moment to start.
        if threading.current_thread() is not threading.main_thread():
            assert is_up.wait(60), "the server does not answer"
        check(flag)

    monkeypatch.setattr(StopFlag, "checkpoint", held)
    client.start()
    try:
        served = trained(tmp_path, "--serve", address, "--engine", "threads")
    finally:
        over.set()
        client.join(60)

    assert len(statuses) > 3
    assert set(statuses) == {200}
    assert lines_of(served) == lines_of(finished)
    digests = [weights_digest(checkpoint_in(run_dir)) for run_dir in (served, finished)]
    assert digests[0] == digests[1]


def ask_until(url: str, over: threading.Event, is_up: threading.Event, statuses: list[int]) -> None:
    """Ask for a page again and again; before and after the run there is no server."""
    while not over.wait(0.02):
        if len(statuses) > 3:
            is_up.set()
        try:
            statuses.append(httpx.get(url, timeout=30).status_code)
        except httpx.TimeoutException:
            statuses.append(0)
        except httpx.TransportError:
            continue


def test_a_language_model_is_trained_on_falling_losses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--task", "bytes_lm", "--reward-family", "loss", "--envs", "1", "--rounds", "1"]
    flags += ["--episode-length", "2", "--lstm-hidden-dim", "16", "--json"]
    assert main(["ppo", *flags, "--telemetry-dir", str(tmp_path)]) == 0
    summary = json.loads(capsys.readouterr().out)
    (run_dir,) = tmp_path.iterdir()
    epochs = [
        event["data"]
        for event in map(json.loads, (run_dir / "events.jsonl").read_text().splitlines())
        if event["event_type"] == "EPOCH_COMPLETED"
    ]
    assert epochs[1]["val_loss"] < epochs[0]["val_loss"] < math.log(256)
    assert summary["rounds"][0]["mean_reward"] > 0


@pytest.mark.parametrize("command", ["heuristic", "random", "periodic"])
def test_any_controller_trains_a_small_task_of_either_kind(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register_tiny_tasks()
    for task in (TINY_TASK, TINY_LM):
        flags = ["--task", task, "--rounds", "1", "--json", "--telemetry-dir", str(tmp_path / task)]
        assert main([command, *flags]) == 0
        assert len(json.loads(capsys.readouterr().out)["rounds"]) == 1


def test_traces_are_listed_in_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register_tiny_tasks()
    flags = ["--task", TINY_TASK, "--rounds", "1", "--torch-profiler"]
    assert main(["wait", *flags, "--telemetry-dir", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    (run_dir,) = tmp_path.iterdir()
    assert f"traces     {run_dir / 'profiler_traces'}" in captured.out
    assert captured.err == ""
    assert list((run_dir / "profiler_traces").glob("*.json"))


def test_a_port_in_use_is_reported_before_anything_is_created(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        arguments = ["ppo", *TINY, "--serve", address, "--telemetry-dir", str(tmp_path / "runs")]
        assert main(arguments) == 2
    assert f"cannot serve on {address}" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_an_unwritable_telemetry_directory_is_reported_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(["wait", *TINY, "--telemetry-dir", str(tmp_path / "file")]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "file") in error
    assert error.count("\n") == 1
