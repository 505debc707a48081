"""The envs of a worker: which share a fence, and what is known of one that has no batches."""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from tests.tolaria.test_engine import NUM_ENVS, NotingWork, shared_batches

from esper.leyline.workers import Build, Train
from esper.tolaria import worker
from esper.tolaria.fences import RecordingFence
from esper.tolaria.pulse import Pulse
from esper.tolaria.stopping import StopFlag
from esper.tolaria.worker import Worker, lane_fences

WAIT_S = 20.0
SILENT_S = 0.5
"""Ten times as long as a lane that waits for a batch is ever silent."""

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


class StuckSource:
    """Batches of which the second is never made, until a test allows it."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()

    def __call__(self, round_index: int, step: int) -> Iterator[list[str]]:
        batches = shared_batches(round_index, step)
        yield list(next(batches))
        self.may_go_on.wait(WAIT_S)
        yield from map(list, batches)


def wait_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)


@pytest.mark.parametrize(("num_lanes", "has_feeder"), [(1, False), (1, True), (2, True)])
def test_a_batch_that_is_never_made_is_seen_from_outside_and_no_env_is_blamed(
    num_lanes: int, has_feeder: bool
) -> None:
    source, pulse = StuckSource(), Pulse.local(num_lanes)
    stuck = Worker(
        env_ids=range(NUM_ENVS),
        num_lanes=num_lanes,
        work=NotingWork(),
        batches=source,
        stop=StopFlag(),
        has_feeder=has_feeder,
        pulse=pulse,
    )
    stuck.submit(Build(round=0))
    trained = stuck.submit(Train(step=0))
    try:
        wait_until(lambda: max(beat.silent_s for beat in pulse.read()) > SILENT_S)
        assert all(beat.env_id is None for beat in pulse.read())
    finally:
        source.may_go_on.set()
    trained.result(WAIT_S)
    stuck.close()


@pytest.mark.parametrize("has_feeder", [False, True])
def test_time_without_a_batch_is_measured_and_reported_once(
    has_feeder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Read before and after each of two batches and the end of the stream, by the lane alone.
    clock = iter([0.0, 2.0, 5.0, 5.5, 9.0, 9.25, 100.0, 100.0])
    monkeypatch.setattr(
        worker, "time", SimpleNamespace(perf_counter=clock.__next__, thread_time=time.thread_time)
    )
    passes = {0: [["a"], ["b"]], 1: []}
    lone = Worker(
        env_ids=[0],
        num_lanes=1,
        work=NotingWork(),
        batches=lambda _, step: passes[step],
        stop=StopFlag(),
        has_feeder=has_feeder,
    )
    lone.submit(Build(round=0))

    waited = [lone.submit(Train(step=step)).result(WAIT_S).costs.data_wait_s for step in (0, 1)]

    assert waited == [2.0 + 0.5 + 0.25, 0.0]
    lone.close()
