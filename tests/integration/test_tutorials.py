"""The tutorials, followed to the letter: their files written, their commands and programs run."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.builders.commands import run_esper

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`(\w+\.py)`")
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}


def steps_of(page: str) -> Iterator[tuple[str, str]]:
    """Yield what a page has its reader do: a file's name and text, or `sh` and commands.

    A Python block is the file that the text before it names last.
    """
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    end = 0
    for block in BLOCK.finditer(text):
        language, code = block[1], block[2]
        names = FILE.findall(text[end : block.start()])
        end = block.end()
        if language == "sh":
            yield "sh", code
        elif names:
            yield names[-1], code


def follow(page: str, directory: Path) -> str:
    """Do what a page says in an empty directory; return what its commands printed."""
    printed = []
    for name, text in steps_of(page):
        if name != "sh":
            (directory / name).write_text(text, encoding="utf-8")
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=directory,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        printed.append(done.stdout)
    return "\n".join(printed)


def test_first_run(tmp_path: Path) -> None:
    printed = follow("tutorial.md", tmp_path)
    assert "engine: " in printed
    assert re.search(r"^accuracy on the test split: \d+\.\d %$", printed, re.MULTILINE)
    assert (tmp_path / "report.html").is_file()


def test_grown_network_is_used_and_tuned(tmp_path: Path) -> None:
    printed = follow("using_grown.md", tmp_path)
    before, after = (float(text) for text in re.findall(r"([\d.]+) % right", printed))
    assert after > before
    assert (tmp_path / "tuned.pt").is_file()


def test_cluster_on_one_machine(tmp_path: Path) -> None:
    printed = follow("cluster.md", tmp_path)
    assert "engine: ray, 2 workers (as requested)" in printed
    assert "same: every event that is compared is equal" in printed


def test_own_task(tmp_path: Path) -> None:
    printed = follow("your_own_task.md", tmp_path)
    assert "stripes.py:TASK" in printed
    assert re.search(r"rounds +3 of 3", printed)


def esper(program: str, arguments: str, directory: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command of Esper in a directory."""
    return run_esper(program, *arguments.split(), cwd=directory)


def test_checkpoint_executes_no_code_that_its_user_did_not_name(tmp_path: Path) -> None:
    stripes = tmp_path / "stripes.py"
    stripes.write_text(dict(steps_of("your_own_task.md"))["stripes.py"], encoding="utf-8")
    train = "ppo --task stripes.py:TASK --rounds 1 --envs 1 --episode-length 2 --quiet"
    assert esper("train", train, tmp_path).returncode == 0
    stripes.write_text("raise SystemExit('executed')", encoding="utf-8")
    for arguments in ("ppo --resume latest", "eval --checkpoint latest"):
        done = esper("train", arguments, tmp_path)
        assert done.returncode == 2
        assert "load it with --task stripes.py:TASK" in done.stderr


def test_own_task_gives_the_same_events_in_other_processes(tmp_path: Path) -> None:
    text = dict(steps_of("your_own_task.md"))["stripes.py"]
    (tmp_path / "stripes.py").write_text(text, encoding="utf-8")
    train = "ppo --task stripes.py:TASK --rounds 1 --envs 2 --episode-length 3 --quiet"
    for engine in ("threads", "processes"):
        arguments = f"{train} --engine {engine} --telemetry-dir {engine}"
        done = esper("train", arguments, tmp_path)
        assert done.returncode == 0, done.stderr
    done = esper("telemetry", "diff threads/latest processes/latest", tmp_path)
    assert done.stdout.startswith("same: every event that is compared is equal"), done.stdout
