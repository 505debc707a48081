"""Policies that ship with Esper."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.builders.probe_jobs import probe_job
from tests.builders.tiny_runs import tiny_run
from tests.simic.training.runs import last_checkpoint

from esper.leyline.config import EngineKind, RunOptions
from esper.leyline.errors import UnknownNameError
from esper.leyline.jobs import merge_job
from esper.leyline.tasks import preset_named
from esper.runtime.datasets import TensorDataset
from esper.simic.evaluation.arm_run import run_arm
from esper.simic.evaluation.arms import materialize_policy_digest, parse_arms
from esper.simic.evaluation.inspection import inspect_policy
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import RunSetup, prepare_run
from esper.simic.training.assembly.worker_setup import load_data
from esper.simic.training.checkpoints.builtin import builtin_policies, checkpoint_at
from esper.simic.training.checkpoints.resuming import load_run
from esper.simic.training.policy_controller import PolicyController
from esper.simic.training.vectorized import run_job
from esper.tolaria.stopping import StopFlag
from tools import ship_policy


def test_path_of_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "policy.pt").touch()

    assert checkpoint_at(str(tmp_path / "policy.pt")) == tmp_path / "policy.pt"


def test_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"known: .*builtin:digits_growth"):
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


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return checkpoints of two short training runs."""
    runs = tmp_path_factory.mktemp("runs")
    return [
        last_checkpoint(tiny_run(runs / str(seed), n_episodes=1, seed=seed).run_dir)
        for seed in (1, 2)
    ]


def ship(checkpoints: Sequence[Path], out: Path, *more: str) -> int:
    return ship_policy.main(["tiny", *map(str, checkpoints), "--out", str(out), *more])


@pytest.mark.parametrize("best", [0, 1])
def test_shipping_chooses_by_validation_and_keeps_only_what_was_learned(
    candidates: list[Path], best: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {candidates[best]: 2.0, candidates[1 - best]: 1.0}
    monkeypatch.setattr(ship_policy, "validation_return", lambda policy, _: scores[policy.path])

    assert ship(candidates, tmp_path) == 0

    before, after = load_run(candidates[best]), load_run(tmp_path / "tiny.pt")
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


def test_choice_of_a_policy_never_reads_test_data(
    candidates: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, given = ship_policy.prepare_run, list[TensorDataset]()

    def noting(*arguments: Any, dataset: TensorDataset, **options: Any) -> RunSetup:
        given.append(dataset)
        setup = prepare(*arguments, dataset=dataset, **options)
        # A worker process would load the data, test split included, by itself.
        assert setup.job.run.engine is EngineKind.THREADS
        return setup

    monkeypatch.setattr(ship_policy, "prepare_run", noting)
    policy = load_run(candidates[0])
    true_test = load_data(policy.job, StopFlag()).test

    assert math.isfinite(ship_policy.validation_return(policy, [500, 501]))

    assert len(given) == 2
    for dataset in given:
        assert dataset.test is dataset.val
        assert len(dataset.test) != len(true_test)


@pytest.mark.parametrize(
    ("num_candidates", "seeds", "reason"),
    [(1, "500-501", "at least two"), (2, "998-1000", "from 1000 on they are for claims")],
)
def test_shipping_refuses_a_choice_made_elsewhere_and_seeds_of_claims(
    candidates: list[Path],
    num_candidates: int,
    seeds: str,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        ship(candidates[:num_candidates], tmp_path, "--seeds", seeds)

    assert reason in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_run_without_a_policy_is_not_shipped(
    candidates: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny_run(tmp_path / "runs", command="wait", n_episodes=1)

    with pytest.raises(SystemExit):
        ship([candidates[0], last_checkpoint(run.run_dir)], tmp_path)

    assert "'wait' has no policy to ship" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["network", "obs_normalizer"])
def test_policy_that_decides_otherwise_has_another_digest(part: str, tmp_path: Path) -> None:
    loaded = load_run(last_checkpoint(tiny_run(tmp_path, n_episodes=1).run_dir))
    before = materialize_policy_digest(loaded)
    assert loaded.controller is not None
    tensors = loaded.controller["agent"][part] if part == "network" else loaded.controller[part]

    next(value for value in tensors.values() if isinstance(value, torch.Tensor)).add_(1)

    assert materialize_policy_digest(loaded) != before


def test_policy_of_a_probe_is_shipped_for_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = [
        last_checkpoint(
            run_job(
                probe_job("contexts", tmp_path, n_envs=2, n_episodes=1, max_epochs=3, seed=seed)
            ).run_dir
        )
        for seed in (1, 2)
    ]
    monkeypatch.setattr(ship_policy, "validation_return", lambda policy, _: len(str(policy.job)))

    assert ship(policies, tmp_path / "out", "--preset", "closed_loop") == 0

    shipped = load_run(tmp_path / "out" / "tiny.pt")
    job, _ = merge_job(("test", {"training": {"preset": "closed_loop"}}))
    assert shipped.job.training == job.training
    assert shipped.state.history == ()
    digests = {materialize_policy_digest(load_run(path)) for path in policies}
    assert materialize_policy_digest(shipped) in digests
    # It plays that job without being told how many envs and steps that has.
    setup = prepare_run(shipped.job, "ppo", shipped, StopFlag(), parts=RunParts())
    assert isinstance(setup.controller, PolicyController)
    assert setup.controller.agent.config.num_envs == job.training.n_envs
    assert setup.controller.agent.config.num_steps == job.training.max_epochs


def test_shipped_policy_of_contexts_acts_on_what_it_sees() -> None:
    """On the probe of its training: the same on networks takes minutes (docs/evidence.md)."""
    layer = {"training": {"preset": "closed_loop_probe", "n_envs": 64}}
    job, _ = merge_job(("test", layer))

    report = inspect_policy(
        load_run(checkpoint_at("builtin:closed_loop")),
        name="builtin:closed_loop",
        seeds=[3000],
        sabotage_step=10,
        job=job,
    )

    found = report.sabotage
    assert min(found.num_sabotaged, found.num_intact) >= 10
    assert found.pruned_sabotaged - found.pruned_intact >= 0.5
    (shift,) = (
        item for item in report.shifts if (item.evidence, item.op) == ("contribution", "PRUNE")
    )
    assert shift.flipped > shift.as_seen
