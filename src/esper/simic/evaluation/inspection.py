"""Inspections: how a policy's choices depend on the evidence, and whether it notices sabotage."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from statistics import fmean
from typing import Final

import msgspec
import numpy as np
import torch
from torch import Tensor

from esper.leyline.actions import Op
from esper.leyline.comparison import Estimate
from esper.leyline.config import EngineKind, Job
from esper.leyline.errors import UsageError
from esper.leyline.inspection import InspectionReport, OpShift, SabotageFigures
from esper.leyline.reports import SeedReport
from esper.simic.evaluation.evaluation_round import EvaluationRound, evaluate_round
from esper.simic.evaluation.inspected_policy import FLIPS, InspectedPolicy
from esper.simic.evaluation.statistics import ArmScores, bootstrap, mean_difference
from esper.simic.training.assembly.machine import run_settings
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import RunSetup, prepare_run
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.policy_controller import PolicyController
from esper.simic.training.sabotage import MIN_WORTH_PP, is_victim, target_of
from esper.tolaria.event_loop import run_event_loop
from esper.tolaria.stopping import StopFlag
from esper.tolaria.supervisor import stop_signals

__all__ = ["inspect_policy", "sabotage_figures"]

WINDOW: Final = 5
MIN_ENVS: Final = 2


def inspect_policy(
    loaded: LoadedRun,
    *,
    name: str,
    seeds: Sequence[int],
    sabotage_step: int,
    job: Job | None = None,
) -> InspectionReport:
    """Let a policy grow fresh envs, undisturbed and sabotaged, and report what it reacts to.

    Args:
        loaded: the policy's checkpoint.
        name: what the report calls the policy.
        seeds: one round of envs each.
        sabotage_step: first step in which a seed may be scrambled.
        job: what it grows; None takes the job of its training. The seed of either is ignored.
    """
    job = loaded.job if job is None else job
    training = job.training
    if loaded.controller is None:
        raise UsageError(f"{loaded.path}: a checkpoint of {loaded.command!r}, which has no policy")
    if training.n_envs < MIN_ENVS:
        raise UsageError(f"{loaded.path}: half of the envs are sabotaged, and the run has one")
    stop = StopFlag()
    inspectors: list[InspectedPolicy] = []
    rounds: list[EvaluationRound] = []
    with run_settings(training), stop_signals(stop):
        for seed in seeds:
            setup = _prepare(loaded, job, seed, stop)
            inspector = InspectedPolicy.around(setup)
            run_event_loop(partial(evaluate_round, replace(setup, controller=inspector)), stop)
            inspectors.append(inspector)
            setup = _prepare(loaded, job, seed, stop)
            worker = replace(setup.worker, sabotage_step=sabotage_step)
            rounds.append(
                run_event_loop(partial(evaluate_round, replace(setup, worker=worker)), stop)
            )
    return InspectionReport(
        policy=name,
        task=training.task,
        seeds=tuple(seeds),
        num_envs=training.n_envs,
        num_decisions=sum(item.num_decisions for item in inspectors),
        shifts=_shifts(inspectors),
        sabotage=sabotage_figures(rounds, setup, sabotage_step),
    )


def _prepare(loaded: LoadedRun, job: Job, seed: int, stop: StopFlag) -> RunSetup:
    training = msgspec.structs.replace(job.training, seed=seed, blind=loaded.job.training.blind)
    # On threads, where sabotage and inspection need not cross to another process.
    run = msgspec.structs.replace(job.run, engine=EngineKind.THREADS, workers=None)
    its_job = Job(training=training, run=run)
    setup = prepare_run(its_job, loaded.command, loaded, stop, parts=RunParts())
    assert isinstance(setup.controller, PolicyController), "the checkpoint has a policy"
    setup.controller.is_greedy = True
    setup.controller.agent.fit_rollout(num_envs=training.n_envs, num_steps=training.max_epochs)
    return setup


def _shifts(inspectors: Sequence[InspectedPolicy]) -> tuple[OpShift, ...]:
    num_decisions = sum(item.num_decisions for item in inspectors)
    if num_decisions == 0:
        return ()
    seen = materialize_mean([item.as_seen for item in inspectors], num_decisions)
    shifts = []
    for name in FLIPS:
        sums = [item.flipped[name] for item in inspectors if name in item.flipped]
        flipped = materialize_mean(sums, num_decisions)
        shifts += [
            OpShift(evidence=name, op=op.name, as_seen=seen[op], flipped=flipped[op]) for op in Op
        ]
    return tuple(shifts)


def materialize_mean(sums: Sequence[Tensor], number: int) -> list[float]:
    """Return the sums of all inspections over their number, as plain numbers."""
    means: list[float] = (torch.stack(tuple(sums)).sum(0) / number).tolist()
    return means


# --- Sabotage ------------------------------------------------------------------------------------


def sabotage_figures(
    rounds: Sequence[EvaluationRound], setup: RunSetup, first_step: int
) -> SabotageFigures:
    """Return how often targets were pruned, sabotaged and intact, from one round per seed."""
    pruned: dict[bool, list[list[bool]]] = {True: [], False: []}
    for done in rounds:
        found: dict[bool, list[bool]] = {True: [], False: []}
        for env_id in range(setup.job.training.n_envs):
            answer = _is_pruned(done, env_id, setup, first_step)
            if answer is not None:
                found[is_victim(env_id)].append(answer)
        for kind, answers in found.items():
            pruned[kind].append(answers)
    sabotaged, intact = ([*chain(*pruned[kind])] for kind in (True, False))
    return SabotageFigures(
        first_step=first_step,
        window=WINDOW,
        min_worth_pp=MIN_WORTH_PP,
        num_sabotaged=len(sabotaged),
        num_intact=len(intact),
        pruned_sabotaged=_share(sabotaged),
        pruned_intact=_share(intact),
        difference=_difference(pruned[True], pruned[False]),
    )


def _is_pruned(done: EvaluationRound, env_id: int, setup: RunSetup, first_step: int) -> bool | None:
    """Return whether an env's target was pruned in time; None if it never had a target."""
    for step in range(max(first_step, 1), len(done.steps)):
        target = target_of(_before_validation(done, env_id, step), setup.worker.rules)
        if target is not None:
            return any(
                row.op == Op.PRUNE.name.lower() and row.slot == target
                for row in done.actions[env_id]
                if step <= row.step < step + WINDOW
            )
    return None


def _before_validation(done: EvaluationRound, env_id: int, step: int) -> tuple[SeedReport, ...]:
    """Return the seeds of an env with the contributions that were known when it was sabotaged."""
    env, before = done.steps[step].envs[env_id], done.steps[step - 1].envs[env_id]
    if env is None or before is None:
        return ()
    known = {report.slot_id: report.contribution_pp for report in before.reports}
    return tuple(
        msgspec.structs.replace(report, contribution_pp=known.get(report.slot_id))
        for report in env.reports
    )


def _share(answers: Sequence[bool]) -> float:
    return sum(answers) / len(answers) if answers else 0.0


def _difference(
    sabotaged: Sequence[Sequence[bool]], intact: Sequence[Sequence[bool]]
) -> Estimate | None:
    both = [(one, two) for one, two in zip(sabotaged, intact, strict=True) if one and two]
    if len(both) < 2:
        return None
    tables = [np.array([[fmean(pair[index]) for pair in both]]) for index in (0, 1)]
    found = bootstrap([ArmScores(table) for table in tables], mean_difference, seed=0)
    return Estimate(value=found.value, low=max(found.low, -1.0), high=min(found.high, 1.0))
