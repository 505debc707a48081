"""What a worker is prepared with."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.simic.training.worker_runs import digits_job

from esper.runtime.batches import SharedBatchIterator
from esper.runtime.datasets import Part
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.worker_assembly import build_work
from esper.simic.training.assembly.worker_setup import prepare_worker
from esper.tolaria.stopping import StopFlag


def test_the_test_split_is_cut_once_for_all_envs_steps_and_lanes(tmp_path: Any) -> None:
    built: list[Part] = []

    class Counted(SharedBatchIterator):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            built.append(options.get("part", Part.TRAIN))
            super().__init__(*arguments, **options)

    setup = prepare_worker(digits_job(tmp_path), StopFlag(), parts=RunParts(batch_iterator=Counted))
    testing = build_work(setup).testing
    assert testing is not None
    assert Part.TEST not in built

    with ThreadPoolExecutor(4) as lanes:
        passes = list(lanes.map(lambda _: [shares[0] for shares in testing(0)], range(8)))

    assert built.count(Part.TEST) == 1
    first = [batch.targets for batch in passes[0]]
    assert torch.equal(torch.cat(first), setup.dataset.test.targets)


@pytest.mark.parametrize("env_ids", [(0,), (1, 3)])
def test_a_worker_of_some_envs_has_batches_for_these_only(
    env_ids: tuple[int, ...], tmp_path: Any
) -> None:
    served: list[object] = []

    class Noting(SharedBatchIterator):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            served.append(options["env_ids"])
            super().__init__(*arguments, **options)

    prepare_worker(
        digits_job(tmp_path), StopFlag(), parts=RunParts(batch_iterator=Noting), env_ids=env_ids
    )
    assert served == [env_ids, env_ids]
