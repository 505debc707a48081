"""Diagnostics of a run: layer gradients and observation statistics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from esper.leyline.payloads import LayerGradient, ObservationStats, PPOUpdateCompleted
from esper.simic.normalizers import OBSERVATION_CLIP
from esper.simic.telemetry.gradients import materialize_facts
from esper.simic.training.policy_controller import PolicyController
from esper.tamiyo.features import BASE_FEATURES

__all__ = ["RunDiagnostics"]

HOST_FEATURES = 13
"""Base features that describe the host; the others describe its context."""
OUTLIER_SIGMA = 3.0
NEAR_CLIP = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDiagnostics:
    """Diagnostics of one run; most are empty for a controller that does not learn."""

    learner: PolicyController | None
    collect_layers: Callable[[nn.Module], tuple[LayerGradient, ...]]
    check_stability: Callable[[Mapping[str, float | None]], tuple[str, ...]]

    def layer_gradients(self) -> tuple[LayerGradient, ...]:
        """Return the policy's gradients layer by layer."""
        return () if self.learner is None else self.collect_layers(self.learner.agent.network)

    def unstable(self, update: PPOUpdateCompleted) -> tuple[str, ...]:
        """Return the names of an update's metrics that are not finite."""
        values = {name: getattr(update, name) for name in update.__struct_fields__}
        numbers = {name: value for name, value in values.items() if isinstance(value, float)}
        return self.check_stability(numbers)

    def observation_stats(self) -> ObservationStats | None:
        """Return statistics of the policy's last observations, after normalisation."""
        if self.learner is None or self.learner.last_observation is None:
            return None
        obs = self.learner.last_observation.double()
        host, rest = obs[:, :HOST_FEATURES], obs[:, HOST_FEATURES:]
        num_context = BASE_FEATURES - HOST_FEATURES
        parts = (host, rest[:, :num_context], rest[:, num_context:])
        size = obs.abs()
        normalizer = self.learner.obs_normalizer
        facts = torch.stack(
            [
                *(figure for part in parts for figure in (part.mean(), part.std(correction=0))),
                (size > OUTLIER_SIGMA).double().mean(),
                (size >= NEAR_CLIP * OBSERVATION_CLIP).double().mean(),
                (size >= OBSERVATION_CLIP).double().mean(),
                obs.isnan().double().sum(),
                obs.isinf().double().sum(),
                normalizer.mean.abs().mean() + (normalizer.scale - 1).abs().mean(),
            ]
        )
        return _stats_of(materialize_facts(facts))


def _stats_of(facts: list[float]) -> ObservationStats:
    return ObservationStats(
        host_mean=facts[0],
        host_std=facts[1],
        context_mean=facts[2],
        context_std=facts[3],
        slots_mean=facts[4],
        slots_std=facts[5],
        outlier_fraction=facts[6],
        near_clip_fraction=facts[7],
        clip_fraction=facts[8],
        nan_count=int(facts[9]),
        inf_count=int(facts[10]),
        normalization_drift=facts[11],
    )
