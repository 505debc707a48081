"""`esper-train compare` through its command line."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.builders.tiny_runs import tiny_run
from tests.builders.tiny_tasks import TINY, register_tiny_tasks
from tests.karn.runs import write_run
from tests.karn.story import Story
from tests.scripts.test_json_output import is_readable

from esper.leyline.comparison import ArmRun, ComparisonReport
from esper.leyline.errors import UsageError
from esper.leyline.stages import Stage
from esper.scripts.train import main
from esper.scripts.train_compare import seeds_from
from esper.simic.evaluation.recorded import last_recorded
from esper.simic.training.static_work import seeds_in


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    register_tiny_tasks()
    out = str(tmp_path / "runs")
    return ["compare", "--task", TINY, "--arms", "wait", "random", "--seeds", "3-4", "--out", out]


def test_report_is_printed_as_a_table_and_written_as_a_page(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"

    assert main([*arguments, "--html", str(page)]) == 0

    output = capsys.readouterr()
    assert "wait - random" in output.out
    assert "seed 3  wait" in output.err
    assert "only 2 random seeds: " in output.out
    assert output.out.endswith(f"\nwrote runs in {tmp_path / 'runs'}, {page}\n")
    for text in (output.out, page.read_text(encoding="utf-8")):
        assert "wait - random" in text
        assert "task return" in text


def test_json_has_stdout_to_itself(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--json"]) == 0

    text = capsys.readouterr().out
    assert is_readable(text)
    report = msgspec.json.decode(text, type=ComparisonReport)
    assert [arm.arm for arm in report.arms] == ["wait", "random"]
    assert report.seeds == (3, 4)
    assert all(arm.task_return is not None for arm in report.arms)


def test_report_can_be_kept_as_json_beside_the_tables(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"

    assert main([*arguments, "--json", str(path)]) == 0

    assert is_readable(path.read_text())
    report = msgspec.json.decode(path.read_bytes(), type=ComparisonReport)
    assert (report.seeds, report.learning) == ((3, 4), None)
    assert "wait - random" in capsys.readouterr().out


def test_how_policies_learned_is_part_of_every_form_of_the_report(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story = Story(num_rounds=4, num_envs=2, num_steps=4)
    run = write_run(tmp_path / "trained", story.lines())
    page, path = tmp_path / "report.html", tmp_path / "report.json"

    where = ["--html", str(page), "--json", str(path), "--training-runs", str(run)]
    assert main([*arguments, *where]) == 0

    report = msgspec.json.decode(path.read_bytes(), type=ComparisonReport)
    assert report.learning is not None
    assert [run.num_rounds for run in report.learning.runs] == [4]
    assert "ENTROPY_COLLAPSE_DETECTED" in capsys.readouterr().out
    assert "How the policies learned" in page.read_text(encoding="utf-8")


def test_training_run_that_cannot_be_read_is_reported_before_anything_is_run(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--training-runs", str(tmp_path / "none")]) == 2

    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert str(tmp_path / "none") in output
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def grown_run(tmp_path: Path) -> Path:
    """A run whose seeds reach the output."""
    quick = {"auto_forward": [1, 2, 3], "min_training_steps": 1}
    return tiny_run(
        tmp_path / "grown", command="periodic", n_episodes=1, max_epochs=8, lifecycle=quick
    ).run_dir


def test_static_arm_trains_the_networks_that_the_log_of_a_run_has_recorded(
    arguments: list[str], grown_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arm = f"static-final:{grown_run}"
    arguments[arguments.index("random")] = arm

    assert main([*arguments, "--quiet"]) == 0

    assert "static-final" in capsys.readouterr().out
    recorded = [seeds_in(manifest) for manifest in last_recorded(grown_run)]
    assert any(recorded)
    kept = list((tmp_path / "runs").glob("static-final-seed*.json"))
    assert len(kept) == 2
    for path in kept:
        run = msgspec.json.decode(path.read_bytes(), type=ArmRun)
        assert [seeds_in(env.topology) for env in run.envs] == [
            tuple(seed._replace(stage=Stage.FOSSILIZED) for seed in seeds) for seeds in recorded
        ]


@pytest.mark.parametrize(
    ("changes", "output"),
    [
        (["--envs", "9"], "choose fewer with --envs"),
        (["--slots", "r0c1"], "choose the same with --slots"),
        (["--task", "digits", "--envs", "1"], "compare on the task of the run"),
    ],
)
def test_recorded_networks_that_do_not_fit_are_refused(
    arguments: list[str],
    grown_run: Path,
    changes: list[str],
    output: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments[arguments.index("wait")] = f"static-final:{grown_run}"

    assert main([*arguments, *changes, "--quiet"]) == 2

    assert output in capsys.readouterr().err


def test_run_that_has_recorded_no_network_is_refused(
    arguments: list[str], grown_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = grown_run / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(line for line in lines if b"TOPOLOGY_MANIFEST_RECORDED" not in line))
    arguments[arguments.index("wait")] = f"static-final:{grown_run}"

    assert main([*arguments, "--quiet"]) == 2

    assert "has no TOPOLOGY_MANIFEST_RECORDED" in capsys.readouterr().err


@pytest.mark.parametrize("awaited", ["seed 3  wait", "seed 4"])
def test_signal_ends_a_comparison_with_the_way_on(tmp_path: Path, awaited: str) -> None:
    """The runs of the first seed are made by the command itself, those of others elsewhere."""
    command = [
        *(sys.executable, "-m", "esper.scripts.train", "compare", "--task", "digits"),
        *("--arms", "wait", "random", "--seeds", "3-9", "--envs", "2", "--episode-length", "6"),
        *("--batch-size", "250"),
        *("--out", str(tmp_path / "runs"), "--html", str(tmp_path / "report.html")),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        output: list[str] = []
        while not output or awaited not in output[-1]:
            output.append(next(process.stderr))
        # Other runs are under way, or about to begin.
        os.kill(process.pid, signal.SIGTERM)
        output += process.stderr
        process.wait(timeout=60)

    arms, runs, *made, last = output
    assert process.returncode == 130
    assert arms == "2 arms: wait (grows nothing), random (random legal actions)\n"
    assert runs == f"7 random seeds, 14 runs, saved in {tmp_path / 'runs'}\n"
    numbered = [f"{number:>2} of 14  seed " for number in range(1, len(made) + 1)]
    assert [line[: len(start)] for line, start in zip(made, numbered, strict=True)] == numbered
    assert f"{len(made)} of 14 runs are saved in" in last
    assert last.rstrip().endswith("run the same command again to continue")
    kept = list((tmp_path / "runs").iterdir())
    assert len(kept) == len(made) < 14
    assert all(msgspec.json.decode(path.read_bytes(), type=ArmRun).envs for path in kept)
    assert not (tmp_path / "report.html").exists()


def test_signal_ends_an_evaluation_with_the_way_on(tmp_path: Path) -> None:
    saved = tmp_path / "grown.pt"
    command = [
        *(sys.executable, "-c", _EVALUATION, "eval", "--checkpoint", "builtin:digits_growth"),
        *("--save-model", str(saved)),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "growing\n"
        os.kill(process.pid, signal.SIGINT)
        out, output = process.communicate(timeout=60)

    assert (process.returncode, out) == (130, "")
    assert output.count("\n") == 1
    assert "run the same command again to restart it" in output
    assert not saved.exists()


_EVALUATION = """
import sys
from esper.scripts.train import main
from esper.simic.evaluation import evaluation_round

def signalling(*arguments, build=evaluation_round.build_engine):
    print("growing", flush=True)
    return build(*arguments)

evaluation_round.build_engine = signalling
sys.exit(main(sys.argv[1:]))
"""
"""`esper-train` that says when its envs begin to grow."""


def test_quiet_comparison_prints_only_its_result(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_page_that_cannot_be_written_is_one_sentence(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--html", str(tmp_path / "none" / "report.html")]) == 2
    assert "cannot write the report" in capsys.readouterr().err


def test_seeds_are_numbers_and_ranges() -> None:
    assert seeds_from(["7", "10-12"]) == [7, 10, 11, 12]


@pytest.mark.parametrize("text", ["", "x", "1-", "-1", "1-x", "1.5"])
def test_seeds_that_are_neither_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected a seed or a range"):
        seeds_from([text])
