"""The parts of a run that a caller may replace."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import amp as torch_amp
from torch import nn

from esper.leyline.payloads import LayerGradient
from esper.nissa.bus.hub import Hub, get_hub
from esper.runtime.batches import SharedBatchIterator
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.normalizers import RewardNormalizer
from esper.simic.telemetry.gradients import (
    check_numerical_stability,
    collect_per_layer_gradients,
)

__all__ = ["RunParts"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunParts:
    """What a run is put together from; the defaults are Esper's own.

    `vectorized` passes the names of its module, so that replacing a name there replaces the part.
    """

    get_hub: Callable[[], Hub] = get_hub
    reward_normalizer: type[RewardNormalizer] = RewardNormalizer
    batch_iterator: type[SharedBatchIterator] = SharedBatchIterator
    agent: type[PPOAgent] = PPOAgent
    autocast: Callable[..., AbstractContextManager[Any]] = torch_amp.autocast
    collect_layers: Callable[[nn.Module], tuple[LayerGradient, ...]] = collect_per_layer_gradients
    check_stability: Callable[[Mapping[str, float | None]], tuple[str, ...]] = (
        check_numerical_stability
    )
