"""The view model says what the events say: nothing more, nothing lost, nothing old."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.karn.story import Env, Story, Wire, entropy_alarm, outcome, started

from esper.karn.view.snapshot import Snapshot
from esper.karn.view.thresholds import LIMITS
from esper.karn.view.view_model import START, ViewModel
from esper.leyline import payloads
from esper.leyline.rewards import RewardComponents
from esper.leyline.telemetry import EVENT_SPECS, Event, EventScope, EventType, TelemetryLevel

STORY = list(Story().events())


def model_of(events: list[Event]) -> ViewModel:
    model = ViewModel()
    for event in events:
        model.apply(event)
    return model


def view_of(events: list[Event]) -> Snapshot:
    return model_of(events).snapshot()


def epoch(accuracy_pct: float | None, *seeds: payloads.SeedSnapshot) -> payloads.EpochCompleted:
    return payloads.EpochCompleted(
        train_loss=None,
        train_accuracy_pct=None,
        val_loss=None,
        val_accuracy_pct=accuracy_pct,
        host_gradient_norm=None,
        network_gradient_norm=None,
        seeds=seeds,
    )


def batch(mean_reward: float | None, *accuracies: float | None) -> payloads.BatchEpochCompleted:
    return payloads.BatchEpochCompleted(
        episodes_completed=1,
        mean_accuracy_pct=None,
        rolling_accuracy_pct=None,
        mean_reward=mean_reward,
        env_accuracies_pct=accuracies,
        env_rewards=(),
    )


class Mirror:
    """A client that knows nothing but the patches it was sent."""

    def __init__(self) -> None:
        self.version = START
        self.sections: dict[str, Any] = {name: {} for name in ("rounds", "steps", "envs", "seeds")}

    def take(self, model: ViewModel, now: float) -> None:
        patch = msgspec.json.decode(msgspec.json.encode(model.patch(self.version, now)))
        for name in patch.get("replaced", ()):
            self.sections[name] = {}
        for name, value in patch.items():
            if name in ("rounds", "steps", "envs", "seeds"):
                self.sections[name] |= value
            else:
                self.sections[name] = value
        self.version = patch["version"]

    def view(self) -> dict[str, Any]:
        keyed = {
            name: [items[key] for key in sorted(items, key=int)]
            for name, items in self.sections.items()
            if name in ("rounds", "steps", "envs", "seeds")
        }
        return self.sections | keyed


@settings(max_examples=15)
@given(st.lists(st.integers(0, len(STORY)), max_size=12))
def test_patches_taken_at_any_moments_add_up_to_the_snapshot(cuts: list[int]) -> None:
    model, mirror = ViewModel(), Mirror()
    for index, event in enumerate(STORY):
        for _ in range(cuts.count(index)):
            mirror.take(model, event.ts)
        model.apply(event)
    snapshot = model.snapshot()
    mirror.take(model, snapshot.now)

    expected = msgspec.json.decode(msgspec.json.encode(snapshot))

    view = mirror.view()
    assert {name: view[name] for name in expected} == expected


def test_patch_without_changes_carries_no_section() -> None:
    model = model_of(STORY)
    patch = msgspec.to_builtins(model.patch(model.version, now=1.0))
    assert set(patch) == {"type", "version", "now", "progress", "verdict"}


def test_patch_carries_only_the_envs_that_moved() -> None:
    model = model_of(STORY[:-1])
    before = model.version
    model.apply(Wire().event(epoch(50.0), EventScope(6, 0, 3, 27)))
    patch = model.patch(before, now=1.0)
    assert isinstance(patch.envs, dict)
    assert set(patch.envs) == {3}


def test_growth_totals_count_every_seed_event_at_any_moment() -> None:
    model, counts = ViewModel(), Counter[EventType]()
    for event in STORY:
        model.apply(event)
        counts[event.event_type] += 1
        if event.event_type in (EventType.SEED_PRUNED, EventType.BATCH_STATS):
            growth = model.snapshot().growth
            assert growth.num_germinated == counts[EventType.SEED_GERMINATED]
            assert growth.num_fossilized == counts[EventType.SEED_FOSSILIZED]
            assert growth.num_pruned == counts[EventType.SEED_PRUNED]


def test_minimal_telemetry_still_shows_progress_growth_and_rounds() -> None:
    minimal = [
        event for event in STORY if EVENT_SPECS[event.event_type].level <= TelemetryLevel.MINIMAL
    ]
    full, view = view_of(STORY), view_of(minimal)
    assert view.growth.num_fossilized == full.growth.num_fossilized > 0
    assert view.progress.rounds_completed == full.progress.rounds_completed
    assert [row.mean_reward for row in view.rounds] == [row.mean_reward for row in full.rounds]


def test_live_action_mix_is_what_the_distribution_says_at_the_end_of_a_round() -> None:
    model = ViewModel()
    for event in STORY:
        if isinstance(event.data, payloads.ActionDistribution):
            live = model.snapshot().live_actions
            assert live.counts == {op: n for op, n in event.data.counts.items() if n}
            assert live.successes == {op: n for op, n in event.data.successes.items() if n}
        model.apply(event)


def test_reward_waterfall_adds_up_to_the_rewards_of_the_episode() -> None:
    model = model_of([event for event in STORY if not isinstance(event.data, payloads.RunFinished)])
    detail = model.detail(0)
    assert detail is not None
    rewards = [value for value in detail.rewards if value is not None]
    assert sum(detail.reward_components.values()) == pytest.approx(sum(rewards))
    assert len(rewards) == 20


def test_band_of_a_round_spans_the_measured_envs_and_ignores_missing_ones() -> None:
    event = Wire().event(batch(1.0, 40.0, None, 60.0), EventScope(0))
    (row,) = view_of([event]).rounds
    assert (row.low_accuracy_pct, row.high_accuracy_pct) == (40.0, 60.0)


def test_band_of_a_round_without_measured_envs_is_missing() -> None:
    (row,) = view_of([Wire().event(batch(None, None, None), EventScope(0))]).rounds
    assert (row.low_accuracy_pct, row.high_accuracy_pct, row.mean_reward) == (None, None, None)


def test_steps_of_the_round_under_way_have_mean_and_band_over_envs() -> None:
    wire = Wire()
    events = [
        wire.event(epoch(accuracy), EventScope(0, 0, env_id, env_id))
        for env_id, accuracy in enumerate([10.0, 40.0, None, 70.0])
    ]
    (row,) = view_of(events).steps
    assert row.mean_accuracy_pct == pytest.approx(40.0)
    assert (row.low_accuracy_pct, row.high_accuracy_pct, row.num_envs) == (10.0, 70.0, 3)


def test_missing_numbers_stay_missing() -> None:
    wire = Wire()
    view = view_of([wire.event(started(Story())), wire.event(epoch(None), EventScope(0, 0, 0, 0))])
    (env,) = view.envs
    assert env.accuracy_pct is env.best_accuracy_pct is env.loss is env.total_reward is None
    assert env.sparkline == (None,)
    assert view.progress.accuracy_pct is None
    assert view.progress.eta_s is view.growth.compute_cost is None


def test_measured_zero_stays_zero() -> None:
    (env,) = view_of([Wire().event(epoch(0.0), EventScope(0, 0, 0, 0))]).envs
    assert env.accuracy_pct == env.best_accuracy_pct == 0.0


def test_next_episode_forgets_everything_but_how_the_last_one_ended() -> None:
    last_round = Story(num_rounds=1, has_trouble=False, is_finished=False)
    model = model_of(list(last_round.events()))
    before = model.snapshot().envs[0]
    model.apply(Wire().event(epoch(12.5), EventScope(1, 0, 0, 4)))

    after, detail = model.snapshot().envs[0], model.detail(0)

    assert before.outcome is not None
    assert after.previous == before.outcome
    assert (after.outcome, after.last_action, after.total_reward) == (None, None, None)
    assert (after.best_accuracy_pct, after.sparkline) == (12.5, (12.5,))
    assert (after.num_germinated, after.num_fossilized) == (0, 0)
    assert {slot.stage for slot in after.slots} == {"DORMANT"}
    assert detail is not None
    assert detail.coalitions == detail.actions == ()
    assert detail.reward_components == detail.shapley_pp == {}


def test_unavailable_counterfactual_clears_the_matrix_and_says_why() -> None:
    events = [event for event in STORY if not isinstance(event.data, payloads.RunFinished)]
    model = model_of(events)
    unavailable = payloads.CounterfactualUnavailable(slot_ids=("r0c0",), reason="no data")
    model.apply(Wire().event(unavailable, EventScope(5, 19, 0, 20)))
    detail = model.detail(0)
    assert detail is not None
    assert (detail.coalitions, detail.unavailable_reason) == ((), "no data")


def test_seed_lives_are_those_that_germinated_and_every_life_gets_a_fate() -> None:
    seeds = view_of(STORY).seeds
    germinated = [event for event in STORY if isinstance(event.data, payloads.SeedGerminated)]
    fates = Counter(seed.fate for seed in seeds)
    assert len(seeds) == len(germinated)
    assert fates["fossilized"] == sum(
        isinstance(event.data, payloads.SeedFossilized) for event in STORY
    )
    assert fates["growing"] == 0
    for seed in seeds:
        first_steps = [step for _, step in seed.stages]
        assert first_steps == sorted(first_steps)


def test_swim_lane_covers_every_step_once() -> None:
    detail = model_of(STORY).detail(0)
    assert detail is not None
    for lane in detail.lanes.values():
        covered = [step for part in lane for step in range(part.first_step, part.last_step + 1)]
        assert covered == list(detail.steps)


def test_skipped_numbers_count_as_missing_events() -> None:
    events = [event for event in STORY if event.seq not in (5, 6, 40)]
    assert view_of(events).bus.num_missed == 3
    assert view_of(STORY).bus.num_missed == 0


def test_operational_events_have_a_numbering_of_their_own() -> None:
    lagged = payloads.SubscriberLagged(
        subscriber="live-1", num_dropped=7, first_dropped_seq=3, last_dropped_seq=9
    )
    events = [*STORY, Wire().event(lagged, is_operational=True)]
    bus = view_of(events).bus
    assert (bus.num_missed, bus.num_dropped) == (0, 7)
    assert bus.last_seq == STORY[-1].seq


@pytest.mark.parametrize("is_loaded_event_first", [True, False])
def test_a_resumed_run_has_the_rounds_that_were_asked_for_last(is_loaded_event_first: bool) -> None:
    wire = Wire()
    loaded = payloads.CheckpointLoaded(
        rounds_completed=2, log_seq=9, num_events_redone=0, path="c", num_rounds=7
    )
    events = [wire.event(started(Story())), wire.event(loaded, is_operational=True)]

    view = view_of(events[::-1] if is_loaded_event_first else events)

    assert view.run is not None
    assert (view.run.facts.num_rounds, view.run.facts.resumed_from_round) == (7, 2)
    assert view.progress.num_rounds == 7


def test_counts_are_those_of_the_log() -> None:
    counts = Counter(event.event_type.value for event in STORY)
    bus = view_of(STORY).bus
    assert bus.counts == dict(sorted(counts.items()))
    assert bus.num_events == len(STORY)


def test_remaining_time_follows_from_the_pace() -> None:
    wire = Wire(seconds_per_event=2.0)
    story = Story(num_rounds=2, num_envs=1, num_steps=10)
    events = [wire.event(started(story))]
    events += [wire.event(epoch(1.0), EventScope(0, step, 0, 0)) for step in range(6)]
    progress = view_of(events).progress
    assert progress.fraction == pytest.approx(5 / 20)
    assert progress.steps_per_s == pytest.approx(0.5)
    assert progress.eta_s == pytest.approx(15 * 2.0)


def test_finished_run_has_no_remaining_time() -> None:
    progress = view_of(STORY).progress
    assert (progress.status, progress.fraction, progress.eta_s) == ("completed", 1.0, None)


def test_memory_stays_bounded_over_many_rounds_and_seeds() -> None:
    wire, model, mirror = Wire(), ViewModel(), Mirror()
    model.apply(wire.event(started(Story())))
    for index in range(3 * LIMITS.max_rounds):
        germinated = payloads.SeedGerminated(
            slot_id="r0c0",
            seed_id=str(index),
            blueprint="norm",
            num_params=1,
            style="LINEAR_ADD",
            tempo_steps=3,
            alpha_target=1.0,
        )
        scope = EventScope(index, 0, 0, index)
        model.apply(wire.event(germinated, scope))
        model.apply(wire.event(outcome(Env(0, 1.0), 1, "timeout"), scope))
        model.apply(wire.event(batch(float(index), 1.0), EventScope(index)))
        if index % 100 == 0:
            mirror.take(model, 0.0)
    snapshot = model.snapshot()
    mirror.take(model, 0.0)
    assert len(snapshot.rounds) <= LIMITS.max_rounds
    assert len(snapshot.seeds) <= LIMITS.max_seeds
    assert snapshot.rounds[0].round == 0
    recent = [row.round for row in snapshot.rounds[-LIMITS.max_rounds // 2 :]]
    assert recent == list(range(recent[0], 3 * LIMITS.max_rounds))
    assert len(mirror.sections["rounds"]) == len(snapshot.rounds)
    assert len(mirror.sections["seeds"]) == len(snapshot.seeds)


def test_chatter_never_displaces_an_alarm() -> None:
    wire = Wire()
    events = [wire.event(entropy_alarm(), EventScope(0))]
    anomaly = payloads.GradientAnomaly(kind="vanishing", slot_id="r0c0", layer=None, norm=0.0)
    events += [
        wire.event(anomaly, EventScope(0, step, step % 8, step % 8)) for step in range(2_000)
    ]
    alarms = view_of(events).alarms
    assert "ENTROPY_COLLAPSE_DETECTED" in {alarm.event_type for alarm in alarms}
    assert sum(alarm.count for alarm in alarms) == 2_001
    assert len(alarms) == 9


def test_full_alarm_board_gives_up_the_mildest_first() -> None:
    wire = Wire()
    failed = payloads.EnvFailed(
        phase="train", batch=None, slot_id=None, layer=None, error_type="E", message="m"
    )
    anomaly = payloads.GradientAnomaly(kind="exploding", slot_id=None, layer=None, norm=None)
    events = [wire.event(failed, EventScope(0, 0, 0, 0))]
    events += [
        wire.event(anomaly, EventScope(0, 0, env_id, env_id))
        for env_id in range(2 * LIMITS.max_alarms)
    ]
    model = model_of(events)
    alarms = model.snapshot().alarms
    assert len(alarms) == LIMITS.max_alarms
    assert alarms[-1].event_type == "ENV_FAILED"
    assert model.alarm_counts["GRADIENT_ANOMALY"] == 2 * LIMITS.max_alarms


def test_waterfall_omits_terms_that_never_paid() -> None:
    detail = model_of(STORY).detail(0)
    assert detail is not None
    assert set(detail.reward_components) < set(RewardComponents.__struct_fields__)
    assert all(detail.reward_components.values())
