"""Probes: figures of a closer look against figures by hand."""

import math

import pytest
import torch
from tests.simic.telemetry.updates import update
from tests.simic.training.builders import Play, make_control, small_policy

from esper.simic.telemetry.gradients import check_numerical_stability, collect_per_layer_gradients
from esper.simic.training.diagnostics import RunDiagnostics
from esper.simic.training.policy_controller import PolicyController


def diagnostics(learner: PolicyController | None = None) -> RunDiagnostics:
    return RunDiagnostics(
        learner=learner,
        collect_layers=collect_per_layer_gradients,
        check_stability=check_numerical_stability,
    )


def test_observations_are_summed_up_group_by_group() -> None:
    learner = small_policy()
    size = learner.obs_normalizer.mean.numel()
    seen = torch.zeros(2, size)
    seen[:, 0], seen[0, 13], seen[:, 23:] = 10.0, 9.5, -2.0
    seen[1, 23], seen[1, 24], seen[1, 25] = 4.0, math.nan, math.inf
    learner.last_observation = seen

    reported = diagnostics(learner).observation_stats()

    assert reported.host_mean == pytest.approx(10.0 / 13)
    assert reported.host_std == pytest.approx(math.sqrt(100 / 13 - (10 / 13) ** 2))
    assert reported.context_mean == pytest.approx(9.5 / 20)
    assert reported.outlier_fraction == pytest.approx(5 / (2 * size))
    assert reported.near_clip_fraction == pytest.approx(4 / (2 * size))
    assert reported.clip_fraction == pytest.approx(3 / (2 * size))
    assert (reported.nan_count, reported.inf_count) == (1, 1)
    assert reported.normalization_drift == 0.0


def test_drift_is_how_far_the_normaliser_has_moved_from_where_it_began() -> None:
    learner = small_policy()
    learner.last_observation = torch.zeros(1, learner.obs_normalizer.mean.numel())
    learner.obs_normalizer.update(torch.full((3, learner.obs_normalizer.mean.numel()), 2.0))

    drift = diagnostics(learner).observation_stats().normalization_drift
    assert drift == pytest.approx(2.0)


def test_after_an_update_every_layer_that_was_trained_has_a_gradient_to_look_at() -> None:
    play = Play(make_control())
    for step in range(6):
        play.step(deltas={0: 0.1 * step, 1: 0.5, 2: 0.2})
    play.control.learn()
    network = play.control.learner.agent.network

    layers = diagnostics(play.control.learner).layer_gradients()

    assert {layer.layer for layer in layers} == {name for name, _ in network.named_parameters()}
    assert sum(layer.norm > 0 for layer in layers) > len(layers) / 2


def test_a_controller_that_does_not_learn_has_nothing_to_look_at() -> None:
    assert diagnostics().layer_gradients() == ()
    assert diagnostics().observation_stats() is None
    assert diagnostics(small_policy()).observation_stats() is None


def test_only_measured_figures_can_be_unstable() -> None:
    spoilt = update(value_loss=math.nan, ratio_max=math.inf, entropy=None)

    assert diagnostics().unstable(spoilt) == ("value_loss", "ratio_max")
    assert diagnostics().unstable(update()) == ()
