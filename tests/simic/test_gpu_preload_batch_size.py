"""The batch size of a run does not depend on where its data reside."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simic.training.small_runs import NUM_TRAIN, TASK

from esper.leyline.config import TrainingConfig
from esper.leyline.payloads import Throughput
from esper.leyline.tasks import TASKS, BatchMode
from esper.leyline.telemetry import EventType
from esper.nissa.bus.recording_hub import RecordingHub
from esper.runtime.batches import (
    MIN_TRAIN_BATCHES,
    SharedBatchIterator,
    batch_size_for,
    is_augmented,
)
from esper.runtime.datasets import Part, Split, TensorDataset
from esper.simic.training import vectorized

preloads = pytest.mark.parametrize("gpu_preload", [False, True])


@preloads
@pytest.mark.parametrize("task", TASKS)
def test_explicit_batch_size_wins(task: str, gpu_preload: bool) -> None:
    config = TrainingConfig(task=task, batch_size_per_env=96, gpu_preload=gpu_preload, n_envs=128)

    assert batch_size_for(TASKS[task], config, num_train=45_000) == 96


@preloads
@pytest.mark.parametrize("task", TASKS)
def test_the_tasks_batch_size_is_the_default(task: str, gpu_preload: bool) -> None:
    config = TrainingConfig(task=task, gpu_preload=gpu_preload)

    assert batch_size_for(TASKS[task], config, num_train=45_000) == TASKS[task].batch_size


@given(st.integers(1, 300), st.integers(1, 60_000), st.sampled_from(BatchMode), st.booleans())
@settings(max_examples=200)
def test_default_batch_leaves_a_pass_enough_of_them(
    n_envs: int, num_train: int, mode: BatchMode, gpu_preload: bool
) -> None:
    task = TASKS["cifar_baseline"]
    config = TrainingConfig(n_envs=n_envs, batch_mode=mode, gpu_preload=gpu_preload)
    num_shares = n_envs if mode is BatchMode.SPLIT else 1

    size = batch_size_for(task, config, num_train)

    assert 1 <= size <= task.batch_size
    if num_train >= num_shares * MIN_TRAIN_BATCHES:
        assert num_train // (size * num_shares) >= MIN_TRAIN_BATCHES
    # It is the largest such size.
    assert size == task.batch_size or num_train // ((size + 1) * num_shares) < MIN_TRAIN_BATCHES


def test_many_envs_on_a_small_set_still_train() -> None:
    config = TrainingConfig(n_envs=128)

    assert batch_size_for(TASKS["cifar_baseline"], config, num_train=45_000) == 43


@pytest.mark.parametrize(
    ("gpu_preload", "gpu_preload_augment", "expected"),
    [(False, False, True), (False, True, True), (True, False, False), (True, True, True)],
)
def test_preloaded_images_are_augmented_only_if_asked(
    gpu_preload: bool, gpu_preload_augment: bool, expected: bool
) -> None:
    split = Split(inputs=torch.zeros(1, 3, 4, 4), targets=torch.zeros(1))
    config = TrainingConfig(gpu_preload=gpu_preload, gpu_preload_augment=gpu_preload_augment)
    images = TensorDataset(train=split, val=split, test=split, crop_padding=4)
    plain = TensorDataset(train=split, val=split, test=split)

    assert is_augmented(images, config) is expected
    assert is_augmented(plain, config) is False


def test_configuration_has_no_batch_size_of_its_own() -> None:
    defaults = msgspec.structs.asdict(TrainingConfig())

    assert defaults["batch_size_per_env"] is None


def run_recorded(
    directory: Path, monkeypatch: pytest.MonkeyPatch, **arguments: Any
) -> tuple[RecordingHub, set[int]]:
    """Train with a hub of the test's own; return it and the sizes of the training batches."""
    hub, sizes = RecordingHub(), set[int]()

    class Noting(SharedBatchIterator):
        def __init__(self, *args: Any, part: Part = Part.TRAIN, **kwargs: Any) -> None:
            super().__init__(*args, part=part, **kwargs)
            self.part = part

        def batches(self, *, round: int, step: int) -> Iterator[list[Any]]:
            for shares in super().batches(round=round, step=step):
                if self.part is Part.TRAIN:
                    sizes.update(len(share.targets) for share in shares)
                yield shares

    monkeypatch.setattr(vectorized, "get_hub", lambda: hub)
    monkeypatch.setattr(vectorized, "SharedBatchIterator", Noting)
    vectorized.train_ppo_vectorized(
        task=TASK, n_episodes=1, n_envs=2, max_epochs=2, telemetry_dir=directory, **arguments
    )
    return hub, sizes


@pytest.mark.parametrize("batch_size", [None, 8, 5])
def test_preloading_changes_neither_batches_nor_events_of_a_run(
    batch_size: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, sizes = run_recorded(
        tmp_path / "plain", monkeypatch, batch_size_per_env=batch_size, gpu_preload=False
    )
    preloaded, preloaded_sizes = run_recorded(
        tmp_path / "preloaded", monkeypatch, batch_size_per_env=batch_size, gpu_preload=True
    )

    # So small a set leaves a pass its least number of batches.
    expected = batch_size or NUM_TRAIN // MIN_TRAIN_BATCHES
    assert sizes == preloaded_sizes == {expected}
    for hub in (plain, preloaded):
        (event,) = hub.of_type(EventType.THROUGHPUT)
        assert isinstance(event.data, Throughput)
        assert event.data.train_samples == 2 * 2 * (NUM_TRAIN // expected * expected)
    losses = [
        [event.data.train_loss for event in hub.of_type(EventType.EPOCH_COMPLETED)]
        for hub in (plain, preloaded)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 4
