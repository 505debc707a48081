"""The notebooks in examples, executed by a real kernel."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.ipynb"))
EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
resources = {"metadata": {"path": sys.argv[2]}}
limits = {"timeout": 100, "startup_timeout": 100}
nbclient.NotebookClient(notebook, kernel_name="python3", resources=resources, **limits).execute()
texts = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ())]
print("".join(texts))
"""


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs(notebook: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(notebook), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "round 2: accuracy" in done.stdout
    assert "accuracy on the test split: " in done.stdout


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_committed_without_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []
