"""The digest of the code: the same for every copy of it, another one for other code."""

import shutil
from importlib.resources import files
from pathlib import Path

import pytest
import torch

from esper.simic.training.assembly.code_version import code_version, digest_of_package

TORCH = str(torch.__version__)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Return a copy of the package as a wheel would install it: elsewhere, without caches."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(str(files("esper")), tmp_path / "esper", ignore=ignored))


def test_a_copy_of_the_package_has_the_same_version(copied: Path) -> None:
    assert digest_of_package(copied, TORCH) == code_version()
    (copied / "simic" / "__pycache__").mkdir()
    (copied / "simic" / "__pycache__" / "x.pyc").write_bytes(b"cache")
    assert digest_of_package(copied, TORCH) == code_version()


@pytest.mark.parametrize(
    "changed", ["simic/rewards/sparse.py", "runtime/assets/digits-labels-idx1-ubyte.gz"]
)
def test_code_and_data_that_results_depend_on_change_the_version(
    copied: Path, changed: str
) -> None:
    path = copied / changed
    path.write_bytes(path.read_bytes() + b"#")
    assert digest_of_package(copied, TORCH) != code_version()


def test_code_of_the_same_length_changes_the_version_too(copied: Path) -> None:
    path = copied / "simic" / "rewards" / "sparse.py"
    content = path.read_bytes()
    path.write_bytes(content[:-2] + b"#" + content[-1:])
    assert digest_of_package(copied, TORCH) != code_version()


def test_a_renamed_module_and_another_torch_change_the_version(copied: Path) -> None:
    assert digest_of_package(copied, "0.0") != code_version()
    (copied / "tamiyo" / "masks.py").rename(copied / "tamiyo" / "other.py")
    assert digest_of_package(copied, TORCH) != code_version()


def test_what_only_shows_results_does_not_change_the_version(copied: Path) -> None:
    path = copied / "karn" / "monitor.py"
    path.write_bytes(path.read_bytes() + b"#")
    assert digest_of_package(copied, TORCH) == code_version()
