"""Whole runs: their events, how many, in which order, and their sums."""

import hashlib
import itertools
import math
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch
from tests.simic.training.small_runs import (
    LENIENT,
    NUM_TRAIN,
    NUM_VAL,
    SmallRun,
    break_envs,
    lively_run,
    lose_envs,
    small_run,
)

from esper.leyline.errors import RunFailedError
from esper.leyline.messages import Phase
from esper.leyline.rewards import RewardMode
from esper.leyline.telemetry import (
    EVENT_SPECS,
    CountPer,
    Event,
    EventType,
    TelemetryLevel,
)
from esper.nissa.analysis.validation import validate_run
from esper.simic.training.diagnostics import RunDiagnostics

LEVELS = [level.name.lower() for level in TelemetryLevel]


def expected_counts(rounds: int, envs: int, steps: int, level: TelemetryLevel) -> dict:
    """Return the counts that have a closed form, of a run without rollbacks and failures."""
    per = {
        CountPer.RUN: 1,
        CountPer.CHECKPOINT: rounds + 1,
        CountPer.ROUND: rounds,
        CountPer.EPISODE: rounds * envs,
        CountPer.ENV_STEP: rounds * envs * steps,
        CountPer.STEP_OR_UPDATE: rounds * (steps + 1),
    }
    return {
        spec.event_type: per[spec.per]
        for spec in EVENT_SPECS.values()
        if spec.per is not None and spec.level <= level
    }


@pytest.mark.parametrize(
    ("rounds", "envs", "steps", "level"),
    [
        (1, 1, 1, "normal"),
        (2, 1, 3, "off"),
        (1, 2, 2, "minimal"),
        (3, 2, 2, "normal"),
        (1, 3, 2, "debug"),
    ],
)
def test_counts_per_unit_have_a_closed_form(
    tmp_path: Path, rounds: int, envs: int, steps: int, level: str
) -> None:
    run = small_run(
        tmp_path,
        n_episodes=rounds,
        n_envs=envs,
        max_epochs=steps,
        telemetry={"level": level, "auto_escalate": False},
    )

    reported = {
        event_type: count
        for event_type, count in run.counts.items()
        if EVENT_SPECS[event_type].per is not None
    }
    assert reported == expected_counts(rounds, envs, steps, TelemetryLevel.named(level))
    assert all(EVENT_SPECS[kind].level <= TelemetryLevel.named(level) for kind in run.counts), (
        "no event above the configured level"
    )
    if level == "debug":
        assert run.counts[EventType.OBSERVATION_STATS] == rounds * steps
        assert run.counts[EventType.LAYER_GRADIENTS_COLLECTED] == rounds


def test_identities_hold_between_the_counts_of_seeds(lively: SmallRun) -> None:
    changes = Counter(data.to_stage for data in lively.data(EventType.SEED_STAGE_CHANGED))
    links = Counter(data.phase for data in lively.data(EventType.MORPHOLOGY_CAUSAL_LOG))
    verdicts = [
        data
        for data in lively.data(EventType.MORPHOLOGY_CAUSAL_LOG)
        if data.phase == "verdict" and data.approved
    ]
    stats = lively.data(EventType.BATCH_STATS)
    ends = lively.data(EventType.EPISODE_OUTCOME)

    counts = lively.counts
    assert counts[EventType.SEED_FOSSILIZED] == changes["FOSSILIZED"] > 0
    assert counts[EventType.SEED_PRUNED] == changes["PRUNED"] > 0
    germinated = counts[EventType.SEED_GERMINATED]
    assert germinated == sum(data.seeds_germinated for data in stats)
    assert germinated == sum(data.num_germinated for data in ends)
    assert counts[EventType.SEED_PRUNED] == sum(data.seeds_pruned for data in stats)
    assert counts[EventType.SEED_FOSSILIZED] == sum(data.num_fossilized for data in ends)
    assert links["proposal"] == links["verdict"]
    assert links["mutation"] == links["dispatch"] == len(verdicts)
    assert links["commit"] + links["fossilization"] <= links["dispatch"]
    assert links["rollback"] == links["cooldown"] == links["audit"] == 0


