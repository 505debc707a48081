"""What the critic of a policy predicts, beside what is paid."""

import pytest
from tools.critic import MAX_ERROR, Predicted, discounted, predictions

from esper.simic.training.checkpoints.builtin import checkpoint_at
from esper.simic.training.checkpoints.resuming import load_run
from tools import critic

pytestmark = pytest.mark.timeout(300)


def test_return_of_a_step_is_the_discounted_sum_of_what_follows() -> None:
    rewards, gamma = [1.0, 0.0, -2.0, 4.0], 0.5

    by_definition = [
        sum(gamma ** (later - step) * rewards[later] for later in range(step, len(rewards)))
        for step in range(len(rewards))
    ]

    assert discounted(rewards, gamma) == pytest.approx(by_definition)


def test_error_is_relative_to_the_size_of_returns_and_does_not_cancel() -> None:
    found = Predicted(
        values=((3.0, 1.0), (0.0, -1.0)), returns=((4.0, 2.0), (-1.0, -1.0)), num_left_out=0
    )

    assert found.error == pytest.approx((1 + 1 + 1 + 0) / 4 / ((4 + 1) / 2))
    assert found.error_by_step == pytest.approx((1 + 1 + 1 + 0) / (4 + 2 + 1 + 1))
    assert found.first == (1.5, 1.5)


def test_shipped_critic_predicts_what_held_out_hosts_return() -> None:
    policy = load_run(checkpoint_at("builtin:digits_growth"))

    found = predictions(policy, [1000], num_envs=4, is_greedy=False)

    assert len(found.values) == 4
    assert {len(values) for values in found.values} == {policy.job.training.max_epochs}
    assert found.error <= MAX_ERROR


@pytest.mark.parametrize(("error", "code"), [(MAX_ERROR, 0), (MAX_ERROR + 0.01, 1)])
def test_command_fails_if_the_error_is_too_large(
    error: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Predicted(values=((1.0 + error,),), returns=((1.0,),), num_left_out=3)
    monkeypatch.setattr(critic, "predictions", lambda *_, **__: found)

    assert critic.main([]) == code
    assert f"3 left out; mean |V - G| is {error:.1%}" in capsys.readouterr().out
