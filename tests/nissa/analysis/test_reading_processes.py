"""Tasks in processes of their own: the same results in order, refusals, and a child that fails."""

from pathlib import Path

import msgspec
import pytest
from tests.nissa.fake_run import FakeRun

from esper.leyline.errors import ContractError, UsageError
from esper.nissa.analysis import reading_processes
from esper.nissa.analysis.counting import CountBy, CountTask, Tally, count_part
from esper.nissa.analysis.reading_child import carry_out
from esper.nissa.analysis.reading_processes import run_tasks, started
from esper.nissa.analysis.run_profile import Scan, ScanTask, scan_log


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("runs")
    runs = (FakeRun(num_rounds=1), FakeRun(num_rounds=2, run_id="1"))
    return [str(run.write(directory) / "events.jsonl") for run in runs]


def test_results_are_those_of_this_process_in_order(logs: list[str]) -> None:
    counts = [CountTask(path=path, by=CountBy.TYPE) for path in logs]
    assert run_tasks(counts, Tally) == [count_part(task) for task in counts]
    scans = [ScanTask(path=path, with_keys=True) for path in logs]
    assert run_tasks(scans, Scan) == [scan_log(task) for task in scans]


def test_kind_of_a_task_is_known_from_its_tag(logs: list[str]) -> None:
    for task, kind in (
        (CountTask(path=logs[0], by=CountBy.TYPE), Tally),
        (ScanTask(path=logs[0], with_keys=False), Scan),
    ):
        assert type(carry_out(msgspec.json.encode(task))) is kind


def test_refusal_of_a_child_is_raised_here(tmp_path: Path) -> None:
    missing = CountTask(path=str(tmp_path / "nowhere.jsonl"), by=CountBy.TYPE)
    with pytest.raises(UsageError, match=r"nowhere\.jsonl"):
        run_tasks([missing], Tally)


def test_child_that_ends_is_named_with_its_code(
    logs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_processes, "_CHILD", "esper.version")
    with (
        started(CountTask(path=logs[0], by=CountBy.TYPE), Tally) as result,
        pytest.raises(ContractError, match="ended with code 0"),
    ):
        result()
