"""The page about networks of one's own, followed by the letter."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.builders.commands import run_esper
from tests.builders.fingerprints import fingerprint

import esper
from esper.nissa.analysis.validation import validate_run
from esper.simic.training.checkpoints.grown import read_grown_header

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "your_own_network.md"
TORCH = ("import torch", "from torch ")
"""How the imports of a network begin."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the documented file."""
    found = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    path = tmp_path_factory.mktemp("own")
    (path / "my_network.py").write_text(found[1], encoding="utf-8")
    return path


def run_script(directory: Path, name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, name],
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_page_takes_a_plain_network_to_a_run_in_twenty_lines(directory: Path) -> None:
    tree = ast.parse((directory / "my_network.py").read_text(encoding="utf-8"))
    network = [part for part in tree.body if isinstance(part, ast.ClassDef)]
    assert "esper" not in "".join(map(ast.unparse, network))

    rest = [part for part in tree.body if part not in network]
    added = [part for part in rest if not ast.unparse(part).startswith(TORCH)]
    assert sum((part.end_lineno or 0) - part.lineno + 1 for part in added) <= 20


def test_documented_network_grows_and_is_loaded_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_script(directory, "my_network.py")

    assert done.returncode == 0, done.stderr
    (run_dir,) = (directory / "runs").iterdir()
    assert validate_run(run_dir).is_valid
    manifest = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    assert manifest["job"]["training"]["task"] == "my_resnet"
    monkeypatch.syspath_prepend(directory)
    network = esper.load_grown(run_dir / "grown.pt")
    header = read_grown_header(run_dir / "grown.pt")
    assert header.slots == ("r0c0", "r0c1")
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    network.train()(torch.zeros(2, 1, 8, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.fixture(scope="module")
def installed(directory: Path) -> Path:
    """Return a directory of packages in which the documented task is installed."""
    package = directory / "site"
    metadata = package / "my_network-1.dist-info"
    metadata.mkdir(parents=True)
    text = (directory / "my_network.py").read_text(encoding="utf-8")
    register = 'register_task(TASK, load=lambda spec, request: load_dataset("digits", request))'
    assert register in text
    text += f"\n\ndef register() -> None:\n    {register}\n"
    (package / "my_network.py").write_text(text, encoding="utf-8")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-network\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[esper.tasks]\nmy_resnet = my_network:register\n")
    return package


def train(directory: Path, site: Path, *arguments: str) -> str:
    """Run esper-train; return its standard output."""
    done = run_esper("train", *arguments, cwd=directory, path=site)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_own_network_runs_in_worker_processes_is_resumed_and_evaluated(
    installed: Path, tmp_path: Path
) -> None:
    settings = ("--task", "my_resnet", "--envs", "2", "--episode-length", "3", "--rounds", "1")
    batches = ("--batch-size", "250")
    prints = []
    for engine in ("threads", "processes"):
        workers = ("--engine", engine, "--workers", "2", "--quiet", "--telemetry-dir", engine)
        train(tmp_path, installed, "ppo", *settings, *batches, *workers)
        train(tmp_path, installed, "ppo", "--resume", "latest", "--rounds", "2", *workers)
        (run_dir,) = (tmp_path / engine).iterdir()
        prints.append(fingerprint(run_dir))

    assert prints[0] == prints[1]
    evaluated = ("eval", "--checkpoint", str(run_dir), "--seeds", "5", "--json")
    assert json.loads(train(tmp_path, installed, *evaluated))


def test_network_that_cannot_be_cut_leaves_nothing_behind(directory: Path) -> None:
    text = (directory / "my_network.py").read_text(encoding="utf-8")
    broken = text.replace('after=("layer1", "layer2")', 'after=("layer1", "layer1.0.conv")')
    (directory / "broken.py").write_text(broken, encoding="utf-8")
    before = sorted(directory.glob("runs/*"))

    done = run_script(directory, "broken.py")

    assert done.returncode != 0
    assert "'layer1.0.conv' runs inside of another stage, or never" in done.stderr
    assert sorted(directory.glob("runs/*")) == before
