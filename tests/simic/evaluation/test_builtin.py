"""Policies that ship with Esper."""

from pathlib import Path

import msgspec
import pytest
import torch
from tests.simic.training.runs import last_checkpoint, tiny_run

from esper.leyline.config import RunOptions
from esper.leyline.errors import UnknownNameError
from esper.leyline.jobs import merge_job
from esper.leyline.tasks import preset_named
from esper.simic.evaluation.arm_run import run_arm
from esper.simic.evaluation.arms import materialize_policy_digest, parse_arms
from esper.simic.evaluation.builtin import builtin_policies, checkpoint_at
from esper.simic.training.checkpoints.resuming import load_run
from esper.tolaria.stopping import StopFlag
from tools import ship_policy


def test_path_is_taken_as_it_is() -> None:
    assert checkpoint_at("runs/policy.pt") == Path("runs/policy.pt")


def test_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="known: builtin:digits_growth"):
        checkpoint_at("builtin:digit_growth")


@pytest.mark.parametrize("name", builtin_policies())
def test_shipped_policy_is_small_and_says_nothing_of_the_machine_it_was_trained_on(
    name: str,
) -> None:
    path = checkpoint_at(f"builtin:{name}")

    assert path.stat().st_size <= ship_policy.MAX_BYTES
    assert load_run(path).job.run == RunOptions()
    torch.load(path, weights_only=True)


@pytest.mark.parametrize("name", builtin_policies())
def test_shipped_policy_decides_on_the_preset_of_its_name(name: str) -> None:
    job, _ = merge_job(("test", {"training": {"preset": name, "n_envs": 1, "max_epochs": 2}}))
    stored = load_run(checkpoint_at(f"builtin:{name}")).job.training
    policy, _ = parse_arms([f"ppo:builtin:{name}", "wait"])

    run = run_arm(job, policy, stratum=0, seed=1000, stop=StopFlag())

    assert len(run.envs) == 1
    assert stored.lifecycle == job.training.lifecycle
    assert stored.task == preset_named(name).settings["task"]


def test_shipping_keeps_what_was_learned_and_drops_what_was_local(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "runs", n_episodes=1)
    source = last_checkpoint(run.run_dir)

    assert ship_policy.main([str(source), "tiny", "--out", str(tmp_path / "out")]) == 0

    before, after = load_run(source), load_run(tmp_path / "out" / "tiny.pt")
    assert after.job == msgspec.structs.replace(before.job, run=RunOptions())
    assert after.state == before.state
    assert before.controller is not None
    assert after.controller is not None
    assert materialize_policy_digest(after) == materialize_policy_digest(before)
    network = after.controller["agent"]["network"]
    assert all(
        torch.equal(value, network[key])
        for key, value in before.controller["agent"]["network"].items()
    )


def test_run_without_a_policy_is_not_shipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny_run(tmp_path / "runs", command="wait", n_episodes=1)

    with pytest.raises(SystemExit):
        ship_policy.main([str(last_checkpoint(run.run_dir)), "tiny", "--out", str(tmp_path)])

    assert "'wait' has no policy to ship" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["network", "obs_normalizer"])
def test_policy_that_decides_otherwise_has_another_digest(part: str, tmp_path: Path) -> None:
    loaded = load_run(last_checkpoint(tiny_run(tmp_path, n_episodes=1).run_dir))
    before = materialize_policy_digest(loaded)
    assert loaded.controller is not None
    tensors = loaded.controller["agent"][part] if part == "network" else loaded.controller[part]

    next(value for value in tensors.values() if isinstance(value, torch.Tensor)).add_(1)

    assert materialize_policy_digest(loaded) != before
