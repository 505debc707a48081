"""PPO on the probes, in short: `make probes` has the long form, with three seeds of each probe."""

from pathlib import Path

import pytest
from tools.probes.__main__ import REQUIRED_SHARE, share_learned
from tools.probes.learning import job_of, last_checkpoint, play, setup_of, train
from tools.probes.solver import solve

from esper.simic.evaluation.arms import parse_arms
from esper.simic.evaluation.compare import compare

pytestmark = pytest.mark.timeout(600)

BEST, OPEN_LOOP = 2.1, 1.2
"""Returns of the best policy and of the best open-loop schedule on `probe:context`."""
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


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that has learned which seed suits which host."""
    directory = tmp_path_factory.mktemp("seeing")
    return last_checkpoint(train(job_of("context", telemetry_dir=directory, **SHORT_COURSE)))


def test_ppo_learns_which_seed_suits_which_host(seeing: Path) -> None:
    best = solve(setup_of(job_of("context", **SHORT_COURSE)))
    assert play(seeing).share_of(best) >= REQUIRED_SHARE


def test_copies_of_the_policy_that_do_not_look_fall_to_the_best_schedule(
    seeing: Path, tmp_path: Path
) -> None:
    arms = parse_arms([f"{kind}:{seeing}" for kind in ("ppo", "yoked", "blind")])

    report = compare(
        job_of("context", telemetry_dir=tmp_path),
        arms,
        seeds=(1000, 1001),
        directory=tmp_path / "runs",
        greedy=True,
    )

    earned = {arm.arm.partition(":")[0]: arm.task_return.value for arm in report.arms}
    assert earned["ppo"] >= REQUIRED_SHARE * BEST
    # Each of 128 envs ends with 2.1 or 0.3, so that a mean has a standard deviation of 0.08.
    assert earned["yoked"] <= OPEN_LOOP + 3 * 0.08
    assert earned["blind"] <= OPEN_LOOP + 3 * 0.08


def test_a_blind_policy_does_not_learn_which_seed_suits_which_host() -> None:
    # The best that is possible without observations is the best open-loop schedule.
    assert share_learned("context", 1, is_blind=True, **SHORT_COURSE) <= OPEN_LOOP / BEST + 0.1