def test_the_tally_agrees_with_the_actions_reported(lively: SmallRun) -> None:
    for reported, rates, summary, actions in zip(
        lively.data(EventType.ACTION_DISTRIBUTION),
        lively.data(EventType.MASK_HIT_RATES),
        lively.data(EventType.REWARD_SUMMARY),
        _by_round(lively, EventType.LAST_ACTION),
        strict=True,
    ):
        ops = Counter(action.op for action in actions)
        assert {op: count for op, count in reported.counts.items() if count} == ops
        successes = Counter(action.op for action in actions if action.succeeded)
        assert {op: count for op, count in reported.successes.items() if count} == successes
        assert rates.num_decisions == rates.legal_counts["WAIT"] == len(actions)
        assert rates.forced_count == sum(action.is_forced for action in actions)
        rewards = [action.reward for action in actions]
        assert summary.mean_reward == pytest.approx(sum(rewards) / len(rewards))
        assert summary.mean_components.total() == pytest.approx(summary.mean_reward)


def _by_round(run: SmallRun, event_type: EventType) -> list[list]:
    groups = itertools.groupby(run.of(event_type), key=lambda event: event.round)
    return [[event.data for event in group] for _, group in groups]


def test_the_rewards_reported_are_what_an_episode_sums_up_to(lively: SmallRun) -> None:
    for end in lively.of(EventType.EPISODE_OUTCOME):
        mine = [
            event.data.reward
            for event in lively.of(EventType.LAST_ACTION)
            if event.episode_id == end.episode_id
        ]
        assert end.data.total_reward == pytest.approx(sum(mine))
        assert end.data.num_steps == len(mine)


def test_a_round_sums_its_episodes_up(lively: SmallRun) -> None:
    ends = _by_round(lively, EventType.EPISODE_OUTCOME)
    for index, (reported, episodes) in enumerate(
        zip(lively.data(EventType.BATCH_EPOCH_COMPLETED), ends, strict=True)
    ):
        assert reported.env_rewards == tuple(end.total_reward for end in episodes)
        assert reported.env_accuracies_pct == tuple(end.final_accuracy_pct for end in episodes)
        assert reported.episodes_completed == 2 * (index + 1)
        mean = sum(reported.env_accuracies_pct) / len(episodes)
        assert reported.mean_accuracy_pct == pytest.approx(mean)


def test_the_network_of_every_episode_is_recorded_just_before_its_outcome(
    lively: SmallRun,
) -> None:
    recorded = lively.of(EventType.TOPOLOGY_MANIFEST_RECORDED)

    for event in recorded:
        end = lively.events[event.seq + 1]
        assert end.event_type is EventType.EPISODE_OUTCOME
        assert (end.round, end.step, end.env_id) == (event.round, event.step, event.env_id)
        assert (end.episode_id, event.step) == (event.episode_id, 24)
        manifest, outcome = event.data, end.data
        assert manifest.total_params / manifest.host_params == pytest.approx(outcome.param_ratio)
        kept = [row for row in manifest.slots if row.kept_at_step is not None]
        assert all(row.stage == "FOSSILIZED" for row in kept)
        assert len(kept) == outcome.num_fossilized
    assert len(recorded) == lively.counts[EventType.EPISODE_OUTCOME] == 4
    assert any(row.kept_at_step is not None for event in recorded for row in event.data.slots)


def test_a_recorded_network_is_what_the_events_of_its_seeds_add_up_to(lively: SmallRun) -> None:
    recorded = lively.of(EventType.TOPOLOGY_MANIFEST_RECORDED)
    assert len(recorded) == 4
    for event in recorded:
        mine = [item for item in lively.events if item.episode_id == event.episode_id]
        slots = _slots_by_replay(mine)

        reported = {
            row.slot_id: {name: getattr(row, name) for name in slots[row.slot_id]}
            for row in event.data.slots
        }

        assert reported == slots
        (host_params,) = {item.host_params for item in lively.data(EventType.TRAINING_STARTED)}
        assert event.data.host_params == host_params
        assert event.data.total_params == host_params + sum(
            row.num_params for row in event.data.slots
        )


