"""Inspections: how a policy's choices depend on the evidence, and whether it notices sabotage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from esper.leyline.messages import EnvEvidence
from esper.leyline.reports import SeedReport
from esper.leyline.signals import TrainingSignals
from esper.leyline.stages import Stage
from esper.simic.evaluation.evaluation_round import EvaluationRound, evaluate_round
from esper.simic.evaluation.statistics import ArmScores, bootstrap, mean_difference
from esper.simic.training.assembly.gpu_math import deterministic_gpu_math
from esper.simic.training.assembly.machine import one_thread_per_worker, warm_up_math
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import RunSetup, prepare_run
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.policy_controller import PolicyController, masks_on
from esper.simic.training.sabotage import is_victim, target_of
from esper.tamiyo.controllers.protocol import Choice, Situation
from esper.tamiyo.features import ActionFeedback, FeatureExtractor, ObservationBatch
from esper.tolaria.event_loop import run_event_loop
from esper.tolaria.stopping import StopFlag
from esper.tolaria.supervisor import stop_signals

__all__ = ["FLIPS", "inspect_policy", "sabotage_figures"]

WINDOW: Final = 5
MIN_ENVS: Final = 2
Shown = tuple[TrainingSignals, tuple[SeedReport, ...]]


def inspect_policy(
    loaded: LoadedRun,
    *,
    name: str,
    seeds: Sequence[int],
    sabotage_step: int,
) -> InspectionReport:
    """Let a policy grow fresh envs, undisturbed and sabotaged, and report what it reacts to.

    Args:
        loaded: the policy's checkpoint; all but the seed is as in its training.
        name: what the report calls the policy.
        seeds: one round of envs each.
        sabotage_step: first step in which a seed may be scrambled.
    """
    training = loaded.job.training
    if loaded.controller is None:
        raise UsageError(f"{loaded.path}: a checkpoint of {loaded.command!r}, which has no policy")
    if training.n_envs < MIN_ENVS:
        raise UsageError(f"{loaded.path}: half of the envs are sabotaged, and the run has one")
    stop = StopFlag()
    inspectors: list[InspectedPolicy] = []
    rounds: list[EvaluationRound] = []
    with one_thread_per_worker(), deterministic_gpu_math(training), stop_signals(stop):
        warm_up_math()
        for seed in seeds:
            setup = _prepare(loaded, seed, stop)
            inspector = InspectedPolicy.around(setup)
            run_event_loop(partial(evaluate_round, replace(setup, controller=inspector)), stop)
            inspectors.append(inspector)
            setup = _prepare(loaded, seed, stop)
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


def _prepare(loaded: LoadedRun, seed: int, stop: StopFlag) -> RunSetup:
    training = msgspec.structs.replace(loaded.job.training, seed=seed)
    # On threads, where sabotage and inspection need not cross to another process.
    run = msgspec.structs.replace(loaded.job.run, engine=EngineKind.THREADS, workers=None)
    job = Job(training=training, run=run)
    setup = prepare_run(job, loaded.command, loaded, stop, parts=RunParts())
    assert isinstance(setup.controller, PolicyController), "the checkpoint has a policy"
    setup.controller.is_greedy = True
    return setup


# --- Flipped evidence ----------------------------------------------------------------------------


def _flip_contribution(signals: TrainingSignals, reports: tuple[SeedReport, ...]) -> Shown:
    return signals, tuple(
        msgspec.structs.replace(
            report,
            contribution_pp=_negated(report.contribution_pp),
            contribution_velocity_pp=_negated(report.contribution_velocity_pp),
        )
        for report in reports
    )


def _flip_accuracy(signals: TrainingSignals, reports: tuple[SeedReport, ...]) -> Shown:
    flipped = msgspec.structs.replace(
        signals,
        train_accuracy_pct=100.0 - signals.train_accuracy_pct,
        val_accuracy_pct=100.0 - signals.val_accuracy_pct,
        best_val_accuracy_pct=100.0 - signals.best_val_accuracy_pct,
        accuracy_delta_pp=_negated(signals.accuracy_delta_pp),
        accuracy_history=tuple(100.0 - value for value in signals.accuracy_history),
    )
    return flipped, reports


def _flip_gradient(signals: TrainingSignals, reports: tuple[SeedReport, ...]) -> Shown:
    return signals, tuple(
        msgspec.structs.replace(
            report,
            gradient=report.gradient
            and msgspec.structs.replace(
                report.gradient,
                health=1.0 - report.gradient.health,
                has_vanishing=not report.gradient.has_vanishing,
                ratio=0.0 if report.gradient.ratio > 0.0 else 1.0,
            ),
        )
        for report in reports
    )


FLIPS: Final[Mapping[str, Callable[[TrainingSignals, tuple[SeedReport, ...]], Shown]]] = {
    "contribution": _flip_contribution,
    "accuracy": _flip_accuracy,
    "gradient": _flip_gradient,
}
"""Each turns one kind of evidence around: what helps harms, high is low, healthy is dead."""


def _negated(value: float | None) -> float | None:
    return None if value is None else -value


@dataclass(eq=False, slots=True)
class InspectedPolicy(PolicyController):
    """A policy that is asked for every decision what it would do if the evidence were flipped."""

    extractor: FeatureExtractor = field(kw_only=True)
    num_decisions: int = 0
    as_seen: Tensor = field(default_factory=partial(torch.zeros, len(Op)))
    """Sum of the op probabilities over these decisions; `flipped` by kind of evidence."""
    flipped: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def around(cls, setup: RunSetup) -> "InspectedPolicy":
        """Return the policy of a setup, inspected."""
        policy, config = setup.controller, setup.job.training
        assert isinstance(policy, PolicyController)
        return cls(
            agent=policy.agent,
            obs_normalizer=policy.obs_normalizer,
            reward_normalizer=policy.reward_normalizer,
            slot_ids=policy.slot_ids,
            seed=policy.seed,
            is_greedy=policy.is_greedy,
            extractor=FeatureExtractor(config.slots, config.max_epochs, config.blueprints),
        )

    def choose(self, situation: Situation) -> Choice:
        """Decide as the policy does, after noting what it would have done."""
        rows = [env is not None and _can_be_judged(env) for env in situation.envs]
        if any(rows):
            self._note(situation, torch.tensor(rows))
        # No `super()`: a slotted dataclass is a new class, which zero-argument super() rejects.
        return PolicyController.choose(self, situation)

    def _note(self, situation: Situation, rows: Tensor) -> None:
        self.num_decisions += int(rows.sum())
        self.as_seen = self.as_seen + self._asked(situation, situation.observations, rows)
        for name, flip in FLIPS.items():
            shown = self._with(situation, flip)
            before = self.flipped.get(name, torch.zeros(len(Op)))
            self.flipped[name] = before + self._asked(situation, shown, rows)

    def _asked(self, situation: Situation, shown: ObservationBatch, rows: Tensor) -> Tensor:
        """Return the sum of the op probabilities over some envs, without deciding anything."""
        obs, blueprints = self._seen(shown)
        masks = masks_on(situation.masks, self.agent.device)
        decision = self.agent.decide(obs, blueprints, masks, self.lstm_state, generator=None)
        return decision.op_probabilities.cpu()[:, rows].sum(1)

    def _with(
        self,
        situation: Situation,
        flip: Callable[[TrainingSignals, tuple[SeedReport, ...]], Shown],
    ) -> ObservationBatch:
        """Return the observations with flipped evidence; the last action's result stays."""
        live = [env for env in situation.envs if env is not None]
        rows = [index for index, env in enumerate(situation.envs) if env is not None]
        feedback = [ActionFeedback()] * len(live)
        plain = self._observed([(env.signals, env.reports) for env in live], feedback)
        changed = self._observed([flip(env.signals, env.reports) for env in live], feedback)
        observations = situation.observations.observations.clone()
        # Every feature is a function of its own input, so that only flipped ones differ.
        observations[rows] += changed - plain
        return ObservationBatch(
            observations=observations,
            blueprint_indices=situation.observations.blueprint_indices,
        )

    def _observed(self, shown: Sequence[Shown], feedback: Sequence[ActionFeedback]) -> Tensor:
        signals, reports = [item[0] for item in shown], [item[1] for item in shown]
        return self.extractor.observe(signals, reports, feedback).observations


def _can_be_judged(env: EnvEvidence) -> bool:
    """Return whether the env has a measured seed that is not permanent yet."""
    return any(
        report.contribution_pp is not None and report.stage is not Stage.FOSSILIZED
        for report in env.reports
    )


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
        num_sabotaged=len(sabotaged),
        num_intact=len(intact),
        pruned_sabotaged=_share(sabotaged),
        pruned_intact=_share(intact),
        difference=_difference(pruned[True], pruned[False]),
    )


def _is_pruned(done: EvaluationRound, env_id: int, setup: RunSetup, first_step: int) -> bool | None:
    """Return whether an env's target was pruned in time; None if it never had a target."""
    for step, evidence in enumerate(done.steps):
        env = evidence.envs[env_id]
        if env is None or step < first_step:
            continue
        target = target_of(env.reports, setup.worker.rules)
        if target is not None:
            return any(
                row.op == Op.PRUNE.name.lower() and row.slot == target
                for row in done.actions[env_id]
                if step <= row.step < step + WINDOW
            )
    return None


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
