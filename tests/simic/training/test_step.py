"""One step of all envs: the order of its calls, and the moment at which networks can be read."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from esper.simic.telemetry.phases import PhaseProfiler
from esper.simic.training.step import ControlThread, run_step

pytestmark = pytest.mark.anyio


@dataclass
class Recorder:
    """An engine and a control that record the calls they get, and answer with their names."""

    calls: list[tuple[object, ...]] = field(default_factory=list)

    async def train_pass(self, step: int) -> None:
        self.calls.append(("train", step))

    async def validate_pass(self, step: int) -> str:
        self.calls.append(("validate", step))
        return "evidence"

    async def apply(self, decision: str) -> str:
        self.calls.append(("apply", decision))
        return "outcome"

    def decide(self, evidence: str) -> str:
        self.calls.append(("decide", evidence))
        return "decision"

    def record(self, *messages: str) -> str:
        self.calls.append(("record", *messages))
        return "record"

    async def inspect(self, evidence: str) -> None:
        self.calls.append(("inspect", evidence))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_step_passes_each_message_on_in_order() -> None:
    recorder, profiler = Recorder(), PhaseProfiler()
    both: Any = recorder
    control = ControlThread(both)
    try:
        done = await run_step(
            both, control, 3, profiler=profiler, after_validation=recorder.inspect
        )
    finally:
        control.close()

    assert recorder.calls == [
        ("train", 3),
        ("validate", 3),
        ("inspect", "evidence"),
        ("decide", "evidence"),
        ("apply", "decision"),
        ("record", "evidence", "decision", "outcome"),
    ]
    assert (done.evidence, done.decision) == ("evidence", "decision")
    assert (done.outcome, done.record) == ("outcome", "record")
    profile = profiler.drain()
    assert profile is not None
    phases = [item.phase for item in profile.phases]
    assert phases == ["train", "validate", "decide", "apply", "record"]


async def test_a_closed_control_thread_has_ended() -> None:
    control = ControlThread(Recorder())  # type: ignore[arg-type]
    await control.run(int)

    control.close()

    assert not control.lane._thread.is_alive()
