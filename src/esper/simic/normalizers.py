"""Running statistics that normalise observations, rewards and values.

All three are frozen during a rollout and updated once per round. They are outside the subpackages
because control normalises observations, and the agent rewards and values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor

from esper.leyline.errors import ContractError

__all__ = [
    "OBSERVATION_CLIP",
    "REWARD_CLIP",
    "NormalizerState",
    "ObservationNormalizer",
    "RewardNormalizer",
    "ValueNormalizer",
]

OBSERVATION_CLIP: Final = 10.0
REWARD_CLIP: Final = 100.0
"""In deviations of returns: no reward gets there unless something is broken."""
VALUE_MOMENTUM: Final = 0.9
"""Returns change with the policy, so that the value scale follows the last rounds."""
VARIANCE_EPSILON: Final = 1e-4
MIN_FEATURE_VARIANCE: Final = 1e-10
"""A feature that varies less counts as constant: it is centred and not scaled."""
MIN_REWARD_SCALE: Final = 1e-8
MIN_SPREAD: Final = 0.25
"""Lower bound of the deviation of returns, as a fraction of their root mean square."""
MIN_VALUE_SAMPLES: Final = 32

NormalizerState: TypeAlias = dict[str, Tensor]
"""State dict of a normaliser; loadable with weights_only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Moments:
    count: Tensor
    mean: Tensor
    var: Tensor
    """Population variance."""

    def merged(self, other: "_Moments") -> "_Moments":
        """Return the moments of both samples combined."""
        count = (self.count + other.count).clamp_min(1)
        share = other.count / count
        return _Moments(
            count=self.count + other.count,
            mean=self.mean + share * (other.mean - self.mean),
            var=_joined_variance(self, other, share),
        )

    def moved_towards(self, other: "_Moments", weight: float) -> "_Moments":
        """Return the moments of a mixture in which the other sample has this weight."""
        return _Moments(
            count=self.count + other.count,
            mean=self.mean + weight * (other.mean - self.mean),
            var=_joined_variance(self, other, weight),
        )


def _joined_variance(one: _Moments, other: _Moments, share: Tensor | float) -> Tensor:
    between = share * (1 - share) * (other.mean - one.mean) ** 2
    return (1 - share) * one.var + share * other.var + between


def _moments_of(sample: Tensor, mask: Tensor) -> _Moments:
    """Return the moments of the masked values in float64, without a device synchronization."""
    # `where` rather than indexing: a boolean index has a size that the host would have to wait for.
    numbers = torch.where(mask, sample.double(), 0.0)
    count = mask.sum().double()
    mean = numbers.sum() / count.clamp_min(1)
    # Two passes: E[x^2] - E[x]^2 cancels when the mean is large.
    deviations = torch.where(mask, numbers - mean, 0.0)
    return _Moments(count=count, mean=mean, var=(deviations**2).sum() / count.clamp_min(1))


def _scalar_moments(device: torch.device | str) -> _Moments:
    zero = torch.zeros((), dtype=torch.float64, device=device)
    return _Moments(count=zero, mean=zero, var=zero)


def _state_of(moments: _Moments, num_rounds: int) -> NormalizerState:
    return {
        "count": moments.count.clone(),
        "mean": moments.mean.clone(),
        "var": moments.var.clone(),
        "num_rounds": torch.tensor(num_rounds),
    }


def _restored(moments: _Moments, state: Mapping[str, Tensor]) -> _Moments:
    for name in ("count", "mean", "var"):
        expected, got = getattr(moments, name), state[name]
        if got.shape != expected.shape:
            raise ContractError(
                f"normaliser: stored {name} has shape {tuple(got.shape)}, "
                f"this run's has {tuple(expected.shape)}; the feature layouts differ"
            )
    device = moments.mean.device
    return _Moments(
        count=state["count"].to(device, copy=True),
        mean=state["mean"].to(device, copy=True),
        var=state["var"].to(device, copy=True),
    )


