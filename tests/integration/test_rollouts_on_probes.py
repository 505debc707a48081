"""Shaping and observations over whole rounds of the real engine, on a probe."""

from functools import partial

import pytest
import torch
from tools.probes.learning import job_of, play_round, setup_of

from esper.leyline.rewards import EpisodeEnd, Potential, RewardFamily, RewardMode
from esper.runtime.tasks import registered_task
from esper.simic.rewards.scheme import scheme_of
from esper.simic.training.assembly.run_setup import RunSetup
from esper.simic.training.policy_controller import PolicyController
from esper.simic.training.step import StepResult
from esper.tolaria.event_loop import run_event_loop

NUM_ENVS, NUM_STEPS = 16, 30
SHAPED = [mode for mode in RewardMode if mode not in (RewardMode.SPARSE, RewardMode.MINIMAL)]


def a_round(seed: int = 1, **training: object) -> tuple[RunSetup, tuple[StepResult, ...]]:
    """Let a new policy, which acts almost at random, play a round of `probe:growth`."""
    job = job_of("growth", seed=seed, n_envs=NUM_ENVS, max_epochs=NUM_STEPS, **training)
    setup = setup_of(job, command="ppo")
    return setup, run_event_loop(partial(play_round, setup), setup.worker.stop)


@pytest.mark.parametrize(
    ("family", "mode", "potential"),
    [
        *(
            (RewardFamily.CONTRIBUTION, mode, potential)
            for mode in SHAPED
            for potential in Potential
        ),
        (RewardFamily.LOSS, RewardMode.SHAPED, Potential.STAGES),
    ],
)
def test_shaping_of_every_episode_adds_up_to_nothing(
    family: RewardFamily, mode: RewardMode, potential: Potential
) -> None:
    setup, steps = a_round(
        reward_family=family,
        reward_mode=mode,
        reward={"disable_pbrs": False, "pbrs_potential": potential},
    )
    training = setup.job.training
    scheme = scheme_of(training, registered_task(training.task).spec)
    assert scheme.episode_end is EpisodeEnd.TERMINATE
    [episodes] = [step.record.ended for step in steps if step.record.ended]
    assert len(episodes) == NUM_ENVS
    num_actions = 0
    for env_id, episode in enumerate(episodes):
        terms = [step.record.components[env_id].pbrs for step in steps]
        num_actions += sum(term != 0.0 for term in terms)
        discounted = sum(scheme.gamma**index * term for index, term in enumerate(terms))
        assert discounted == pytest.approx(0.0, abs=1e-9)
        assert episode.task_return == pytest.approx(episode.total_reward - sum(terms), abs=1e-9)
    assert num_actions > NUM_ENVS * NUM_STEPS / 2


def test_after_a_round_every_varying_feature_reaches_the_policy_with_a_deviation_near_one() -> None:
    setup, _ = a_round()
    assert isinstance(setup.controller, PolicyController)
    normalizer = setup.controller.obs_normalizer
    raw = torch.cat(setup.controller._raw_obs)

    normalizer.update(raw)

    is_varying = raw.std(0) > 1e-5
    assert int(is_varying.sum()) > 60
    deviations = normalizer.normalize(raw).std(0, correction=0)
    assert bool(((deviations >= 0.5) & (deviations <= 2.0))[is_varying].all())
    assert bool((deviations[~is_varying] == 0.0).all())
