"""The public entry point: puts engine, control, trainer and hub together and runs a job.

The names that tests and users may replace (`get_hub`, `RewardNormalizer`, `SharedBatchIterator`,
`PPOAgent`, `torch_amp`, `collect_per_layer_gradients`, `check_numerical_stability`) are looked up
here, when a run is put together.
"""

import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import torch
from torch import amp as torch_amp

from esper.leyline.config import AmpDtype, Job
from esper.leyline.legality import ActionRules
from esper.leyline.reports import BatchSummary
from esper.leyline.streams import StreamPurpose, stream_seed
from esper.leyline.tasks import TaskKind, TaskSpec
from esper.nissa.hub import Hub, TelemetryHub, get_hub
from esper.runtime.batches import SharedBatchIterator, batch_size_for, is_augmented
from esper.runtime.datasets import Part, TensorDataset
from esper.runtime.tasks import registered_task
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.agent.ppo_config import ppo_config_from
from esper.simic.normalizers import ObservationNormalizer, RewardNormalizer
from esper.simic.rewards.scheme import scheme_of
from esper.simic.seed_management import calculate_entropy_anneal_steps
from esper.simic.telemetry.gradients import (
    check_numerical_stability,
    collect_per_layer_gradients,
)
