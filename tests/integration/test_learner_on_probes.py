"""PPO on the probes, in short: `make probes` has the long form, with three seeds of each probe."""

from pathlib import Path

import pytest
from tools.probes.__main__ import REQUIRED_SHARE, share_learned
from tools.probes.learning import job_of, last_checkpoint, play, train

pytestmark = pytest.mark.timeout(600)

SHORT_COURSE = {"n_episodes": 30, "entropy_anneal_episodes": 64 * 25}


def test_the_critic_of_a_constant_reward_knows_its_discounted_value(tmp_path: Path) -> None:
    job = job_of("constant", telemetry_dir=tmp_path, n_envs=16)
    played = play(last_checkpoint(train(job)), seeds=[1000])
    training = job.training
    assert training.n_episodes == 50
    for index, step in enumerate(played.steps[0]):
        true_value = 1.5 * training.gamma ** (training.max_epochs - 1 - index)
        values = [detail.value_estimate for detail in step.decision.details if detail is not None]
        assert len(values) == training.n_envs
        assert values == pytest.approx([true_value] * len(values), abs=0.05 * 1.5)


def test_ppo_learns_which_seed_suits_which_host() -> None:
    assert share_learned("context", 1, **SHORT_COURSE) >= REQUIRED_SHARE


def test_a_blind_policy_does_not_learn_which_seed_suits_which_host() -> None:
    # The best that is possible without observations is the best open-loop schedule.
    open_loop = 1.2 / 2.1
    assert share_learned("context", 1, is_blind=True, **SHORT_COURSE) <= open_loop + 0.1
