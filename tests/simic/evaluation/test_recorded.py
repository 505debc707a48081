"""Networks that are read from the log of a run."""

from pathlib import Path

import pytest
from tests.nissa.fake_run import FakeRun, write_run
from tests.simic.training.small_runs import LENIENT, small_run

from esper.leyline.errors import UnreadableFileError, UsageError
from esper.leyline.telemetry import EventType
from esper.simic.evaluation.recorded import last_recorded


def test_networks_are_those_of_the_last_round_in_env_order(tmp_path: Path) -> None:
    run = small_run(tmp_path, "periodic", max_epochs=9, n_episodes=2, lifecycle=LENIENT)

    found = last_recorded(run.directory)

    recorded = run.of(EventType.TOPOLOGY_MANIFEST_RECORDED)
    assert [(event.round, event.env_id) for event in recorded] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert found == tuple(event.data for event in recorded[2:])
    assert any(manifest.slots for manifest in found)


def test_log_without_a_recorded_network_is_refused(tmp_path: Path) -> None:
    run = small_run(tmp_path, "wait", max_epochs=1, telemetry={"level": "off"})

    with pytest.raises(UnreadableFileError, match="has no TOPOLOGY_MANIFEST_RECORDED"):
        last_recorded(run.directory)


def test_directory_of_several_runs_is_none_of_them(tmp_path: Path) -> None:
    for run_id in ("aaaa", "bbbb"):
        FakeRun(run_id=run_id).write(tmp_path)

    with pytest.raises(UsageError, match="contains 2 runs; name one of them"):
        last_recorded(tmp_path)


def test_damaged_record_is_refused(tmp_path: Path) -> None:
    lines = [
        line.replace(b'"host_params":1234,"total_params"', b'"host_params":"x","total_params"')
        for line in FakeRun().lines()
    ]
    write_run(tmp_path / "run", lines)

    with pytest.raises(UnreadableFileError, match="host_params"):
        last_recorded(tmp_path / "run")
