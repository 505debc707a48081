"""What the trainer hands over: updates, escalation, diagnostics, targets."""

from dataclasses import replace

import pytest
from tests.kasmina.bodies import REQUEST, granted, grown
from tests.simic.agent.rollouts import learn_round, play_round, small_agent
from tests.tamiyo.policies import generator

from esper.leyline.actions import ActionSpec, Op
from esper.leyline.config import TelemetryConfig
from esper.leyline.errors import ContractError
from esper.leyline.payloads import (
    KlSpikeDetected,
    LayerGradient,
    LayerGradientsCollected,
    NumericalInstabilityDetected,
)
from esper.leyline.stages import Stage
from esper.leyline.telemetry import Draft, EventScope, EventType, Severity
from esper.nissa.bus.recording_hub import RecordingHub
from esper.simic.agent.ppo_metrics import PPOMetrics
from esper.simic.control.context import HandlerContext
from esper.simic.control.handlers import HANDLERS
from esper.simic.normalizers import RewardNormalizer
from esper.simic.seed_management import (
    Escalation,
    advance_active_seed,
    aggregate_ppo_metrics,
    calculate_entropy_anneal_steps,
    emit_anomaly_diagnostics,
    handle_telemetry_escalation,
    resolve_target_slot,
    run_ppo_updates,
)


@pytest.fixture(scope="module")
def metrics() -> PPOMetrics:
    agent = small_agent(num_epochs=1)
    play_round(agent)
    return learn_round(agent, RewardNormalizer(), generator=generator(1))


def test_a_seed_advances_through_its_gate_and_stays_where_the_gate_refuses() -> None:
    model = grown()
    slot = model.slot("r0c0")
    granted(slot.germinate(REQUEST, generator(3)))

    context = HandlerContext(
        model=model, seed_id="another", generator=generator(4), accuracy_pct=50.0, step=0
    )
    action = ActionSpec(op=Op.ADVANCE, slot_id="r0c0")
    assert advance_active_seed(action, context).succeeded
    assert slot.state.stage is Stage.TRAINING
    refused = advance_active_seed(action, context)
    assert not refused.succeeded, "no gradient was ever measured"
    assert slot.state.stage is Stage.TRAINING


def test_slots_are_named_in_action_order_and_not_by_name() -> None:
    slots = ("r0c10", "r0c2", "r1c0")

    assert [resolve_target_slot(index, slots) for index in range(3)] == list(slots)


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_that_names_no_slot_is_refused(index: int) -> None:
    with pytest.raises(ContractError, match=f"slot index {index}: slots are 0 to 2"):
        resolve_target_slot(index, ("r0c10", "r0c2", "r1c0"))


def test_the_handler_of_advance_is_advance_active_seed() -> None:
    assert HANDLERS[Op.ADVANCE] is advance_active_seed


@pytest.mark.parametrize(
    ("episodes", "envs", "updates"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (12, 1, 12)]
)
def test_annealing_counts_rounds_of_all_envs(episodes: int, envs: int, updates: int) -> None:
    assert calculate_entropy_anneal_steps(episodes, envs) == updates


def test_updates_go_on_until_one_takes_no_step(metrics: PPOMetrics) -> None:
    idle = replace(metrics, num_optimizer_steps=0)
    series = [metrics, metrics, idle, metrics]

    assert run_ppo_updates(lambda index: series[index], 4) == (metrics, metrics, idle)
    assert run_ppo_updates(lambda index: series[index], 1) == (metrics,)


def test_the_kl_stop_ends_the_series_with_the_update_that_it_cut_short(metrics: PPOMetrics) -> None:
    stopped = replace(metrics, kl_stop_epoch=1)
    series = [metrics, stopped, metrics]

    assert run_ppo_updates(lambda index: series[index], 3) == (metrics, stopped)


