"""The tasks whose hosts are plain modules, as their user runs them."""

import json
from pathlib import Path

import pytest
import torch
from tests.builders.fingerprints import fingerprint
from tests.runtime.data_files import cifar_files, write_files

import esper
from esper.kasmina.model import MorphogeneticModel
from esper.nissa.analysis.validation import validate_run
from esper.scripts.train import main
from esper.simic.evaluation.recorded import last_recorded
from esper.simic.training.static_work import seeds_in

SOON = "training.lifecycle.min_training_steps=2"
"""Seeds are blended within the short episodes."""
TINY = ("--envs", "2", "--episode-length", "5", "--rounds", "1", "--quiet", "--set", SOON)
# Four runs and an evaluation of real networks, which take long on a busy machine.
pytestmark = pytest.mark.timeout(400)
SHAPES = {"digits_vit": (1, 8, 8), "cifar_resnet20": (3, 32, 32)}


def grow(task: str, data: list[str], directory: Path, *engine: str) -> Path:
    """Train one round, resume for another, and return the run."""
    where = ("--telemetry-dir", str(directory), *engine)
    assert main(["periodic", "--task", task, *TINY, *data, *where]) == 0
    again = ("--resume", "latest", "--rounds", "2", "--quiet")
    assert main(["periodic", *again, *data, *where]) == 0
    (run_dir,) = directory.iterdir()
    return run_dir


@pytest.mark.parametrize("task", SHAPES)
def test_plain_network_grows_on_every_engine_is_resumed_evaluated_and_loaded(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", "synthetic"]
    if task == "cifar_resnet20":
        data = ["--data-dir", str(write_files(tmp_path / "cifar", cifar_files(10)))]
    first = grow(task, data, tmp_path / "threads", "--engine", "threads")
    second = grow(task, data, tmp_path / "processes", "--engine", "processes", "--workers", "2")

    assert fingerprint(first) == fingerprint(second)
    assert validate_run(first).is_valid
    assert any(map(seeds_in, last_recorded(first))), "no seed takes part in any network"
    arguments = ["eval", "--checkpoint", str(first), "--seeds", "5", "--json"]
    capsys.readouterr()
    assert main([*arguments, *(data if "--data-dir" in data else ())]) == 0
    assert len(json.loads(capsys.readouterr().out)["envs"]) == 2
    network = esper.load_grown(first / "grown.pt")
    assert isinstance(network.model, MorphogeneticModel)
    assert network(torch.zeros(2, *SHAPES[task])).shape == (2, 10)
