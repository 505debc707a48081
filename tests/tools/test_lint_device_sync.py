"""The lint finds planted calls, and none in the source."""

from pathlib import Path

import pytest
from tools.lint_device_sync import main


def plant(root: Path, name: str, code: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code, encoding="utf-8")


def test_source_has_no_offence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("package", ["kasmina", "tolaria", "simic/training", "tamiyo/deep"])
@pytest.mark.parametrize("attribute", ["item", "cpu", "tolist", "numpy", "synchronize"])
def test_waiting_call_in_the_hot_path_is_found(
    tmp_path: Path, package: str, attribute: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plant(tmp_path, f"{package}/module.py", f"def work(loss):\n    return loss.{attribute}()\n")

    assert main([str(tmp_path)]) == 1
    assert f"{package}/module.py:2: .{attribute} in work; move it" in capsys.readouterr().out


@pytest.mark.parametrize(
    "code",
    [
        "class Env:\n    def work(self):\n        return self.total.loss.item()\n",
        "def work(losses):\n    return list(map(Tensor.item, losses))\n",
        "def work(loss):\n    return [x.tolist() for x in loss.cpu()][0]\n",
        "async def work():\n    torch.cuda.synchronize()\n",
        "TOTAL = loss.item()\n",
        "def materialize_all(x):\n    return x.item()\n\ndef work(x):\n    return x.item()\n",
    ],
)
def test_waiting_call_is_found_wherever_it_hides(tmp_path: Path, code: str) -> None:
    plant(tmp_path, "kasmina/module.py", code)

    assert main([str(tmp_path)]) == 1


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("tolaria/fences.py", "def work(stream):\n    stream.synchronize()\n"),
        ("simic/agent/module.py", "def work(loss):\n    return loss.item()\n"),
        ("kasmina/module.py", "def materialize_losses(loss):\n    return loss.cpu().tolist()\n"),
        ("kasmina/module.py", "def _materialize_losses(loss):\n    return loss.item()\n"),
        ("kasmina/module.py", "def work(table):\n    return dict(table.items())\n"),
        ("kasmina/module.py", "def work():\n    return torch.cpu\n"),
    ],
)
def test_what_may_wait_is_left_alone(tmp_path: Path, name: str, code: str) -> None:
    plant(tmp_path, name, code)

    assert main([str(tmp_path)]) == 0


def test_root_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
