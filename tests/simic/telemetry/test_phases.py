"""The phase profiler: what it measures, and that it costs nothing when off."""

import pytest

from esper.simic.telemetry.phases import PhaseProfiler


def test_phases_are_reported_in_the_order_they_were_first_entered() -> None:
    profiler = PhaseProfiler()
    for name in ("train", "decide", "train"):
        with profiler.phase(name):
            pass

    phases = profiler.drain().phases

    assert [phase.phase for phase in phases] == ["train", "decide"]
    assert all(phase.wall_ms > 0 and phase.cpu_ms >= 0 for phase in phases)
    assert profiler.drain().phases == ()


def test_a_phase_that_raises_is_measured_and_closed() -> None:
    profiler = PhaseProfiler()
    with pytest.raises(ValueError, match="a fault"), profiler.phase("train"):
        raise ValueError("a fault")

    assert [phase.phase for phase in profiler.drain().phases] == ["train"]


def test_a_profiler_that_is_off_reports_nothing() -> None:
    profiler = PhaseProfiler(is_on=False)
    with profiler.phase("train"):
        pass

    assert profiler.drain() is None