def _slots_by_replay(events: list[Event]) -> dict[str, dict[str, object]]:
    """Follow an episode's seeds through its log; a slot is empty again when it is DORMANT."""
    slots: dict[str, dict[str, object]] = {}
    for event in events:
        data = event.data
        match event.event_type:
            case EventType.SEED_GERMINATED:
                slots[data.slot_id] = {
                    "seed_id": data.seed_id,
                    "blueprint": data.blueprint,
                    "style": data.style,
                    "num_params": data.num_params,
                    "stage": "GERMINATED",
                    "germinated_at_step": event.step,
                    "kept_at_step": None,
                    "contribution_pp": None,
                }
            case EventType.EPOCH_COMPLETED:
                for seed in data.seeds:
                    slots[seed.slot_id]["contribution_pp"] = seed.contribution_pp
            case EventType.SEED_FOSSILIZED:
                slots[data.slot_id]["kept_at_step"] = event.step
            case EventType.SEED_STAGE_CHANGED if data.to_stage == "DORMANT":
                del slots[data.slot_id]
            case EventType.SEED_STAGE_CHANGED:
                slots[data.slot_id]["stage"] = data.to_stage
                if data.to_stage == "PRUNED":
                    slots[data.slot_id]["num_params"] = 0
    return slots


def test_throughput_counts_samples_and_how_long_lanes_waited(lively: SmallRun) -> None:
    for reported in lively.data(EventType.THROUGHPUT):
        assert reported.env_steps == 2 * 25
        assert reported.train_samples == reported.env_steps * NUM_TRAIN
        assert reported.val_samples == reported.env_steps * NUM_VAL
        assert 0 < reported.feeder_wait_s < reported.duration_s


def test_a_step_is_reported_in_order(lively: SmallRun) -> None:
    """Evidence of all envs, then env by env what was done, then the profile."""
    stages = {
        EventType.COUNTERFACTUAL_MATRIX_COMPUTED: 0,
        EventType.SHAPLEY_COMPUTED: 0,
        EventType.EPOCH_COMPLETED: 1,
        EventType.GRADIENT_ANOMALY: 1,
        EventType.TAMIYO_INITIATED: 1,
        EventType.PHASE_PROFILE_COMPLETED: 3,
    }
    steps = itertools.groupby(
        (event for event in lively.events if event.step is not None),
        key=lambda event: (event.round, event.step),
    )
    for _, group in steps:
        events = list(group)
        places = [(stages.get(event.event_type, 2), event.env_id or 0) for event in events]
        assert places == sorted(places)
        for env_id in range(2):
            mine = [event.event_type for event in events if event.env_id == env_id]
            assert mine.index(EventType.EPOCH_COMPLETED) < mine.index(EventType.LAST_ACTION)
            assert EventType.EPISODE_OUTCOME not in mine[:-1]


def test_a_causal_chain_frames_what_it_caused(lively: SmallRun) -> None:
    orders = {
        "proposal": ["verdict"],
        "verdict": ["mutation", "end"],
        "mutation": ["dispatch"],
        "dispatch": ["commit", "fossilization", "end"],
    }
    chains: dict[str, list[Event]] = {}
    for event in lively.of(EventType.MORPHOLOGY_CAUSAL_LOG):
        chains.setdefault(event.data.action_id, []).append(event)
    for chain in chains.values():
        phases = [event.data.phase for event in chain]
        assert phases[0] == "proposal"
        assert all(then in orders[now] for now, then in itertools.pairwise(phases))
        assert phases[-1] in ("commit", "fossilization") or "end" in orders[phases[-1]]
    for seed in lively.of(EventType.SEED_GERMINATED):
        before = lively.events[: lively.events.index(seed)]
        links = [event for event in before if event.event_type is EventType.MORPHOLOGY_CAUSAL_LOG]
        assert links[-1].data.phase == "mutation"
        assert links[-1].data.slot_id == seed.data.slot_id


def test_a_round_ends_in_order(lively: SmallRun) -> None:
    order = [
        EventType.PHASE_PROFILE_COMPLETED,
        EventType.PPO_UPDATE_COMPLETED,
        EventType.BATCH_STATS,
        EventType.BATCH_EPOCH_COMPLETED,
        EventType.ACTION_DISTRIBUTION,
        EventType.MASK_HIT_RATES,
        EventType.REWARD_SUMMARY,
        EventType.THROUGHPUT,
        EventType.SCOREBOARD_UPDATED,
    ]
    for index in range(2):
        tail = [
            event.event_type
            for event in lively.events
            if event.round == index and event.step is None
        ]
        assert [kind for kind in tail if kind in order] == order


def test_the_log_of_a_run_obeys_every_rule_of_its_readers(lively: SmallRun) -> None:
    assert validate_run(lively.directory).findings == []


@pytest.mark.parametrize("phase", Phase)
def test_the_log_of_a_troubled_run_obeys_every_rule_of_its_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    lose_envs(monkeypatch, {(0, 1), (2, 0)})
    break_envs(monkeypatch, phase, {(1, 2 if phase is not Phase.BUILD else 0)})

    run = small_run(tmp_path, n_envs=3, max_epochs=4, n_episodes=2)

    assert run.counts[EventType.GOVERNOR_ROLLBACK] == 4
    assert run.counts[EventType.ENV_FAILED] == 2
    assert validate_run(run.directory).findings == []


def test_a_run_is_framed_and_numbered_without_gaps(lively: SmallRun) -> None:
    kinds = [event.event_type for event in lively.events]

    assert kinds[:2] == [EventType.TRAINING_STARTED, EventType.CHECKPOINT_SAVED]
    assert kinds[-2:] == [EventType.CHECKPOINT_SAVED, EventType.RUN_FINISHED]
    assert [event.seq for event in lively.events] == list(range(len(kinds)))
    finished = lively.data(EventType.RUN_FINISHED)[0]
    assert (finished.status, finished.rounds_completed) == ("completed", 2)
    assert finished.episodes_completed == 4


def test_every_env_event_names_its_episode(lively: SmallRun) -> None:
    for event in lively.events:
        if event.env_id is not None:
            assert event.episode_id == 2 * event.round + event.env_id
        else:
            assert event.episode_id is None


def digest(run: SmallRun) -> str:
    weights = run.result.agent.network.state_dict()
    parts = [bytes(value.clone().untyped_storage()) for _, value in sorted(weights.items())]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_telemetry_changes_nothing_that_is_trained(tmp_path: Path) -> None:
    runs = [
        lively_run(tmp_path / level, max_epochs=8, telemetry={"level": level}) for level in LEVELS
    ]

    assert len({digest(run) for run in runs}) == 1
    assert len({run.result.state.scoreboard.params_added for run in runs}) == 1
    for less, more in itertools.pairwise(runs):
        kinds = set(less.counts)
        reported = [event.data for event in more.events if event.event_type in kinds]
        ends = [data for data in reported if type(data).__name__ == "EpisodeOutcome"]
        assert ends == less.data(EventType.EPISODE_OUTCOME)


