"""The batch size of a run does not depend on where its data reside."""

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.leyline.config import TrainingConfig
from esper.leyline.tasks import TASKS, BatchMode
from esper.runtime.batches import MIN_TRAIN_BATCHES, batch_size_for, is_augmented
from esper.runtime.datasets import Split, TensorDataset

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