class ObservationNormalizer:
    """Centres and scales each feature by the mean and variance of all observations so far.

    A round's moments are merged with those of the rounds before by Chan's formula, so that they
    equal the moments of the whole sample. Before the first round features pass unchanged.
    """

    def __init__(self, obs_dim: int, device: torch.device | str = "cpu") -> None:
        zeros = torch.zeros(obs_dim, dtype=torch.float64, device=device)
        count = torch.zeros((), dtype=torch.float64, device=device)
        self._moments = _Moments(count=count, mean=zeros, var=zeros.clone())
        self._num_rounds = 0

    @property
    def mean(self) -> Tensor:
        """Return the mean of each feature."""
        return self._moments.mean

    @property
    def scale(self) -> Tensor:
        """Return the standard deviation of each feature; 1 for a constant one."""
        var = self._moments.var
        return torch.where(var > MIN_FEATURE_VARIANCE, var, 1.0).sqrt()

    def normalize(self, obs: Tensor) -> Tensor:
        """Return normalised observations [..., D], clipped, in float32."""
        centred = (obs - self._moments.mean) / self.scale
        return centred.clamp(-OBSERVATION_CLIP, OBSERVATION_CLIP).float()

    def update(self, obs: Tensor) -> None:
        """Merge all raw observations [rows, D] of a round into the statistics."""
        sample = obs.double()
        if not bool(torch.isfinite(sample).all()):
            raise ContractError("observation normaliser: a raw observation is not finite")
        if len(sample):
            batch = _Moments(
                count=torch.tensor(float(len(sample)), dtype=torch.float64, device=obs.device),
                mean=sample.mean(0),
                var=sample.var(0, correction=0),
            )
            self._moments = self._moments.merged(batch)
        self._num_rounds += 1

    def state_dict(self) -> NormalizerState:
        """Return the state for a checkpoint."""
        return _state_of(self._moments, self._num_rounds)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the state from a checkpoint."""
        self._moments = _restored(self._moments, state)
        self._num_rounds = int(state["num_rounds"])


class RewardNormalizer:
    """Divides rewards by the deviation of discounted returns, without moving their zero.

    The deviation of single rewards would be wrong: it falls with the length of an episode that is
    paid at its end, so that a lone terminal reward would grow with the square root of the length.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._moments = _scalar_moments(device)
        self._num_rounds = 0

    @property
    def scale(self) -> Tensor:
        """Return the divisor of rewards; 1 while all returns are 0.

        Nearly constant returns have a deviation near 0, but must not become arbitrarily large.
        """
        var, mean = self._moments.var, self._moments.mean
        scale = torch.maximum(var, MIN_SPREAD**2 * (var + mean**2)).sqrt()
        return torch.where(scale > MIN_REWARD_SCALE, scale, 1.0)

    def normalize(self, rewards: Tensor) -> Tensor:
        """Return raw rewards divided by the scale, clipped, in float32."""
        return (rewards / self.scale).clamp(-REWARD_CLIP, REWARD_CLIP).float()

    def normalize_round(self, rewards: Tensor, returns: Tensor, is_paid: Tensor) -> Tensor:
        """Normalise a whole round [envs, steps], and update with its valid returns, in env order.

        The scale is that of the previous rounds, so that envs of a round do not affect each other.
        The first round has no previous one and is scaled by its own statistics: otherwise the first
        update would use unnormalised rewards.

        Args:
            rewards: raw rewards.
            returns: their discounted sums until the end of the segment.
            is_paid: which of the returns enter the statistics.
        """
        known = self._moments
        learned = known.merged(_moments_of(returns, is_paid))
        if self._num_rounds == 0:
            self._moments = learned
        normalized = self.normalize(rewards)
        self._moments = learned
        self._num_rounds += 1
        return normalized

    def state_dict(self) -> NormalizerState:
        """Return the state for a checkpoint."""
        return _state_of(self._moments, self._num_rounds)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the state from a checkpoint."""
        self._moments = _restored(self._moments, state)
        self._num_rounds = int(state["num_rounds"])


class ValueNormalizer:
    """Standardises returns to what the value head predicts, and converts its outputs back."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._moments = _scalar_moments(device)
        self._num_rounds = 0

    @property
    def scale(self) -> Tensor:
        """Return the scale of normalised values; 1 before there are enough returns."""
        scale = (self._moments.var + VARIANCE_EPSILON).sqrt()
        return torch.where(self._moments.count >= MIN_VALUE_SAMPLES, scale, 1.0)

    @property
    def mean(self) -> Tensor:
        """Return the centre of normalised values; 0 before there are enough returns."""
        return torch.where(self._moments.count >= MIN_VALUE_SAMPLES, self._moments.mean, 0.0)

    def normalize(self, returns: Tensor) -> Tensor:
        """Return targets for the value head."""
        return ((returns - self.mean) / self.scale).float()

    def denormalize(self, values: Tensor) -> Tensor:
        """Convert value head outputs back to the scale of returns."""
        return (values * self.scale + self.mean).float()

    def update(self, returns: Tensor, valid: Tensor) -> None:
        """Update with a round's returns: pooled at first, exponential averaging once enough."""
        batch = _moments_of(returns, valid)
        is_warm = self._moments.count >= MIN_VALUE_SAMPLES
        moved = self._moments.moved_towards(batch, 1 - VALUE_MOMENTUM)
        pooled = self._moments.merged(batch)
        self._moments = _Moments(
            # Counted on in both cases; it only decides when there are enough returns.
            count=pooled.count,
            mean=torch.where(is_warm, moved.mean, pooled.mean),
            var=torch.where(is_warm, moved.var, pooled.var),
        )
        self._num_rounds += 1

    def state_dict(self) -> NormalizerState:
        """Return the state for a checkpoint."""
        return _state_of(self._moments, self._num_rounds)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the state from a checkpoint."""
        self._moments = _restored(self._moments, state)
        self._num_rounds = int(state["num_rounds"])
