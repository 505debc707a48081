"""The page about blueprints of one's own, followed by the letter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.builders.commands import run_esper
from tests.builders.fingerprints import fingerprint

from esper.leyline.telemetry import decode_event
from esper.simic.training.checkpoints.checkpoint_store import read_checkpoint

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "your_own_blueprint.md"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the documented file."""
    found = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    path = tmp_path_factory.mktemp("own")
    (path / "my_blueprint.py").write_text(found[1], encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def installed(directory: Path) -> Path:
    """Return a directory of packages in which the documented blueprint is installed."""
    metadata = directory / "my_blueprint-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-blueprint\nVersion: 1\n")
    text = DOCUMENT.read_text(encoding="utf-8")
    found = re.search(r'```toml\n\[project\.entry-points\."(.*?)"\]\n(.*?)```', text, re.DOTALL)
    assert found is not None
    entry_point = found[2].replace('"', "")
    (metadata / "entry_points.txt").write_text(f"[{found[1]}]\n{entry_point}")
    return directory


def run_script(name: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, name],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def train(*arguments: str, cwd: Path, path: Path | None = None) -> str:
    """Run esper-train; return what it wrote on standard error, "" if it succeeded."""
    done = run_esper("train", *arguments, cwd=cwd, path=path)
    assert (done.returncode == 0) is (not done.stderr), done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def documented_run(directory: Path) -> Path:
    """Return the directory of the documented run."""
    done = run_script("my_blueprint.py", directory)
    assert done.returncode == 0, done.stderr
    (run_dir,) = (directory / "runs").iterdir()
    return run_dir


def test_policy_of_the_documented_run_has_one_choice_more(documented_run: Path) -> None:
    agent = read_checkpoint(documented_run / "checkpoints" / "best.pt")["agent"]
    (last,) = (
        tensor.shape
        for name, tensor in agent["network"].items()
        if name == "heads.blueprint.4.weight"
    )
    assert agent["config"]["policy"]["added_blueprints"] == ("dilated",)
    assert last[0] == 14
    assert agent["network"]["blueprints.weight"].shape[0] == 15


def test_checkpoint_of_another_registry_is_refused_by_name(
    documented_run: Path, installed: Path
) -> None:
    resume = ("ppo", "--resume", str(documented_run), "--rounds", "2", "--quiet")

    unknown = train(*resume, cwd=documented_run)
    other = train(*resume, "--blueprints", "widen", cwd=documented_run, path=installed)

    assert "unknown cnn blueprint 'dilated'" in unknown
    assert "training.blueprints was ('dilated',) and is now ('widen',)" in other
    assert "Traceback" not in unknown + other


def germinated(run_dir: Path) -> set[str]:
    lines = (run_dir / "events.jsonl").read_bytes().splitlines()
    events = [decode_event(line) for line in lines if b'"SEED_GERMINATED"' in line]
    return {event.data.blueprint for event in events}


def test_seeds_of_the_blueprint_grow_in_worker_processes_as_on_threads(
    installed: Path, tmp_path: Path
) -> None:
    settings = (
        "--task",
        "digits",
        "--envs",
        "2",
        "--episode-length",
        "10",
        "--rounds",
        "2",
        "--seed",
        "1",
        "--batch-size",
        "250",
    )
    offered = ("--blueprints", "dilated", "grad_max", "widen")
    prints = []
    for engine in ("threads", "processes"):
        workers = ("--engine", engine, "--workers", "2", "--quiet", "--telemetry-dir", engine)
        assert train("random", *settings, *offered, *workers, cwd=tmp_path, path=installed) == ""
        (run_dir,) = (tmp_path / engine).iterdir()
        prints.append(fingerprint(run_dir))

    assert prints[0] == prints[1]
    assert {"dilated", "grad_max"} <= germinated(run_dir)  # chosen by this seed


def test_blueprint_of_a_script_is_refused_in_worker_processes_before_anything_is_created(
    directory: Path, tmp_path: Path
) -> None:
    text = (directory / "my_blueprint.py").read_text(encoding="utf-8")
    script = text.replace("n_envs=2", 'engine="processes", n_envs=2')
    (tmp_path / "my_script.py").write_text(script, encoding="utf-8")

    done = run_script("my_script.py", tmp_path)

    assert done.returncode != 0
    assert "blueprint 'dilated' was registered in this process only" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_blueprint_that_nobody_registered_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    message = train("wait", "--blueprints", "gradmax", "--quiet", cwd=tmp_path)

    assert "unknown cnn blueprint 'gradmax'; did you mean 'grad_max'" in message
    assert list(tmp_path.iterdir()) == []