@pytest.mark.parametrize(
    ("phase", "step"),
    [
        (Phase.BUILD, 0),
        *itertools.product((Phase.TRAIN, Phase.VALIDATE, Phase.APPLY), (0, 3)),
    ],
)
def test_an_env_that_breaks_is_reported_once_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: SmallRun, phase: Phase, step: int
) -> None:
    break_envs(monkeypatch, phase, {(1, step)})

    run = small_run(tmp_path, max_epochs=4)

    assert run.error is None
    (failed,) = run.of(EventType.ENV_FAILED)
    assert (failed.env_id, failed.data.phase, failed.episode_id) == (1, phase, 1)
    assert failed.step == (None if phase is Phase.BUILD else step)
    assert failed.data.message == "a fault in env 1"
    ends = {event.env_id: event.data for event in run.of(EventType.EPISODE_OUTCOME)}
    assert run.counts[EventType.EPISODE_OUTCOME] == 2
    assert (ends[1].status, ends[1].num_steps) == ("failed", step)
    recorded = run.of(EventType.TOPOLOGY_MANIFEST_RECORDED)
    assert [event.env_id for event in recorded] == [0]
    validated = step + (phase is Phase.APPLY)
    assert run.counts[EventType.EPOCH_COMPLETED] == 4 + validated
    assert run.counts[EventType.LAST_ACTION] == 4 + step
    of_broken = [event.event_type for event in run.events if event.env_id == 1]
    assert of_broken[-2:] == [EventType.ENV_FAILED, EventType.EPISODE_OUTCOME]
    for kind in (EventType.EPOCH_COMPLETED, EventType.LAST_ACTION):
        before, after = (
            [event.data for event in item.of(kind) if event.env_id == 0] for item in (whole, run)
        )
        assert after == before


def test_a_run_whose_envs_are_all_gone_fails_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_envs(monkeypatch, Phase.VALIDATE, {(0, 1), (1, 1)})

    run = small_run(tmp_path)

    assert isinstance(run.error, RunFailedError)
    assert "every env has failed" in str(run.error)
    assert run.counts[EventType.ENV_FAILED] == run.counts[EventType.EPISODE_OUTCOME] == 2
    assert run.data(EventType.RUN_FINISHED)[0].status == "failed"
    assert run.counts[EventType.CHECKPOINT_SAVED] == 1


@pytest.mark.parametrize("phase", [Phase.BUILD, Phase.APPLY])
def test_a_run_without_envs_ends_wherever_the_last_one_broke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    step = 2 if phase is Phase.APPLY else 0
    break_envs(monkeypatch, phase, {(0, step), (1, step)})

    run = small_run(tmp_path)

    assert isinstance(run.error, RunFailedError)
    assert run.counts[EventType.ENV_FAILED] == 2
    assert run.events[-1].event_type is EventType.RUN_FINISHED


@pytest.mark.parametrize("command", ["heuristic", "random", "wait", "periodic"])
def test_any_controller_survives_a_round_without_envs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    break_envs(monkeypatch, Phase.BUILD, {(0, 0), (1, 0)})

    run = small_run(tmp_path, command)

    assert "every env has failed" in str(run.error)
    assert run.counts[EventType.EPISODE_OUTCOME] == 2


def test_a_round_without_a_step_to_learn_from_skips_its_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_envs(monkeypatch, {(0, 0), (1, 0)})

    run = small_run(tmp_path, max_epochs=1)

    assert run.error is None
    assert run.counts[EventType.PPO_UPDATE_COMPLETED] == 0
    (stats,) = run.data(EventType.BATCH_STATS)
    assert (stats.update_performed, stats.skip_reason) == (False, "no_rows")
    assert stats.unattributed_penalties == 2


@pytest.mark.parametrize("mode", RewardMode)
def test_every_reward_mode_runs_and_adds_up(tmp_path: Path, mode: RewardMode) -> None:
    run = small_run(tmp_path, "periodic", max_epochs=6, lifecycle=LENIENT, reward_mode=mode.value)

    assert run.error is None
    for action in run.data(EventType.LAST_ACTION):
        assert action.reward == pytest.approx(action.reward_components.total())


