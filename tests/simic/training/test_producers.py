"""Every event type comes from its real producer, driven into what it is for."""

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from tests.builders.messages import attribution, env_evidence, make_report
from tests.simic.rewards.builders import scheme
from tests.simic.telemetry.updates import head, lstm
from tests.simic.training.builders import Play, make_control
from tests.simic.training.small_runs import (
    LENIENT,
    SmallRun,
    break_envs,
    force_updates,
    lose_envs,
    small_run,
    spoil_losses,
)

from esper.leyline.actions import HEADS
from esper.leyline.errors import RunFailedError
from esper.leyline.messages import MemoryStats, Phase
from esper.leyline.payloads import RewardHackingSuspected
from esper.leyline.stages import Stage
from esper.leyline.telemetry import EVENT_SPECS, Channel, EventType, Severity
from esper.simic import seed_management
from esper.simic.telemetry import emitters, step_events
from esper.simic.training import batch_ops, reporter
from esper.tolaria import worker
from esper.tolaria.fences import RecordingFence

ANOMALIES = {
    "ratio_max": 6.0,
    "ratio_min": 0.05,
    "value_loss": 7.0,
    "kl_divergence": 0.8,
    "nan_gradient_count": 2,
    "lstm_rollout": lstm(h=20.0),
    "heads": {item.value: head(0.9 if item.value != "op" else 0.01) for item in HEADS},
}
FULL = MemoryStats(
    allocated_bytes=80,
    reserved_bytes=85,
    free_bytes=10,
    total_bytes=100,
    num_retries=3,
    num_ooms=1,
)


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as context:
        yield context


