"""The order of operations that a GPU would see: a step of two envs with two batches per pass."""

from dataclasses import dataclass, field
from functools import partial

import anyio
import torch
from tests.builders.steps import all_evidence, applied
from tests.simic.training.envs import IMAGES, SLOTS, World, dataset_of, world_of
from torch import Tensor

from esper.leyline.actions import ActionSpec
from esper.leyline.messages import StepDecision
from esper.leyline.tasks import BatchMode
from esper.runtime.batches import Batch, SharedBatchIterator
from esper.simic.training.parallel_env_state import ParallelEnvState
from esper.tolaria.engine import WorkerEngine
from esper.tolaria.fences import FenceCall, RecordingFence
from esper.tolaria.stopping import StopFlag
from esper.tolaria.worker import Worker

WAIT = ActionSpec(slot_id=SLOTS[0])
ELSEWHERE = torch.device("cpu", 0)
"""Another device than plain "cpu" as far as iterators can see."""

TRANSFERS = [
    "feeder: transfer",  # env 0, inputs
    "feeder: transfer",  # env 0, targets
    "feeder: transfer",  # env 1, inputs
    "feeder: transfer",  # env 1, targets
]


def batch_of(env: str, mode: str) -> list[str]:
    return [f"{env}: enter {mode}", f"{env}: await_transfers", f"{env}: keep 2", f"{env}: leave"]


TRAIN_BATCH = [*TRANSFERS, *batch_of("env 0", "training"), *batch_of("env 1", "training")]

GOLDEN = [
    # The train pass, batch first; one synchronisation per env at its end.
    *TRAIN_BATCH,
    *TRAIN_BATCH,
    "env 0: synchronize",
    "env 1: synchronize",
    # The validation pass: its batches are where they are needed already. The weights that the
    # governor has judged are copied behind the synchronisation.
    *batch_of("env 0", "inference"),
    *batch_of("env 0", "inference"),
    "env 0: synchronize",
    "env 0: enter training",
    "env 0: leave",
    *batch_of("env 1", "inference"),
    *batch_of("env 1", "inference"),
    "env 1: synchronize",
    "env 1: enter training",
    "env 1: leave",
    # The decisions.
    "env 0: enter training",
    "env 0: leave",
    "env 1: enter training",
    "env 1: leave",
]


@dataclass(eq=False)
class Log(list[FenceCall]):
    """Takes a fence's calls and writes them down where all fences do."""

    name: str
    lines: list[str] = field(default_factory=list)

    def append(self, call: FenceCall) -> None:
        self.lines.append(f"{self.name}: {call.operation} {call.detail}".rstrip())


def transfer(lines: list[str], tensor: Tensor, device: torch.device) -> Tensor:
    assert device == ELSEWHERE
    lines.append("feeder: transfer")
    return tensor


def watched_world() -> tuple[World, list[str]]:
    """Return two envs, and the list that everything asked of their fences goes to."""
    lines: list[str] = []
    fences = [RecordingFence(calls=Log(f"env {index}", lines)) for index in range(2)]
    world = world_of(n_envs=2, fences=fences, val_batch_size=11)
    world.train_batches = SharedBatchIterator(
        dataset_of(IMAGES),
        n_envs=2,
        batch_size_per_env=6,
        seed=1,
        mode=BatchMode.SPLIT,
        devices=[ELSEWHERE],
        transfer=partial(transfer, lines),
    )
    assert len(world.train_batches) == 2
    return world, lines


def test_step_of_two_envs_and_two_batches_asks_for_these_operations_in_this_order() -> None:
    world, lines = watched_world()
    world.wait()
    assert lines == GOLDEN


async def step_on_lanes(world: World, num_lanes: int) -> None:
    """Take the world's envs through one step on a real engine."""
    worker = Worker[ParallelEnvState, Batch](
        env_ids=range(2),
        num_lanes=num_lanes,
        work=world.work,
        batches=lambda round, step: world.train_batches.batches(round=round, step=step),
        stop=StopFlag(),
    )
    engine = WorkerEngine([worker], num_envs=2, is_queued_ahead=False)
    waiting = StepDecision(
        round=0,
        step=0,
        is_last_step=False,
        actions=(WAIT,) * 2,
        details=(None,) * 2,
        previous_rewards=(None,) * 2,
    )
    with anyio.fail_after(20):
        await engine.build_round(0)
        await all_evidence(engine, 0)
        await applied(engine, waiting)
        # Letting go of an env waits for its device once more.
        engine.close()


def test_lanes_ask_each_env_for_the_same_operations_behind_its_transfers() -> None:
    for num_lanes in (1, 2):
        world, lines = watched_world()
        anyio.run(step_on_lanes, world, num_lanes)
        for env in ("env 0", "env 1"):
            asked = [line for line in lines if line.startswith(env)]
            wanted = [line for line in GOLDEN if line.startswith(env)]
            assert asked == [*wanted, f"{env}: synchronize"]
            # All shares of a batch are on their way before any env asks for its own.
            awaited = [at for at, line in enumerate(lines) if line == f"{env}: await_transfers"]
            for num_batches, at in enumerate(awaited[:2], start=1):
                assert lines[:at].count("feeder: transfer") >= num_batches * len(TRANSFERS)
