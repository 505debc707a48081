"""`esper-train export` as its user runs it."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from tests.scripts.test_train_runs import trained

import esper
from esper.scripts.train import main


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs"))


def test_run_is_exported_beside_its_network(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run_dir), "--to", "torch-export", "--json"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert report["path"] == str(run_dir / "grown.pt2")
    assert report["input_shape"] == [1, 8, 8]
    assert report["pixel_mean"] == [4.88]
    program = torch.export.load(report["path"]).module()
    images = torch.arange(0.0, 16.0, 16 / 64).view(1, 1, 8, 8)
    network = esper.load_grown(run_dir / "grown.pt")
    assert torch.allclose(program(images), network(images), atol=1e-5)


def test_sentence_says_what_the_network_takes(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "digits.safetensors"
    assert main(["export", str(run_dir), "--to", "safetensors", "-o", str(output)]) == 0

    line = capsys.readouterr().out
    assert f"{output}: safetensors" in line
    assert "takes float32 of shape (batch, 1, 8, 8): pixels as the data set stores them" in line


@pytest.mark.parametrize("form", ["safetensors", "onnx"])
def test_missing_library_is_named_with_the_command_that_installs_it(
    form: str,
    run_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, form, None)
    output = tmp_path / "file"

    assert main(["export", str(run_dir), "--to", form, "-o", str(output)]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"esper-train: --to {form} needs {form}, which is not installed; "
        "pip install 'esper-grow[export]'"
    )
    assert not output.exists()


def test_network_itself_is_never_replaced(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_dir / "grown.pt"
    before = path.read_bytes()

    assert main(["export", str(path), "--to", "torch-export", "-o", str(path)]) == 2

    assert "would replace the network" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_run_without_a_network_is_named_with_the_way_on(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished = Path(shutil.copytree(run_dir, tmp_path / "unfinished"))
    (unfinished / "grown.pt").unlink()

    assert main(["export", str(unfinished), "--to", "torch-export"]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"esper-train: {unfinished}: the run has no grown network; it is written when a round has "
        "finished"
    )


def test_other_file_and_unwritable_place_are_refused_in_one_line(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run_dir / "run.json"), "--to", "torch-export"]) == 2
    nowhere = tmp_path / "nowhere" / "x.pt2"
    assert main(["export", str(run_dir), "--to", "torch-export", "-o", str(nowhere)]) == 1

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "not a grown network" in lines[0]
    assert "cannot be written" in lines[1]
