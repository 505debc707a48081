"""Whatever a crash leaves on the disk opens as a state that the run has been in."""

from pathlib import Path

import pytest
from tools.soak.traces import Trace, check_all, record_run

STRIDE = 10


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return record_run(tmp_path_factory.mktemp("trace"))


def test_every_crash_opens_as_a_state_of_the_run(trace: Trace, tmp_path: Path) -> None:
    assert check_all(tmp_path, trace, STRIDE) > len(trace.operations) / STRIDE


def test_renaming_what_was_not_forced_to_the_disk_is_noticed(trace: Trace, tmp_path: Path) -> None:
    operations = [item for item in trace.operations if item.name != "fsync"]
    with pytest.raises(Exception, match=r"checkpoint|ahead of its log"):
        check_all(tmp_path, trace._replace(operations=operations), 1)
