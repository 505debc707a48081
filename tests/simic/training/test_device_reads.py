"""A whole run, watched on every lane and the control thread: what crosses to the host, and when."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.simic.training.syncs import counted_reads

from esper.leyline.jobs import merge_job
from esper.runtime.tasks import all_tasks
from esper.simic.training import vectorized
from esper.simic.training.assembly import control_assembly, worker_assembly
from esper.simic.training.control import Control
from esper.simic.training.env_work import TrainingWork

NUM_ENVS, NUM_STEPS = 2, 3
LANE_CALLS = ("begin_train", "train_batch", "finish_train", "validate", "apply")
CONTROL_CALLS = ("decide", "record")

Reads = dict[str, list[dict[str, int]]]


def watched(base: type, names: tuple[str, ...], reads: Reads, threads: set[str]) -> type:
    """Return the class with some of its methods counted, call by call."""
    lock = threading.Lock()

    def counting(name: str) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any) -> Any:
            with counted_reads() as seen:
                answer = getattr(base, name)(self, *arguments)
            with lock:
                reads.setdefault(name, []).append(dict(seen))
                threads.add(threading.current_thread().name)
            return answer

        return call

    return type(base.__name__, (base,), {name: counting(name) for name in names})


@pytest.fixture(scope="module")
def reads(tmp_path_factory: pytest.TempPathFactory) -> Reads:
    directory: Path = tmp_path_factory.mktemp("runs")
    found: Reads = {}
    threads: set[str] = set()
    training = {"task": "digits", "n_episodes": 1, "n_envs": NUM_ENVS, "max_epochs": NUM_STEPS}
    settings = {"training": training, "run": {"telemetry_dir": str(directory), "lanes": 2}}
    job, _ = merge_job(("test", settings), tasks=all_tasks())
    with pytest.MonkeyPatch.context() as patch:
        work = watched(TrainingWork, LANE_CALLS, found, threads)
        control = watched(Control, CONTROL_CALLS, found, threads)
        patch.setattr(worker_assembly, "TrainingWork", work)
        patch.setattr(control_assembly, "Control", control)
        vectorized.run_job(job)
    assert threading.current_thread().name not in threads
    assert len(threads) == 3
    return found


@pytest.mark.parametrize("name", ["begin_train", "train_batch", "apply"])
def test_lanes_read_nothing_while_they_train_and_act(reads: Reads, name: str) -> None:
    assert reads[name]
    assert all(seen == {} for seen in reads[name])


def test_a_lane_reads_twice_per_train_pass_and_once_per_validation(reads: Reads) -> None:
    assert reads["finish_train"] == [{"tolist": 2}] * NUM_ENVS * NUM_STEPS
    assert reads["validate"] == [{"tolist": 1}] * NUM_ENVS * NUM_STEPS


def test_actions_cross_once_per_step_and_everything_about_them_once(reads: Reads) -> None:
    # What is hashed for the causal log is built on the host and crosses nothing.
    crossing = [
        {kind: num for kind, num in seen.items() if kind != "numpy"} for seen in reads["decide"]
    ]
    assert crossing == [{"tolist": 2}] * NUM_STEPS


def test_recording_a_step_reads_nothing_back(reads: Reads) -> None:
    assert reads["record"] == [{}] * NUM_STEPS