@pytest.fixture(scope="module")
def anomalous(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """Four updates with everything wrong, on a device that is nearly full."""
    with pytest.MonkeyPatch.context() as patch:
        force_updates(patch, **ANOMALIES)
        patch.setattr(worker, "build_fence", lambda device: RecordingFence(device, FULL))
        return small_run(tmp_path_factory.mktemp("anomalous"), n_episodes=4, max_epochs=1)


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """A controller that grows by the clock; an env is lost while its seeds are blending."""
    with pytest.MonkeyPatch.context() as patch:
        return blending_and_lost(tmp_path_factory.mktemp("lost"), patch)


def blending_and_lost(directory: Path, patch: pytest.MonkeyPatch) -> SmallRun:
    lose_envs(patch, {(0, 5)})
    return small_run(directory, "periodic", max_epochs=9, lifecycle=LENIENT)


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """A host that hardly moves."""
    directory = tmp_path_factory.mktemp("steady")
    return small_run(directory, "wait", max_epochs=6, n_envs=1, host_lr=1e-12)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    """Gradients that are not finite, and an env that breaks."""
    with pytest.MonkeyPatch.context() as patch:
        infinite = torch.tensor([math.inf]).double()
        patch.setattr(batch_ops, "gradient_norms", lambda parameters: infinite)
        break_envs(patch, Phase.TRAIN, {(1, 1)})
        return small_run(tmp_path_factory.mktemp("broken"), "wait", max_epochs=2)


@pytest.mark.parametrize(
    ("event_type", "facts"),
    [
        (EventType.RATIO_EXPLOSION_DETECTED, {"ratio": 6.0, "threshold": 5.0}),
        (EventType.RATIO_COLLAPSE_DETECTED, {"ratio": 0.05, "threshold": 0.1}),
        (EventType.VALUE_COLLAPSE_DETECTED, {"value_loss": 7.0}),
        (EventType.KL_SPIKE_DETECTED, {"kl_divergence": 0.8}),
        (EventType.NUMERICAL_INSTABILITY_DETECTED, {"where": ("nan_gradients",)}),
        (EventType.LSTM_ANOMALY_DETECTED, {"kind": "exploding", "state": "h", "rms": 20.0}),
    ],
)
def test_a_forced_figure_becomes_its_alarm(anomalous: SmallRun, event_type, facts) -> None:
    first = anomalous.data(event_type)[0]

    assert {name: getattr(first, name) for name in facts} == facts
    assert anomalous.counts[event_type] == 4


def test_a_head_that_stopped_exploring_is_reported_from_its_third_update_on(
    anomalous: SmallRun,
) -> None:
    reported = anomalous.data(EventType.ENTROPY_COLLAPSE_DETECTED)
    assert [(item.head, item.consecutive_updates) for item in reported] == [("op", 3), ("op", 4)]
    assert [event.round for event in anomalous.of(EventType.ENTROPY_COLLAPSE_DETECTED)] == [2, 3]


def test_every_figure_that_the_detector_looks_at_is_measured_by_an_update(
    lively: SmallRun,
) -> None:
    for update in lively.data(EventType.PPO_UPDATE_COMPLETED):
        for name in ("ratio_min", "ratio_max", "value_loss", "bellman_error", "gradient_norm"):
            assert getattr(update, name) is not None
        assert update.kl_divergence is not None
        assert update.usable_steps > 0
        assert update.heads["op"].entropy > 0
        assert update.lstm_rollout.h_env_rms_max > 0
        assert update.lstm_rollout.c_rms > 0


def test_an_anomaly_shows_more_for_five_steps_and_no_longer(tmp_path, patch) -> None:
    force_updates(patch, kl_divergence=0.8, gradient_norm=1.0)

    run = small_run(tmp_path, n_episodes=2, max_epochs=6)

    reported = [(event.round, event.step) for event in run.of(EventType.OBSERVATION_STATS)]
    assert reported == [(1, step) for step in range(5)]
    layers = run.of(EventType.LAYER_GRADIENTS_COLLECTED)
    assert [event.round for event in layers] == [0, 1]
    assert all(layer.norm is not None for event in layers for layer in event.data.layers)
    assert len(layers[0].data.layers) == len(list(run.result.agent.network.parameters()))
    assert run.result.state.escalation.steps_left == 5


def test_without_an_anomaly_nothing_more_is_shown(tmp_path, patch) -> None:
    force_updates(patch, gradient_norm=1.0, value_loss=0.1)

    run = small_run(tmp_path, n_episodes=2, max_epochs=2)

    assert run.counts[EventType.OBSERVATION_STATS] == 0
    assert run.counts[EventType.LAYER_GRADIENTS_COLLECTED] == 0


def test_two_spoilt_updates_degrade_and_the_third_in_a_row_ends_the_run(tmp_path, patch) -> None:
    spoil_losses(patch, {0, 1, 3, 4, 5})

    run = small_run(tmp_path, n_episodes=9, n_envs=1, max_epochs=1)

    assert isinstance(run.error, RunFailedError)
    assert "3 updates in a row" in str(run.error)
    alarms = run.of(EventType.NUMERICAL_INSTABILITY_DETECTED)
    assert [event.round for event in alarms] == [0, 1, 3, 4, 5]
    assert [event.data.consecutive_skips for event in alarms] == [1, 2, 1, 2, 3]
    assert [event.severity for event in alarms] == [Severity.WARNING] * 4 + [Severity.ERROR]
    assert all(event.data.where for event in alarms)
    skipped = [item.skip_reason for item in run.data(EventType.BATCH_STATS)]
    assert skipped == ["nonfinite", "nonfinite", None, "nonfinite", "nonfinite", "nonfinite"]
    assert run.counts[EventType.PPO_UPDATE_COMPLETED] == 1
    assert run.data(EventType.RUN_FINISHED)[0].status == "failed"


def test_a_full_device_is_reported_with_its_allocator_statistics(anomalous: SmallRun) -> None:
    stats = anomalous.data(EventType.ALLOCATOR_STATS)[0]
    warning = anomalous.data(EventType.MEMORY_WARNING)[0]

    assert (stats.device, stats.allocated_bytes, stats.reserved_bytes) == ("cpu", 80, 85)
    assert (stats.num_retries, stats.num_ooms) == (3, 1)
    assert warning.used_fraction == pytest.approx(0.9)
    assert (warning.threshold_fraction, warning.total_bytes) == (0.85, 100)
    assert anomalous.counts[EventType.ALLOCATOR_STATS] == 4
    assert anomalous.counts[EventType.MEMORY_WARNING] == 4


def test_seeds_at_work_that_could_not_be_weighed_are_reported_with_the_rollback(
    lost: SmallRun,
) -> None:
    run = lost
    (missing,) = run.of(EventType.COUNTERFACTUAL_UNAVAILABLE)
    assert (missing.env_id, missing.step) == (0, 5)
    assert missing.data.reason == "validation loss is nan"
    assert missing.data.slot_ids
    (rollback,) = run.of(EventType.GOVERNOR_ROLLBACK)
    assert set(missing.data.slot_ids) <= set(rollback.data.pruned_slots)
    pruned = [
        event for event in run.of(EventType.SEED_PRUNED) if event.data.initiator == "governor"
    ]
    assert [event.data.slot_id for event in pruned] == list(rollback.data.pruned_slots)
    weighed = {
        (event.env_id, event.step) for event in run.of(EventType.COUNTERFACTUAL_MATRIX_COMPUTED)
    }
    assert (0, 5) not in weighed


def test_a_gradient_that_is_not_finite_is_reported_for_its_host(broken: SmallRun) -> None:
    event = broken.of(EventType.GRADIENT_ANOMALY)[0]

    assert (event.data.kind, event.data.slot_id, event.data.norm) == ("nonfinite", None, None)
    assert event.nonfinite == ("norm",)


def test_a_steady_host_is_reported_once(steady: SmallRun) -> None:
    (reported,) = steady.of(EventType.TAMIYO_INITIATED)

    assert reported.data.stable_steps == reported.data.required_steps
    assert reported.step == reported.data.required_steps


def test_a_seed_paid_for_more_than_it_is_worth_is_suspected() -> None:
    play = Play(make_control(reward_scheme=scheme()))
    reports = (make_report("r0c1", Stage.HOLDING, contribution_pp=9.0, steps_since_contribution=0),)
    weighed = attribution(r0c1=9.0)
    (seed,) = weighed.seeds
    overpaid = msgspec.structs.replace(seed, attributed_pp=1.0)
    weighed = msgspec.structs.replace(weighed, seeds=(overpaid,))
    play.step(evidence={1: env_evidence(1, 0, reports=reports, attribution=weighed)})

    (draft,) = [item for item in play.drafts if isinstance(item.payload, RewardHackingSuspected)]
    assert (draft.scope.env_id, draft.payload.slot_id) == (1, "r0c1")
    assert (draft.payload.contribution_pp, draft.payload.attributed_pp) == (9.0, 1.0)
    assert draft.payload.pattern == "attribution_ratio"


EMITTERS = {
    "emit_with_env_context": (step_events, emitters),
    "apply_slot_telemetry": (step_events,),
    "emit_last_action": (step_events,),
    "emit_cf_unavailable": (step_events,),
    "compute_grad_norm_surrogate": (emitters,),
    "aggregate_layer_gradient_health": (seed_management,),
    "topology_manifest": (step_events,),
    "emit_batch_completed": (reporter,),
    "emit_ppo_update_event": (reporter,),
    "emit_action_distribution": (reporter,),
    "emit_throughput": (reporter,),
    "emit_reward_summary": (reporter,),
    "emit_mask_hit_rates": (reporter,),
    "check_performance_degradation": (reporter,),
}


def test_every_emitter_is_called_by_a_run(tmp_path, patch) -> None:
    called = set()
    for name, modules in EMITTERS.items():
        for module in modules:
            original = getattr(module, name)

            def noted(*args, original=original, name=name, **kwargs):
                called.add(name)
                return original(*args, **kwargs)

            patch.setattr(module, name, noted)

    force_updates(patch, kl_divergence=0.8)
    small_run(tmp_path / "a", max_epochs=2)
    blending_and_lost(tmp_path / "b", patch)

    assert called == set(EMITTERS)


def test_every_type_of_a_run_has_been_seen_from_its_producer(
    anomalous: SmallRun, lost: SmallRun, steady: SmallRun, broken: SmallRun, lively: SmallRun
) -> None:
    seen = {kind for run in (anomalous, lost, steady, broken, lively) for kind in run.counts}

    of_runs = {kind for kind, spec in EVENT_SPECS.items() if spec.channel is Channel.RUN}
    shown_in_tests_of_their_own = {
        EventType.EPISODE_CONTEXT_DRAWN,  # only tasks with contexts have it: test_contexts.py
        EventType.REWARD_HACKING_SUSPECTED,
        EventType.GRADIENT_PATHOLOGY_DETECTED,
        EventType.PERFORMANCE_DEGRADATION,
        EventType.PLATEAU_DETECTED,
        EventType.DEGRADATION_DETECTED,
        EventType.IMPROVEMENT_DETECTED,
    }
    assert of_runs - seen <= shown_in_tests_of_their_own