def test_the_loss_family_runs_and_pays_for_falling_losses(tmp_path: Path) -> None:
    run = small_run(tmp_path, "wait", n_envs=1, max_epochs=4, reward_family="loss")

    losses = [item.val_loss for item in run.data(EventType.EPOCH_COMPLETED)]
    terms = [item.reward_components.loss_delta for item in run.data(EventType.LAST_ACTION)]
    assert terms[0] == 0.0
    for before, now, term in zip(losses, losses[1:], terms[1:], strict=False):
        assert (term > 0) == (now < before)


def test_phases_are_reported_where_they_belong(lively: SmallRun) -> None:
    for event in lively.of(EventType.PHASE_PROFILE_COMPLETED):
        phases = [phase.phase for phase in event.data.phases]
        whole_step = ["passes", "decide", "apply", "record"]
        assert phases == (["learn"] if event.step is None else whole_step)
        assert all(phase.wall_ms > 0 for phase in event.data.phases)


def test_a_run_without_a_profile_is_the_same_run(tmp_path: Path) -> None:
    plain = small_run(tmp_path / "plain")
    quiet = small_run(tmp_path / "quiet", run={"profiler": {"phases": False}})

    assert digest(quiet) == digest(plain)
    assert quiet.counts + Counter({EventType.PHASE_PROFILE_COMPLETED: 4}) == plain.counts


@pytest.mark.parametrize("step", [0, 2, 4])
def test_a_rollback_is_reported_in_place_of_the_action_and_its_episode_ends_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    lose_envs(monkeypatch, {(0, step)})

    run = small_run(tmp_path, max_epochs=5)

    assert run.error is None
    (rollback,) = run.of(EventType.GOVERNOR_ROLLBACK)
    assert (rollback.env_id, rollback.step, rollback.data.reason) == (0, step, "nan")
    assert rollback.data.loss_at_panic is None
    assert rollback.nonfinite == ("loss_at_panic",)
    assert rollback.data.blamed_step == (step - 1 if step else None)
    assert rollback.data.num_steps_forfeited == step
    assert run.counts[EventType.EPOCH_COMPLETED] == 10
    assert run.counts[EventType.LAST_ACTION] == 9
    assert run.counts[EventType.EPISODE_OUTCOME] == 2
    rewards = [event.data.reward for event in run.of(EventType.LAST_ACTION) if event.env_id == 0]
    expected = (rollback.data.penalty if step else 0.0) + sum(rewards[step:])
    ends = {event.env_id: event.data for event in run.of(EventType.EPISODE_OUTCOME)}
    assert ends[0].total_reward == pytest.approx(expected)
    assert (ends[0].num_rollbacks, ends[1].num_rollbacks) == (1, 0)
    (stats,) = run.data(EventType.BATCH_STATS)
    assert (stats.rollback_attempts, stats.unattributed_penalties) == (1, int(step == 0))
    links = Counter(data.phase for data in run.data(EventType.MORPHOLOGY_CAUSAL_LOG))
    assert links["rollback"] == links["cooldown"] == links["audit"] == 1
    (update,) = run.data(EventType.PPO_UPDATE_COMPLETED)
    assert (update.rollback_count, update.rollback_steps_forfeited) == (1, step)


def test_diagnostics_never_run_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set()
    for name in ("layer_gradients", "observation_stats"):
        diagnose = getattr(RunDiagnostics, name)

        def noted(self, diagnose=diagnose):
            threads.add(threading.current_thread().name)
            return diagnose(self)

        monkeypatch.setattr(RunDiagnostics, name, noted)

    small_run(tmp_path, telemetry={"level": "debug"})

    assert threads == {"control"}


def test_loss_of_a_lost_step_does_not_reach_the_observation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_envs(monkeypatch, {(0, 1)})

    run = small_run(tmp_path, max_epochs=4, telemetry={"level": "debug"})

    stats = run.data(EventType.OBSERVATION_STATS)
    assert [item.nan_count + item.inf_count for item in stats] == [0] * 4
    assert all(math.isfinite(item.host_mean) for item in stats)
    assert all(torch.isfinite(value).all() for value in run.result.agent.network.parameters())
