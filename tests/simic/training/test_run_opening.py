"""Which controller a run has, and that a resumed run keeps its own."""

import msgspec
import pytest
from tests.simic.training.builders import loaded_run

from esper.leyline.config import Job, TrainingConfig
from esper.leyline.errors import ConfigError, UsageError
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.run_opening import POLICY_COMMAND, command_for

JOB = Job(training=TrainingConfig(n_episodes=3))


def loaded(command: str) -> LoadedRun:
    return loaded_run(JOB, command)


@pytest.mark.parametrize(("asked", "command"), [(None, POLICY_COMMAND), ("wait", "wait")])
def test_new_run_has_the_named_controller_or_the_policy(asked: str | None, command: str) -> None:
    assert command_for(JOB, asked, None) == command


@pytest.mark.parametrize("asked", [None, "heuristic"])
def test_resumed_run_keeps_its_controller(asked: str | None) -> None:
    assert command_for(JOB, asked, loaded("heuristic")) == "heuristic"


def test_resumed_run_refuses_another_controller_and_names_both() -> None:
    with pytest.raises(UsageError, match="'heuristic' and 'ppo'"):
        command_for(JOB, "ppo", loaded("heuristic"))


def test_resumed_run_may_get_more_rounds_and_nothing_else() -> None:
    def with_training(**changes: object) -> Job:
        return Job(training=msgspec.structs.replace(JOB.training, **changes))

    assert command_for(with_training(n_episodes=4), None, loaded("wait")) == "wait"
    with pytest.raises(ConfigError, match="n_episodes"):
        command_for(with_training(n_episodes=2), None, loaded("wait"))
    with pytest.raises(ConfigError, match="seed"):
        command_for(with_training(seed=JOB.training.seed + 1), None, loaded("wait"))
