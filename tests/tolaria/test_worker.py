"""The envs of a worker: which of them share a fence."""

import pytest
import torch

from esper.tolaria import worker
from esper.tolaria.fences import RecordingFence
from esper.tolaria.worker import lane_fences

GPU_0, GPU_1 = torch.device("cuda", 0), torch.device("cuda", 1)


def test_the_envs_of_a_lane_share_one_fence_per_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "build_fence", RecordingFence)
    devices = [GPU_0, GPU_0, GPU_1, GPU_1] * 3
    env_ids = range(1, 12)

    fences = lane_fences(devices, env_ids, 2)

    assert sorted(fences) == list(env_ids)
    assert all(fences[env_id].device == devices[env_id] for env_id in env_ids)
    lanes = [list(env_ids)[0::2], list(env_ids)[1::2]]
    for place, one in enumerate(env_ids):
        for other in list(env_ids)[place + 1 :]:
            is_shared = devices[one] == devices[other] and any(
                one in lane and other in lane for lane in lanes
            )
            assert (fences[one] is fences[other]) == is_shared
    assert len({id(fence) for fence in fences.values()}) == 4


def test_more_lanes_than_envs_give_one_fence_per_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "build_fence", RecordingFence)
    fences = lane_fences([GPU_0] * 2, [0, 1], 5)
    assert fences[0] is not fences[1]
