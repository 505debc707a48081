"""The reporter: trends, escalation across a resume, and the tail of a round."""

import anyio
import pytest
from tests.builders.messages import batch_summary
from tests.simic.telemetry.updates import update
from tests.simic.training.builders import STEP_RULES, Play, make_control, wait_control

from esper.leyline.config import TelemetryConfig
from esper.leyline.errors import TelemetryLostError
from esper.leyline.payloads import KlSpikeDetected, LayerGradient
from esper.leyline.telemetry import EventType
from esper.nissa.bus.recording_hub import RecordingHub
from esper.simic.seed_management import Escalation
from esper.simic.telemetry.phases import PhaseProfiler
from esper.simic.training.checkpoints.run_state import RunState
from esper.simic.training.control import RoundResult
from esper.simic.training.reporter import Reporter, RoundFigures

TRENDS = (
    EventType.PLATEAU_DETECTED,
    EventType.DEGRADATION_DETECTED,
    EventType.IMPROVEMENT_DETECTED,
)


def reporter(hub: RecordingHub, **changes) -> Reporter:
    facts = {
        "hub": hub,
        "config": TelemetryConfig(),
        "plateau_threshold_pp": 0.5,
        "improvement_threshold_pp": 2.0,
        "step_rules": STEP_RULES,
        "profiler": PhaseProfiler(is_on=False),
    }
    return Reporter(**{**facts, **changes})


@pytest.fixture(scope="module")
def result() -> RoundResult:
    return Play(make_control()).finish().control.learn()


def figures(result: RoundResult, *, before: float | None = 50.0, now: float | None = 50.0, **more):
    summary = batch_summary(now, round=3, episodes=result.episodes, duration_s=2.0)
    facts = {
        "summary": summary,
        "update": update(),
        "alarms": (),
        "layers": (),
        "state_before": RunState(episodes_completed=9, rolling_accuracy_pct=before),
        "progress": 0.5,
        "memory": (),
    }
    return RoundFigures(**{**facts, **more})


@pytest.mark.parametrize(
    ("before", "now", "trend"),
    [
        (50.0, 50.4, EventType.PLATEAU_DETECTED),
        (50.0, 49.6, EventType.PLATEAU_DETECTED),
        (50.0, 50.5, None),
        (50.0, 52.0, None),
        (50.0, 52.1, EventType.IMPROVEMENT_DETECTED),
        (50.0, 48.0, None),
        (50.0, 47.9, EventType.DEGRADATION_DETECTED),
        (None, 47.9, None),
        (50.0, None, None),
    ],
)
def test_a_trend_is_reported_by_how_far_the_rolling_mean_has_moved(
    result: RoundResult, before, now, trend
) -> None:
    hub = RecordingHub()

    anyio.run(reporter(hub).round, result, figures(result, before=before, now=now))

    reported = [event for kind in TRENDS for event in hub.of_type(kind)]
    assert [event.event_type for event in reported] == ([] if trend is None else [trend])
    for event in reported:
        assert event.data.rolling_delta_pp == pytest.approx(now - before)
        assert event.data.previous_rolling_accuracy_pct == before


def test_a_round_well_below_the_ones_before_it_is_warned_of(result: RoundResult) -> None:
    hub = RecordingHub()

    anyio.run(reporter(hub).round, result, figures(result, before=50.0, now=40.0))

    (event,) = hub.of_type(EventType.PERFORMANCE_DEGRADATION)
    assert event.data.drop_fraction == pytest.approx(0.2)
    assert event.data.training_progress == 0.5


def test_alarms_come_before_the_update_they_are_about(result: RoundResult) -> None:
    hub = RecordingHub()
    layer = LayerGradient(
        layer="x", norm=1.0, health=1.0, zero_fraction=0.0, nan_count=0, inf_count=0
    )
    spike = KlSpikeDetected(kl_divergence=0.5, threshold=0.1)
    loud = reporter(hub)
    loud.escalate(has_anomaly=True)

    anyio.run(loud.round, result, figures(result, alarms=(spike,), layers=(layer,)))

    assert [event.event_type for event in hub.events[:4]] == [
        EventType.KL_SPIKE_DETECTED,
        EventType.LAYER_GRADIENTS_COLLECTED,
        EventType.PPO_UPDATE_COMPLETED,
        EventType.BATCH_STATS,
    ]


def test_episodes_are_counted_over_all_rounds(result: RoundResult) -> None:
    hub = RecordingHub()

    anyio.run(reporter(hub).round, result, figures(result))

    (event,) = hub.of_type(EventType.BATCH_EPOCH_COMPLETED)
    assert event.data.episodes_completed == 9 + len(result.episodes)


def test_a_controller_that_does_not_learn_says_why_there_is_no_update() -> None:
    hub = RecordingHub()
    idle = Play(wait_control()).finish().control.learn()

    anyio.run(reporter(hub).round, idle, figures(idle, update=None))

    (stats,) = hub.of_type(EventType.BATCH_STATS)
    assert not stats.data.update_performed
    assert stats.data.skip_reason == "controller_does_not_learn"
    assert hub.of_type(EventType.PPO_UPDATE_COMPLETED) == []


def test_an_escalation_that_a_checkpoint_brought_goes_on(result: RoundResult) -> None:
    hub = RecordingHub()

    reporter(hub, escalation=Escalation(steps_left=2))

    assert hub.wants(EventType.OBSERVATION_STATS)


def test_counts_of_a_round_start_anew(result: RoundResult) -> None:
    hub = RecordingHub()
    counting = reporter(hub)
    counting.env_steps, counting.train_samples, counting.feeder_wait_s = 6, 48, 0.5

    async def two_rounds() -> None:
        for _ in range(2):
            await counting.round(result, figures(result))

    anyio.run(two_rounds)

    first, second = (event.data for event in hub.of_type(EventType.THROUGHPUT))
    assert (first.env_steps, first.train_samples, first.feeder_wait_s) == (6, 48, 0.5)
    assert first.env_steps_per_s == pytest.approx(3.0)
    assert (second.env_steps, second.train_samples, second.feeder_wait_s) == (0, 0, 0.0)


def test_a_lost_log_raises_in_the_reporter(result: RoundResult, tmp_path) -> None:
    hub = RecordingHub()
    hub.failure = TelemetryLostError(tmp_path / "events.jsonl", None, "disk full", 3)

    with pytest.raises(TelemetryLostError):
        anyio.run(reporter(hub).round, result, figures(result))
