"""Norms that forget: the batch's statistics for a while, and the running ones as they were."""

import copy

import pytest
import torch
from tests.kasmina.tools import has_same_state, normal
from torch import nn

from esper.kasmina.hosts.statistics import batch_norms, batch_statistics


def network() -> nn.Module:
    own = nn.BatchNorm2d(3, affine=False, track_running_stats=False)
    return nn.Sequential(nn.BatchNorm2d(3), nn.GroupNorm(1, 3), own)


def test_only_norms_with_running_statistics_are_found() -> None:
    module = network()

    assert batch_norms(module) == (module.get_submodule("0"),)


@pytest.mark.parametrize("is_training", [True, False])
def test_statistics_of_the_batch_are_used_and_not_kept(is_training: bool) -> None:
    module = network().train(is_training)
    before = copy.deepcopy(module)
    x = 5 + 3 * normal(6, 3, 4, 4)

    with batch_statistics(batch_norms(module)):
        normalised = module[0](x)

    mean, std = x.mean(dim=(0, 2, 3)), x.std(dim=(0, 2, 3), correction=0)
    expected = (x - mean[:, None, None]) / std[:, None, None]
    torch.testing.assert_close(normalised, expected, atol=1e-4, rtol=1e-4)
    assert has_same_state(module, before)
    assert [part.training for part in module.modules()] == [is_training] * 4
    assert torch.equal(module(x), before(x))


def test_norms_are_restored_when_the_block_fails() -> None:
    module = network().eval()

    with pytest.raises(ValueError, match="channel"), batch_statistics(batch_norms(module)):
        module[0](torch.zeros(1, 3, 1, 1))

    assert not module[0].training
    assert batch_norms(module)
