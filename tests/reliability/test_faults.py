"""What breaks in one env is named, contained, and leaves no trace in the others."""

import random
from pathlib import Path

import pytest
from tests.builders.tiny_tasks import TINY, TINY_LM
from tools.soak.faults import Kind, RunRecord, check_contained, kinds_for, random_fault, run_with


@pytest.fixture(scope="module", params=[TINY, TINY_LM])
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Plain":
    task: str = request.param
    return Plain(task, run_with(tmp_path_factory.mktemp("plain"), task, None))


class Plain:
    """A task, and the record of its run when nothing breaks."""

    def __init__(self, task: str, record: RunRecord) -> None:
        self.task = task
        self.record = record


NUM_KINDS = {TINY: len(Kind), TINY_LM: 5}
"""How many kinds of fault are tried: a sample where the task hardly matters."""


def test_every_kind_of_fault_is_contained_and_named(plain: Plain, tmp_path: Path) -> None:
    rng = random.Random(plain.task)
    kinds = list(kinds_for(plain.task))
    for kind in rng.sample(kinds, min(NUM_KINDS[plain.task], len(kinds))):
        fault = random_fault(rng, kind)
        check_contained(fault, run_with(tmp_path, plain.task, fault), plain.record)


def test_fault_that_is_not_reported_is_noticed(plain: Plain) -> None:
    fault = random_fault(random.Random(1), Kind.TRAIN_ERROR)
    with pytest.raises(AssertionError, match="0 events report it"):
        check_contained(fault, plain.record, plain.record)
