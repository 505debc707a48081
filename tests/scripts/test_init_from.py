"""`esper-train ppo --init-from`: a policy that begins with the weights of another one."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from esper.leyline.manifest import PolicyOrigin
from esper.nissa.storage.run_directory import read_manifest
from esper.scripts.train import main
from esper.simic.training.checkpoints.checkpoint_store import read_checkpoint
from esper.simic.training.vectorized import train_ppo_vectorized

TINY = ["--envs", "4", "--lstm-hidden-dim", "8", "--set", "training.feature_dim=8", "--quiet"]
SCALES = ("obs_normalizer", "reward_normalizer")


def trained(runs: Path, *arguments: str, command: str = "ppo", task: str = "context") -> Path:
    """Train for two rounds, unless told otherwise, and return the run's directory."""
    before = set(runs.glob("*"))
    common = ["--task", f"probe:{task}", "--rounds", "2", "--telemetry-dir", str(runs)]
    assert main([command, *common, *TINY, *arguments]) == 0
    (run_dir,) = set(runs.glob("*")) - before
    return run_dir


def checkpoint(run_dir: Path, rounds: int) -> Path:
    return run_dir / "checkpoints" / f"round-{rounds:06d}.pt"


def stored(run_dir: Path, rounds: int) -> dict[str, Any]:
    return read_checkpoint(checkpoint(run_dir, rounds))


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose policy others begin with."""
    return trained(tmp_path_factory.mktemp("origin"))


def is_equal(one: object, two: object) -> bool:
    """Compare states: tables of tables and tensors."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(is_equal(one[key], two[key]) for key in one)
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return torch.equal(one, two)
    return one == two


def test_a_run_begins_with_the_weights_and_scales_of_another_one(
    origin: Path, tmp_path: Path
) -> None:
    begun = trained(tmp_path, "--init-from", str(origin), "--seed", "7", task="lottery")

    last, first = stored(origin, 2), stored(begun, 0)
    assert is_equal(last["agent"]["network"], first["agent"]["network"])
    assert is_equal(last["agent"]["value_normalizer"], first["agent"]["value_normalizer"])
    assert all(is_equal(last[name], first[name]) for name in SCALES)
    # Neither the optimizer's moments nor its place in the schedules.
    assert last["agent"]["optimizer"]["state"]
    assert not first["agent"]["optimizer"]["state"]
    assert (last["agent"]["num_updates"], first["agent"]["num_updates"]) == (2, 0)


def test_it_goes_on_from_there(origin: Path, tmp_path: Path) -> None:
    begun = trained(tmp_path, "--init-from", str(checkpoint(origin, 2)))

    assert not is_equal(stored(begun, 0)["agent"]["network"], stored(begun, 2)["agent"]["network"])
    # Statistics of both runs: 2 + 2 rounds of 4 envs and 12 steps.
    assert float(stored(begun, 2)["obs_normalizer"]["count"]) == 4 * 4 * 12


def test_the_manifest_names_the_run_and_no_directory(origin: Path, tmp_path: Path) -> None:
    begun = trained(tmp_path, "--init-from", str(checkpoint(origin, 2)))

    manifest = read_manifest(begun)
    assert manifest.policy_origin == PolicyOrigin(
        run_id=read_manifest(origin).run_id, task="probe:context", rounds_completed=2
    )
    assert manifest.job.training.init_from == "round-000002.pt"
    assert read_manifest(origin).policy_origin is None


def test_it_resumes_without_the_run_that_it_began_from(origin: Path, tmp_path: Path) -> None:
    copy, runs = tmp_path / "copy.pt", tmp_path / "runs"
    shutil.copy(checkpoint(origin, 2), copy)
    # The schedules cover a run's rounds, which a resume changes, unless they are given.
    flags = ("--init-from", str(copy), "--set", "training.total_train_steps=3")
    whole, part = trained(runs, *flags, "--rounds", "3"), trained(runs, *flags)
    copy.unlink()

    assert main(["ppo", "--resume", str(part), "--rounds", "3", "--quiet"]) == 0

    assert is_equal(stored(part, 3)["agent"], stored(whole, 3)["agent"])


def test_scripts_can_do_the_same(origin: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "task": "probe:context",
        "n_episodes": 1,
        "n_envs": 4,
        "lstm_hidden_dim": 8,
        "feature_dim": 8,
        "lr": 0.0001,
        "telemetry_dir": tmp_path,
    }
    train_ppo_vectorized(**settings, init_from=checkpoint(origin, 2))

    (begun,) = tmp_path.iterdir()
    assert is_equal(stored(origin, 2)["agent"]["network"], stored(begun, 0)["agent"]["network"])


def test_a_policy_that_ships_can_be_begun_with(tmp_path: Path) -> None:
    flags = ["--rounds", "1", "--envs", "2", "--episode-length", "3", "--quiet"]
    where = ["--telemetry-dir", str(tmp_path)]
    assert main(["ppo", *flags, *where, "--init-from", "builtin:digits_growth"]) == 0

    (begun,) = tmp_path.iterdir()
    origin = read_manifest(begun).policy_origin
    assert origin is not None
    assert origin.task == "digits"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lstm-hidden-dim", "16"], "has 8 LSTM units, this run's has 16; set training.lstm_"),
        (["--set", "training.feature_dim=4"], "has 8 features, this run's has 4; set training."),
        (["--task", "probe:rent"], "has 1 slots, this run's has 2; set training.slots"),
        (["--blueprints", "widen"], "has no added blueprints, this run's has widen"),
    ],
)
def test_a_policy_of_another_shape_is_refused_with_the_way_on(
    flags: list[str],
    message: str,
    origin: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = tmp_path / "runs"
    common = ["ppo", "--task", "probe:context", *TINY, "--telemetry-dir", str(runs)]

    assert main([*common, "--init-from", str(checkpoint(origin, 2)), *flags]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not runs.exists()


def test_a_run_without_a_policy_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waited = trained(tmp_path, command="wait")

    assert main(["ppo", "--task", "probe:context", *TINY, "--init-from", str(waited)]) == 2

    assert "a checkpoint of 'wait', which has no policy" in capsys.readouterr().err


def test_a_damaged_policy_is_named(
    origin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = stored(origin, 2)
    damaged["header"] = msgspec.to_builtins(damaged["header"])
    damaged["agent"]["network"].popitem()
    path = tmp_path / "damaged.pt"
    torch.save({"version": 2, **damaged}, path)

    assert main(["ppo", "--task", "probe:context", *TINY, "--init-from", str(path)]) == 2

    error = capsys.readouterr().err
    assert f"{path}: does not contain the state of this run" in error
    assert error.count("\n") == 1
