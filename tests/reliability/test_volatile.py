"""Whatever reaches the disk of names and data before a crash, the run can be resumed."""

from pathlib import Path

import pytest
from tools.soak.traces import Operation
from tools.soak.volatile import check_all, record_run_and_resume

STRIDE = 50


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Operation]]:
    return record_run_and_resume(tmp_path_factory.mktemp("recorded"))


def test_every_state_of_a_disk_with_volatile_names_opens(
    recorded: tuple[Path, list[Operation]], tmp_path: Path
) -> None:
    run_dir, operations = recorded
    assert check_all(tmp_path, run_dir, operations, STRIDE, 1) > len(operations) / STRIDE


def test_renames_before_the_cut_that_are_not_forced_to_disk_are_noticed(
    recorded: tuple[Path, list[Operation]], tmp_path: Path
) -> None:
    run_dir, operations = recorded
    place = next(
        index
        for index, item in enumerate(operations)
        if item.name == "rename" and item.target is not None and "redone-" in item.target.name
    )
    kept = [
        item
        for index, item in enumerate(operations)
        if index < place or item.name != "fsync_directory"
    ]
    end = next(index for index in range(place, len(kept)) if kept[index].name == "truncate") + 2
    with pytest.raises(Exception, match=r"ends with event|rounds, but its event"):
        check_all(tmp_path, run_dir, kept[:end], 1, 0, start=end - 3)
