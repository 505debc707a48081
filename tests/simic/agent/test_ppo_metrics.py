"""What an update measures, and how it is reduced and reported."""

from dataclasses import fields, replace

import pytest
import torch
from tests.simic.agent.rollouts import learn_round, play_round, small_agent
from tests.tamiyo.policies import generator

from esper.leyline.actions import HEADS, Head, Op
from esper.leyline.payloads import PPOUpdateCompleted
from esper.simic.agent.ppo_metrics import (
    HeadMetrics,
    LossMetrics,
    PPOMetrics,
    materialize_figures,
    materialize_lstm_health,
    pack,
    ppo_update_event,
    reduced,
    reducers_of,
)
from esper.simic.normalizers import RewardNormalizer
from esper.tamiyo.network import LstmState


@pytest.fixture(scope="module")
def metrics() -> PPOMetrics:
    agent = small_agent()
    play_round(agent, rollbacks=[(1, 4), (2, 0)])
    return learn_round(
        agent, RewardNormalizer(), generator=generator(1), rollout_state=agent.initial_state()
    )


@pytest.mark.parametrize("kind", [LossMetrics, HeadMetrics, PPOMetrics])
def test_every_figure_declares_how_it_is_reduced(kind: type) -> None:
    reducers = reducers_of(kind)

    assert set(reducers) == {item.name for item in fields(kind)}
    assert all(callable(reducer) for reducer in reducers.values())


def test_figures_are_reduced_as_declared_and_what_is_missing_does_not_count() -> None:
    names = [item.name for item in fields(LossMetrics)]
    rows = [LossMetrics(**dict.fromkeys(names, value)) for value in (1.0, None, 3.0)]

    joint = reduced(rows)

    assert (joint.policy_loss, joint.ratio_max, joint.ratio_min) == (2.0, 3.0, 1.0)
    assert reduced(rows[1:2]).policy_loss is None


def test_updates_of_a_round_are_reduced_to_one(metrics: PPOMetrics) -> None:
    stopped = replace(
        metrics,
        losses=None,
        heads={},
        num_optimizer_steps=0,
        kl_stop_epoch=2,
        nonfinite=("op", "value"),
        learning_rate=1.0,
        has_low_return_variance=True,
    )

    joint = reduced([metrics, stopped])

    assert joint.losses == metrics.losses
    assert joint.heads == metrics.heads
    assert joint.num_optimizer_steps == metrics.num_optimizer_steps
    assert joint.usable_steps == metrics.usable_steps
    assert (joint.kl_stop_epoch, joint.learning_rate) == (2, 1.0)
    assert joint.nonfinite == ("op", "value")
    assert joint.has_low_return_variance


def test_figures_cross_in_the_order_of_their_declaration() -> None:
    names = [item.name for item in fields(HeadMetrics)]
    figures = {name: torch.tensor(float(index)) for index, name in enumerate(names)}
    shuffled = dict(reversed(figures.items()))
    shuffled["entropy"] = torch.tensor(torch.nan)

    (row,) = materialize_figures(HeadMetrics, [pack(HeadMetrics, **shuffled)])

    assert row.entropy is None
    assert [getattr(row, name) for name in names[1:]] == [1.0, 2.0, 3.0, 4.0]


def test_event_carries_every_figure(metrics: PPOMetrics) -> None:
    event = ppo_update_event(metrics, 12.5)

    assert isinstance(event, PPOUpdateCompleted)
    assert event.update_ms == 12.5
    assert list(event.heads) == [head.value for head in HEADS]
    assert list(event.op_q_values) == [op.name for op in Op]
    assert event.policy_loss == metrics.losses.policy_loss
    assert event.explained_variance == metrics.returns.explained_variance
    assert (event.rollback_count, event.rollback_steps_forfeited) == (2, 4)
    assert event.usable_steps == 6 * 9 - 2
    assert event.lstm_rollout.h_rms == 0.0
    assert event.lstm_update.h_rms > 0.0


def test_head_that_nothing_reached_has_no_gradient_norm_rather_than_zero() -> None:
    agent = small_agent()
    play_round(agent)
    agent.buffer.batch().masks.op[..., Op.GERMINATE] = False
    agent.buffer.batch().effective_ops.fill_(Op.WAIT)

    heads = learn_round(agent, RewardNormalizer(), generator=generator(1)).heads

    assert heads[Head.BLUEPRINT].gradient_norm is None
    assert heads[Head.BLUEPRINT].entropy is None
    assert heads[Head.BLUEPRINT].learnable_fraction == 0.0
    assert heads[Head.OP].gradient_norm > 0


def test_lstm_health_measures_size_and_finiteness() -> None:
    h, c = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.zeros(2, 2)

    health = materialize_lstm_health(LstmState(h=h, c=c))
    broken = materialize_lstm_health(LstmState(h=h, c=torch.full((2, 2), torch.inf)))

    assert health.h_rms == pytest.approx(2.5)
    assert health.h_env_rms_max == pytest.approx(12.5**0.5)
    assert (health.h_abs_max, health.c_abs_max) == (4.0, 0.0)
    assert not health.has_nan
    assert not health.has_inf
    assert broken.has_inf
