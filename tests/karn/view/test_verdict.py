"""The verdict follows from the events and the clock."""

import pytest
from tests.karn.story import Story, Wire, entropy_alarm, failure, rollback, started

from esper.karn.view.snapshot import Verdict
from esper.karn.view.thresholds import Grade
from esper.karn.view.view_model import ViewModel
from esper.leyline import payloads
from esper.leyline.telemetry import Event, EventScope


def batch(mean_reward: float, accuracy_pct: float = 50.0) -> payloads.BatchEpochCompleted:
    return payloads.BatchEpochCompleted(
        episodes_completed=1,
        mean_accuracy_pct=accuracy_pct,
        rolling_accuracy_pct=50.0,
        mean_reward=mean_reward,
        env_accuracies_pct=(),
        env_rewards=(),
    )


def verdict_of(events: list[Event], silence_s: float = 0.0) -> Verdict:
    model = ViewModel()
    for event in events:
        model.apply(event)
    now = events[-1].ts + silence_s if events else 0.0
    return model.snapshot(now).verdict


def run_with_rewards(*rewards: float, controller: str = "ppo") -> list[Event]:
    wire = Wire()
    story = Story(num_rounds=100, controller=controller)
    return [
        wire.event(started(story)),
        *(wire.event(batch(value), EventScope(index)) for index, value in enumerate(rewards)),
    ]


def test_nothing_yet_is_waiting_and_not_an_alarm() -> None:
    verdict = verdict_of([])
    assert (verdict.alive, verdict.learning, verdict.attention) == ("waiting", "collecting", "none")


@pytest.mark.parametrize(
    ("silence_s", "word"), [(0, "live"), (9, "live"), (11, "slow"), (99, "silent")]
)
def test_silence_is_slow_then_silent(silence_s: float, word: str) -> None:
    assert verdict_of(run_with_rewards(1.0), silence_s).alive == word


def test_run_with_long_pauses_may_be_silent_for_long() -> None:
    wire = Wire(seconds_per_event=50.0)
    events = [wire.event(started(Story()))]
    events += [wire.event(batch(1.0), EventScope(index)) for index in range(3)]
    assert verdict_of(events, 100.0).alive == "live"
    assert verdict_of(events, 200.0).alive == "silent"


def test_finished_run_is_never_silent() -> None:
    verdict = verdict_of(list(Story().events()), silence_s=1e6)
    assert (verdict.alive, verdict.alive_grade) == ("completed", Grade.OK)


@pytest.mark.parametrize(
    ("rewards", "word"),
    [
        ([1.0, 2.0, 3.0, 4.0], "collecting"),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], "collecting"),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], "rising"),
        ([1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.2, 0.8], "flat"),
        ([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], "falling"),
        ([1.0] * 8, "flat"),
    ],
)
def test_learning_needs_a_trend_that_noise_would_rarely_have(
    rewards: list[float], word: str
) -> None:
    assert verdict_of(run_with_rewards(*rewards)).learning == word


def test_headline_says_what_rises_and_what_falls() -> None:
    wire = Wire()
    rounds = [batch(1.0 + index, 36.5 - 0.5 * index) for index in range(10)]
    events = [
        wire.event(started(Story(num_rounds=100))),
        *(wire.event(data, EventScope(index)) for index, data in enumerate(rounds)),
    ]

    verdict = verdict_of(events)

    assert verdict.headline == "Running, task return rises, accuracy falls"
    assert verdict.learning_grade is Grade.WATCH
    assert "accuracy 35.5 to 33.0 %" in verdict.reasons[0].text
    assert verdict_of(run_with_rewards(*range(1, 10))).headline == "Running, task return rises"


def test_controller_without_a_policy_is_not_asked_to_learn() -> None:
    verdict = verdict_of(run_with_rewards(5.0, 4.0, 3.0, 2.0, controller="heuristic"))
    assert (verdict.learning, verdict.learning_grade) == ("not learning", Grade.OK)


@pytest.mark.parametrize(("num_rollbacks", "attention"), [(1, "watch"), (2, "watch"), (3, "act")])
def test_rollback_is_the_top_reason_and_repeated_ones_ask_for_action(
    num_rollbacks: int, attention: str
) -> None:
    wire = Wire()
    scope = EventScope(0, 3, 2, 2)
    rollbacks = [wire.event(rollback(3), scope) for _ in range(num_rollbacks)]

    verdict = verdict_of([wire.event(started(Story())), *rollbacks])

    assert verdict.attention == attention
    assert (verdict.headline == "Running, needs attention") == (attention == "act")
    assert verdict.reasons[0].text.startswith("env 2: host rolled back")


def test_alarms_of_long_past_rounds_no_longer_ask_for_attention() -> None:
    wire = Wire()
    events = [wire.event(started(Story())), wire.event(entropy_alarm(), EventScope(0))]
    assert verdict_of(events).attention == "watch"
    events += [wire.event(batch(1.0), EventScope(index)) for index in range(1, 3)]
    assert verdict_of(events).attention == "none"


def test_slow_viewer_asks_for_attention_only_for_a_while() -> None:
    lagged = payloads.SubscriberLagged(
        subscriber="live-1", num_dropped=7, first_dropped_seq=3, last_dropped_seq=9
    )
    wire = Wire(seconds_per_event=100.0)
    events = [wire.event(started(Story())), wire.event(lagged, is_operational=True)]
    assert verdict_of(events).attention == "watch"
    events += [wire.event(batch(1.0), EventScope(0)) for _ in range(4)]
    assert verdict_of(events).attention == "none"


def test_foreign_text_reaches_the_reasons_unchanged() -> None:
    wire = Wire()
    events = [wire.event(started(Story())), wire.event(failure(), EventScope(0, 1, 1, 1))]
    assert "<script>" in verdict_of(events).reasons[0].text


def test_missing_events_ask_for_action() -> None:
    events = [event for event in Story(has_trouble=False).events() if event.seq != 7]
    assert verdict_of(events).attention == "act"


def test_interrupted_run_says_why() -> None:
    events = run_with_rewards(1.0)
    finished = payloads.RunFinished(
        status="interrupted",
        reason="SIGINT",
        rounds_completed=1,
        episodes_completed=4,
        best_accuracy_pct=None,
        final_accuracy_pct=None,
        duration_s=1.0,
    )
    verdict = verdict_of([*events, Wire().event(finished)])
    assert verdict.headline == "The run was interrupted"
    assert "SIGINT" in [reason.text for reason in verdict.reasons]
