"""Chooses one of several trained policies on validation data and puts it into the package.

Test data are for claims, so no choice may depend on them: the candidates grow networks under seeds
that no claim uses, on data without their test split, and the best mean task return decides, which
is computed from validation accuracies. What belongs to the machine of the training run is left out
of the file. With `--preset`, policies are judged on the job of a preset, and the file says that it
is for this job: one that was trained on a probe can be shipped for networks.

Usage: python -m tools.ship_policy digits_growth evidence/policy-*.pt
       python -m tools.ship_policy closed_loop evidence/closed-loop-?.pt --preset closed_loop
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final

import msgspec

from esper.leyline.config import EngineKind, RunOptions
from esper.leyline.jobs import merge_job
from esper.runtime.datasets import TensorDataset
from esper.scripts.train_compare import seeds_from
from esper.simic.evaluation.evaluation_round import evaluate_round
from esper.simic.training.assembly.machine import one_thread_per_worker
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import prepare_run
from esper.simic.training.assembly.worker_setup import load_data
from esper.simic.training.checkpoints.checkpoint_store import encode_checkpoint
from esper.simic.training.checkpoints.checkpointer import LoadedRun, decisive_part
from esper.simic.training.checkpoints.resuming import load_run
from esper.simic.training.checkpoints.run_state import RunState
from esper.simic.training.policy_controller import PolicyController
from esper.tolaria.event_loop import run_event_loop
from esper.tolaria.stopping import StopFlag

__all__ = ["main", "validation_return", "without_test_split"]

ASSETS: Final = Path(__file__).parents[1] / "src" / "esper" / "simic" / "assets"
MAX_BYTES: Final = 3_000_000
SEEDS: Final = "500-503"
FIRST_CLAIMED_SEED: Final = 1000
"""Claims are made on seeds from here on (`tools.evidence`)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Write the best policy and return 0, or report why none can be shipped."""
    parser = argparse.ArgumentParser(prog="python -m tools.ship_policy", description=__doc__)
    parser.add_argument("name")
    parser.add_argument(
        "checkpoints", type=Path, nargs="+", metavar="CHECKPOINT", help="all that were trained"
    )
    parser.add_argument(
        "--seeds", default=SEEDS, help="of the validation runs (default: %(default)s)"
    )
    parser.add_argument(
        "--preset", metavar="NAME", help="the job to ship it for (default: that of its training)"
    )
    parser.add_argument("--out", type=Path, default=ASSETS, metavar="DIR")
    arguments = parser.parse_args(argv)
    seeds = seeds_from([arguments.seeds])
    if len(set(arguments.checkpoints)) < 2:
        parser.error("pass every policy that was trained, at least two: the choice is made here")
    if max(seeds) >= FIRST_CLAIMED_SEED:
        parser.error(f"seeds {arguments.seeds}: from {FIRST_CLAIMED_SEED} on they are for claims")
    loaded = [load_run(path) for path in arguments.checkpoints]
    for policy in loaded:
        if policy.controller is None:
            parser.error(f"{policy.path}: {policy.command!r} has no policy to ship")
    if arguments.preset is not None:
        loaded = [_for_preset(policy, arguments.preset) for policy in loaded]
    scores = [validation_return(policy, seeds) for policy in loaded]
    for policy, score in zip(loaded, scores, strict=True):
        print(f"{policy.path}: task return {score:.2f} on validation data, seeds {arguments.seeds}")
    chosen = loaded[scores.index(max(scores))]
    data = _shipped(chosen)
    if len(data) > MAX_BYTES:
        parser.error(f"{chosen.path}: {len(data)} bytes, more than {MAX_BYTES}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{arguments.name}.pt"
    path.write_bytes(data)
    print(f"{path}: {chosen.path}, {len(data)} bytes, {chosen.state.rounds_completed} rounds")
    return 0


def _for_preset(policy: LoadedRun, preset: str) -> LoadedRun:
    """Return a policy as one of a preset's job, without the history of its training."""
    job, task = merge_job((preset, {"training": {"preset": preset}}))
    training = job.training
    assert policy.controller is not None, f"{policy.path} has a policy"
    agent = policy.controller["agent"]
    fitted = {"num_envs": training.n_envs, "num_steps": training.max_epochs}
    controller = {
        **policy.controller,
        "agent": {**agent, "config": {**agent["config"], **fitted}},
    }
    state = RunState(
        rounds_completed=policy.state.rounds_completed,
        episodes_completed=policy.state.episodes_completed,
    )
    header = msgspec.structs.replace(
        policy.header, job=job, state=state, task=decisive_part(task), is_best=False
    )
    return replace(policy, header=header, controller=controller)


def validation_return(policy: LoadedRun, seeds: Sequence[int]) -> float:
    """Return the mean task return of the episodes that a policy plays greedily."""
    stop = StopFlag()
    dataset = without_test_split(load_data(policy.job, stop))
    returns: list[float] = []
    with one_thread_per_worker():
        for seed in seeds:
            training = msgspec.structs.replace(policy.job.training, seed=seed)
            # Processes would load the data themselves, test split included.
            run = msgspec.structs.replace(policy.job.run, engine=EngineKind.THREADS)
            job = msgspec.structs.replace(policy.job, training=training, run=run)
            setup = prepare_run(
                job, policy.command, policy, stop, parts=RunParts(), dataset=dataset
            )
            assert isinstance(setup.controller, PolicyController)
            setup.controller.is_greedy = True  # as claims are made (`tools.evidence`)
            grown = run_event_loop(partial(evaluate_round, setup), stop)
            returns += [episode.task_return for episode in grown.episodes.values()]
    return fmean(returns)


def without_test_split(dataset: TensorDataset) -> TensorDataset:
    """Return data whose test split is the validation split: test data cannot be read at all."""
    return replace(dataset, test=dataset.val)


def _shipped(policy: LoadedRun) -> bytes:
    assert policy.controller is not None, f"{policy.path} has a policy"
    job = msgspec.structs.replace(policy.job, run=RunOptions())
    header = msgspec.to_builtins(msgspec.structs.replace(policy.header, job=job))
    return encode_checkpoint({"header": header, **policy.controller})


if __name__ == "__main__":
    raise SystemExit(main())
