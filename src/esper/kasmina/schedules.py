"""The learning rate of a host over the passes of an episode."""

import math
from collections.abc import Hashable
from dataclasses import dataclass

import torch

from esper.leyline.config import HostSchedule, LrCurve

__all__ = ["ScheduledOptimizer", "lr_factor"]


def lr_factor(
    schedule: HostSchedule, *, step: int, num_steps: int, steps_since_change: int | None
) -> float:
    """Return the factor of the learning rate in the pass of a step.

    Args:
        schedule: its settings.
        step: counts from 0.
        num_steps: the length of the episode.
        steps_since_change: passes since seeds began or ceased to change the output, 0 in the first
            one after it; None if none did.
    """
    factor = 1.0
    if schedule.curve is LrCurve.COSINE:
        factor = 0.5 * (1.0 + math.cos(math.pi * step / num_steps))
    factor *= _warmed(step, schedule.warmup_steps)
    if steps_since_change is not None:
        factor *= _warmed(steps_since_change, schedule.rewarmup_steps)
    return factor


def _warmed(num_done: int, num_steps: int) -> float:
    return min(1.0, (num_done + 1) / (num_steps + 1))


@dataclass(eq=False, kw_only=True, slots=True)
class ScheduledOptimizer:
    """Sets the learning rate of a host's optimizer before each pass."""

    optimizer: torch.optim.Optimizer
    schedule: HostSchedule
    lr: float
    num_steps: int
    _topology: Hashable = None
    _changed_at: int | None = None

    def begin_pass(self, step: int, topology: Hashable) -> None:
        """Set the learning rate of a step; `topology` is equal for equal sets of blended seeds."""
        if step > 0 and topology != self._topology:
            self._changed_at = step
        self._topology = topology
        factor = lr_factor(
            self.schedule,
            step=step,
            num_steps=self.num_steps,
            steps_since_change=None if self._changed_at is None else step - self._changed_at,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * factor
