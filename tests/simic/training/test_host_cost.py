"""The cost of a bare host, against torch's own counter."""

from pathlib import Path

import msgspec
import pytest
from tests.builders.tiny_runs import tiny_job
from tests.builders.tiny_tasks import TINY_LM, register_tiny_tasks

from esper.leyline.config import Job
from esper.runtime.batches import Batch
from esper.simic.evaluation.flops import FlopMeter
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import prepare_run
from esper.simic.training.assembly.worker_assembly import env_context
from esper.simic.training.assembly.worker_setup import WorkerSetup
from esper.simic.training.host_cost import host_flop_per_sample
from esper.tolaria.stopping import StopFlag


def setup_of(job: Job) -> WorkerSetup:
    return prepare_run(job, "wait", None, StopFlag(), parts=RunParts()).worker


def with_task(job: Job, task: str) -> Job:
    training = msgspec.structs.replace(
        job.training, task=task, slots=("r0c0",), batch_size_per_env=None
    )
    return msgspec.structs.replace(job, training=training)


@pytest.mark.parametrize(("task", "tolerance"), [("digits", 0.02), (TINY_LM, 0.25)])
def test_estimate_is_close_to_what_torch_counts(
    tmp_path: Path, task: str, tolerance: float
) -> None:
    register_tiny_tasks()
    setup = setup_of(with_task(tiny_job(tmp_path), task))
    inputs, targets = next(iter(setup.val_batches.batches(round=0, step=0)))[0]
    meter = FlopMeter(context=env_context(setup), sample=Batch(inputs[:2], targets[:2]))

    assert host_flop_per_sample(setup) == pytest.approx(meter.per_target(()).train, rel=tolerance)


def test_probe_has_no_host_to_count(tmp_path: Path) -> None:
    assert host_flop_per_sample(setup_of(with_task(tiny_job(tmp_path), "probe:rent"))) is None
