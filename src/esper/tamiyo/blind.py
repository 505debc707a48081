"""Observations for a blind policy: those of other envs, which say nothing about the own one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

from esper.leyline.reports import SeedReport
from esper.leyline.signals import TrainingSignals
from esper.leyline.streams import StreamPurpose, stream_seed
from esper.tamiyo.features import ActionFeedback, FeatureExtractor, ObservationBatch

__all__ = ["SwappedExtractor"]


@dataclass(eq=False, slots=True)
class SwappedExtractor(FeatureExtractor):
    """Shows every env the observation of another one, drawn anew in each step.

    Which ops are legal is still that of the env itself, as an illegal action cannot be carried out.
    """

    shows_other_envs: ClassVar[bool] = True
    seed: int = 0
    _rng: Random = field(init=False)

    def __post_init__(self) -> None:
        """Start the first round."""
        # No `super()`: a slotted dataclass is a new class, which zero-argument super() rejects.
        FeatureExtractor.__post_init__(self)
        self.begin_round(0)

    def begin_round(self, round_index: int) -> None:
        """Start the round's own stream, so that a resumed run swaps as one that never stopped."""
        source = stream_seed(self.seed, purpose=StreamPurpose.SWAP, round=round_index)
        self._rng = Random(source)

    def observe(
        self,
        signals: Sequence[TrainingSignals],
        reports_by_env: Sequence[Sequence[SeedReport]],
        feedback: Sequence[ActionFeedback],
    ) -> ObservationBatch:
        """Return the observations of all envs, rotated by a random number of rows."""
        seen = FeatureExtractor.observe(self, signals, reports_by_env, feedback)
        num_envs = len(signals)
        # No env sees itself; a single row has nothing to be swapped with.
        shift = self._rng.randrange(1, num_envs) if num_envs > 1 else 0
        return ObservationBatch(
            observations=seen.observations.roll(shift, 0),
            blueprint_indices=seen.blueprint_indices.roll(shift, 0),
        )