def test_updates_are_reduced_field_by_field(metrics: PPOMetrics) -> None:
    later = replace(metrics, kl_divergence=9.0, num_optimizer_steps=3)

    joint = aggregate_ppo_metrics([metrics, later])

    assert joint.kl_divergence == 9.0
    assert joint.num_optimizer_steps == metrics.num_optimizer_steps + 3
    assert joint.num_updates == 2
    assert joint.losses.value_loss == pytest.approx(metrics.losses.value_loss)


def test_figures_of_the_rollout_are_not_added_up(metrics: PPOMetrics) -> None:
    joint = aggregate_ppo_metrics([metrics, metrics, metrics])

    assert joint.returns == metrics.returns
    assert joint.usable_steps == metrics.usable_steps > 0
    assert joint.op_q_values == metrics.op_q_values


def test_an_update_without_a_step_takes_nothing_from_the_ones_before(metrics: PPOMetrics) -> None:
    idle = replace(metrics, losses=None, heads={}, lstm_update=None, num_optimizer_steps=0)

    joint = aggregate_ppo_metrics([metrics, idle])

    assert joint.lstm_update == metrics.lstm_update
    assert joint.lstm_update is not None
    assert joint.losses == metrics.losses
    assert joint.has_learned


def hub_at(level: str) -> RecordingHub:
    return RecordingHub(config=TelemetryConfig(level=level))


def test_an_anomaly_lets_everything_through_for_its_steps() -> None:
    hub, config = hub_at("normal"), TelemetryConfig(escalation_steps=2)
    wanted = []
    escalation = handle_telemetry_escalation(hub, Escalation(), has_anomaly=True, config=config)
    for _ in range(3):
        wanted.append(hub.wants(EventType.OBSERVATION_STATS))
        escalation = handle_telemetry_escalation(
            hub, escalation.after_step(), has_anomaly=False, config=config
        )

    assert wanted == [True, True, False]
    assert escalation == Escalation()


def test_a_second_anomaly_starts_the_steps_anew() -> None:
    config = TelemetryConfig(escalation_steps=3)

    escalation = handle_telemetry_escalation(
        hub_at("normal"), Escalation(steps_left=1), has_anomaly=True, config=config
    )

    assert escalation.steps_left == 3


def test_escalation_can_be_switched_off_and_never_takes_away() -> None:
    quiet, loud = hub_at("normal"), hub_at("debug")
    off = TelemetryConfig(auto_escalate=False)

    handle_telemetry_escalation(quiet, Escalation(), has_anomaly=True, config=off)
    handle_telemetry_escalation(loud, Escalation(), has_anomaly=False, config=TelemetryConfig())

    assert not quiet.wants(EventType.OBSERVATION_STATS)
    assert loud.wants(EventType.OBSERVATION_STATS)


def test_diagnostics_come_after_the_alarms_and_a_halt_is_an_error() -> None:
    spike = KlSpikeDetected(kl_divergence=0.5, threshold=0.1)
    skip = NumericalInstabilityDetected(where=("op",), consecutive_skips=2, is_halting=False)
    halt = NumericalInstabilityDetected(where=("op",), consecutive_skips=3, is_halting=True)
    layer = LayerGradient(
        layer="x", norm=1.0, health=0.0, zero_fraction=1.0, nan_count=0, inf_count=0
    )
    drafts: list[Draft] = []

    emit_anomaly_diagnostics(drafts.append, (spike, skip, halt), (layer,), 7)

    scope = EventScope(round=7)
    closer = LayerGradientsCollected(layers=(layer,), num_dead=1, num_exploding=0)
    assert drafts == [
        Draft(spike, scope),
        Draft(skip, scope),
        Draft(halt, scope, Severity.ERROR),
        Draft(closer, scope),
    ]


def test_without_layers_there_are_no_further_diagnostics() -> None:
    drafts: list[Draft] = []

    emit_anomaly_diagnostics(drafts.append, (), (), 0)

    assert drafts == []
