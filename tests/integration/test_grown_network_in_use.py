"""A grown network in the hands of somebody who has read the documentation only."""

import re
from pathlib import Path

import pytest
import torch
from tests.builders.tiny_runs import tiny_run

import esper
from esper.runtime.sources import DataRequest
from esper.runtime.tasks import load_dataset
from esper.simic.training.run_result import TrainingResult

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    """A run that grows a network on the digits, enough to be better than a guess."""
    return tiny_run(
        tmp_path_factory.mktemp("grown"),
        task="digits",
        command="periodic",
        n_episodes=1,
        n_envs=1,
        max_epochs=12,
        batch_size_per_env=50,
    )


def documented(page: str, word: str) -> str:
    """Return the one block of Python of a page that contains a word."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", text, re.S) if word in code)
    return code


def test_stored_pixels_give_the_accuracy_that_the_run_reports(finished: TrainingResult) -> None:
    network = esper.load_grown(finished.run_dir / "grown.pt")
    data = load_dataset("digits", DataRequest())

    with torch.inference_mode():
        is_right = network(data.val.inputs).argmax(1) == data.val.targets

    (episode,) = finished.history[0].episodes
    assert episode.final_accuracy_pct == pytest.approx(100 * is_right.float().mean().item())
    assert episode.final_accuracy_pct > 30


def test_standardized_pixels_belong_into_the_model_without_its_scale(
    finished: TrainingResult,
) -> None:
    network = esper.load_grown(finished.run_dir / "grown.pt")
    data = load_dataset("digits", DataRequest())
    assert data.pixel_scale is not None
    standardized = (data.test.inputs - data.pixel_scale.mean[0]) / data.pixel_scale.std[0]

    with torch.inference_mode():
        torch.testing.assert_close(network.model(standardized), network(data.test.inputs))


def test_readme_runs_as_it_stands(finished: TrainingResult) -> None:
    code = documented("README.md", "load_grown")
    assert '"RUN/grown.pt"' in code
    scope: dict[str, torch.Tensor] = {}

    exec(code.replace("RUN/", f"{finished.run_dir}/"), scope)

    assert scope["logits"].shape == (5, 10)
