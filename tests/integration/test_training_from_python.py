"""What a program or a notebook gets from `train_ppo_vectorized` besides agent and history."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.builders.tiny_tasks import TINY, register_tiny_tasks

from esper.leyline.config import DEFAULT_SERVER_ADDRESS
from esper.leyline.telemetry import Event, decode_event
from esper.simic.training.arguments import DEFAULTS, layer_from_arguments
from esper.simic.training.vectorized import train_ppo_vectorized

NOTEBOOK = """
import builtins, sys, types


class ZMQInteractiveShell:
    pass


shown = []
display = types.ModuleType("IPython.display")
display.display = lambda *items: shown.extend(str(item.data.get("text/plain")) if hasattr(item, "data") else repr(item) for item in items)
sys.modules["IPython"] = types.ModuleType("IPython")
sys.modules["IPython.display"] = display
builtins.get_ipython = ZMQInteractiveShell

from esper.simic import train_ppo_vectorized

train_ppo_vectorized(
    task="probe:memory", n_episodes=1, n_envs=1, telemetry_dir=sys.argv[1], progress=True
)
print(len(shown))
"""  # noqa: E501 - a stand-in for a notebook's modules


def test_what_is_returned_unpacks_and_knows_run_network_and_verdict(tmp_path: Path) -> None:
    register_tiny_tasks()
    seen: list[Event] = []

    run = train_ppo_vectorized(
        task=TINY,
        n_episodes=1,
        n_envs=1,
        max_epochs=2,
        telemetry_dir=tmp_path,
        on_event=seen.append,
    )

    agent, history = run
    assert (agent, history) == (run.agent, run.history)
    assert run.run_dir.parent == tmp_path
    assert isinstance(run.grown, torch.nn.Module)
    assert run.verdict.alive == "completed"
    lines = (run.run_dir / "events.jsonl").read_bytes().splitlines()
    assert seen == [decode_event(line) for line in lines]


def test_progress_is_printed_in_a_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_ppo_vectorized(
        task="probe:memory", n_episodes=1, n_envs=1, telemetry_dir=tmp_path, progress=True
    )
    printed = capsys.readouterr().out
    assert "round 1" in printed
    assert str(run.run_dir) in printed
    assert run.grown is None


def test_progress_is_displayed_in_a_notebook(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) > 3


@pytest.mark.parametrize(
    ("serve", "expected"),
    [(True, DEFAULT_SERVER_ADDRESS), (False, None), ("127.0.0.1:0", "127.0.0.1:0")],
)
def test_serve_takes_an_address_or_says_whether_to_serve(
    serve: object, expected: str | None
) -> None:
    layer = layer_from_arguments({**vars(DEFAULTS), "serve": serve})
    assert layer == {"training": {}, "run": {"serve": expected}}
