"""A policy that is asked for every decision what it would do if the evidence were different."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec
import torch
from torch import Tensor

from esper.leyline.actions import Op
from esper.leyline.messages import EnvEvidence
from esper.leyline.reports import SeedReport
from esper.leyline.signals import TrainingSignals
from esper.leyline.stages import Stage
from esper.simic.training.assembly.run_setup import RunSetup
from esper.simic.training.policy_controller import PolicyController, masks_on
from esper.tamiyo.controllers.protocol import Choice, Situation
from esper.tamiyo.features import ActionFeedback, FeatureExtractor, ObservationBatch

__all__ = ["FLIPS", "InspectedPolicy"]

Shown = tuple[TrainingSignals, tuple[SeedReport, ...]]
"""What an observation is made of: an env's signals and the reports of its seeds."""


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
        is_judged = [env is not None and _has_measured_seed(env) for env in situation.envs]
        # Where no seed may be pruned, evidence against one can change nothing.
        rows = torch.tensor(is_judged) & situation.masks.op[:, Op.PRUNE].cpu()
        if rows.any():
            self._note(situation, rows)
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
        decision = self.agent.decide(obs, blueprints, masks, self.lstm_state, uniforms=None)
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


def _has_measured_seed(env: EnvEvidence) -> bool:
    """Return whether the env has a measured seed that is not permanent yet."""
    return any(
        report.contribution_pp is not None and report.stage is not Stage.FOSSILIZED
        for report in env.reports
    )
