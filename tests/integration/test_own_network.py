"""The page about networks of one's own, followed by the letter."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import esper
from esper.nissa.analysis.validation import validate_run
from esper.simic.training.checkpoints.grown import read_grown_header

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "your_own_network.md"


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


def test_network_that_cannot_be_cut_leaves_nothing_behind(directory: Path) -> None:
    text = (directory / "my_network.py").read_text(encoding="utf-8")
    broken = text.replace('after=("layer1", "layer2")', 'after=("layer1", "layer1.0.conv")')
    (directory / "broken.py").write_text(broken, encoding="utf-8")
    before = sorted(directory.glob("runs/*"))

    done = run_script(directory, "broken.py")

    assert done.returncode != 0
    assert "'layer1.0.conv' runs inside of another stage, or never" in done.stderr
    assert sorted(directory.glob("runs/*")) == before
