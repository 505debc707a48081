"""Torch traces: which steps they hold, whose work is in them, and where they are written."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.builders.tiny_runs import tiny_run
from tests.builders.tiny_tasks import TINY
from tests.simic.training.runs import last_checkpoint, lines_of, weights_digest

from esper.leyline.config import ProfilerConfig
from esper.leyline.errors import ForeignFileError, RunFailedError, UsageError
from esper.simic.telemetry.traces import StepTracer, prepare_tracing
from esper.simic.training.policy_controller import PolicyController

STEPS = {"torch": True, "torch_wait": 1, "torch_warmup": 1, "torch_active": 2, "torch_repeat": 1}


def spans_of(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds of four steps with two envs, of which the third and fourth step are traced."""
    profiler = {**STEPS, "torch_summary": True}
    result = tiny_run(
        tmp_path_factory.mktemp("traced"), task=TINY, run={"lanes": 2, "profiler": profiler}
    )
    assert result.traces_dir == result.run_dir / "profiler_traces"
    return result.run_dir


def test_lanes_and_control_are_in_a_trace_each_on_its_thread(traced: Path) -> None:
    (path,) = traced.glob("profiler_traces/*.json")
    spans = spans_of(path)
    threads = {span["name"]: span["tid"] for span in spans}
    named = ["lane-0: train", "lane-1: train", "control: decide", "feeder: feed"]
    assert len({threads[name] for name in named}) == len(named)
    for name in ("lane-0: train", "lane-1: train"):
        computed = {span["name"] for span in spans if span["tid"] == threads[name]}
        assert {"aten::conv2d", "aten::convolution_backward"} <= computed
    decided = {span["name"] for span in spans if span["tid"] == threads["control: decide"]}
    assert "aten::lstm" in decided or "aten::linear" in decided


def test_a_trace_holds_the_steps_of_its_schedule_and_is_named_after_the_last(traced: Path) -> None:
    (path,) = traced.glob("profiler_traces/*.json")
    assert path.name == "round-000000-step-000003.json"
    names = [span["name"] for span in spans_of(path)]
    assert names.count("lane-0: train") == STEPS["torch_active"]


def test_a_summary_lists_what_the_steps_cost(traced: Path) -> None:
    (path,) = traced.glob("profiler_traces/*.txt")
    assert "aten::convolution_backward" in path.read_text()


def test_tracing_changes_neither_weights_nor_events(traced: Path, tmp_path: Path) -> None:
    plain = tiny_run(tmp_path, task=TINY, run={"lanes": 2}).run_dir

    assert weights_digest(last_checkpoint(traced)) == weights_digest(last_checkpoint(plain))
    assert lines_of(traced) == lines_of(plain)


def test_traces_repeat_until_the_run_ends_where_a_directory_says(tmp_path: Path) -> None:
    where = tmp_path / "elsewhere" / "traces"
    profiler = {**STEPS, "torch_wait": 0, "torch_active": 1, "torch_repeat": 0}

    result = tiny_run(tmp_path / "runs", run={"profiler": {**profiler, "torch_dir": str(where)}})

    assert result.traces_dir == where
    # Every second of eight steps; what is under way at the end is written as far as it goes.
    assert len(list(where.iterdir())) == 4
    assert not (result.run_dir / "profiler_traces").exists()


def test_a_trace_under_way_is_written_when_the_run_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: PolicyController, *_: object) -> None:
        raise RunFailedError("no lesson today")

    monkeypatch.setattr(PolicyController, "learn", broken)
    profiler = {**STEPS, "torch_wait": 0, "torch_active": 50, "torch_with_stack": True}

    with pytest.raises(RunFailedError, match="no lesson today"):
        tiny_run(tmp_path, run={"profiler": profiler})

    (path,) = tmp_path.glob("*/profiler_traces/*.json")
    assert "control: learn" in {span["name"] for span in spans_of(path)}


def test_a_place_that_cannot_be_written_is_reported_before_a_run_exists(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    profiler = {**STEPS, "torch_dir": str(tmp_path / "file" / "traces")}

    with pytest.raises(UsageError, match="--torch-profiler-dir"):
        tiny_run(tmp_path / "runs", run={"profiler": profiler})

    assert not (tmp_path / "runs").exists()


@pytest.mark.anyio
@pytest.mark.parametrize("torch_dir", ["traces", "traces/of/torch", "./traces"])
async def test_traces_are_not_written_through_a_link(torch_dir: str, tmp_path: Path) -> None:
    run_dir, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run_dir.mkdir()
    elsewhere.mkdir()
    (run_dir / "traces").symlink_to(elsewhere)
    config = ProfilerConfig(torch=True, torch_wait=0, torch_warmup=1, torch_dir=torch_dir)
    tracer = StepTracer(config, run_dir / torch_dir)
    await tracer.start()
    await tracer.finish_step(0, 0)
    with pytest.raises(ForeignFileError, match="traces: is a symbolic link"):
        await tracer.stop()
    assert list(elsewhere.iterdir()) == []


@pytest.mark.anyio
async def test_a_tracer_without_a_directory_does_nothing() -> None:
    num_threads = threading.active_count()
    prepare_tracing(ProfilerConfig())
    tracer = StepTracer(ProfilerConfig(), None)
    await tracer.start()
    await tracer.finish_step(0, 0)
    assert threading.active_count() == num_threads
    await tracer.stop()
    assert tracer.num_traces == 0
