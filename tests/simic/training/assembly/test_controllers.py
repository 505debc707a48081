"""Controllers by name: new ones from the seed, restored ones from a checkpoint."""

from pathlib import Path

import msgspec
import pytest
import torch
from tests.simic.training.builders import loaded_run

from esper.leyline.actions import Topology
from esper.leyline.config import Job, TrainingConfig
from esper.leyline.errors import UnreadableFileError, UsageError
from esper.leyline.legality import ActionRules
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.training.assembly.controllers import build_controller
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.policy_controller import PolicyController
from esper.tamiyo.controllers.baselines import (
    PeriodicController,
    RandomController,
    WaitController,
)
from esper.tamiyo.controllers.heuristic import HeuristicController
from esper.tamiyo.controllers.protocol import Controller

CONFIG = TrainingConfig(
    slots=("r0c0", "r0c1"), n_envs=2, max_epochs=3, lstm_hidden_dim=8, feature_dim=8
)
RULES = ActionRules(
    slot_ids=CONFIG.slots, topology=Topology.CNN, lifecycle=CONFIG.lifecycle, max_seeds=None
)


def loaded() -> LoadedRun:
    return loaded_run(Job(training=CONFIG), "ppo")


def built(
    command: str = "ppo",
    *,
    seed: int = 1,
    resumed: LoadedRun | None = None,
    agent: type[PPOAgent] = PPOAgent,
) -> Controller:
    return build_controller(
        Job(training=msgspec.structs.replace(CONFIG, seed=seed)),
        command,
        rules=RULES,
        device=torch.device("cpu"),
        resumed=resumed,
        parts=RunParts(agent=agent),
    )


def weights(controller: Controller) -> torch.Tensor:
    assert isinstance(controller, PolicyController)
    parameters = controller.agent.network.parameters()
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("ppo", PolicyController),
        ("wait", WaitController),
        ("random", RandomController),
        ("periodic", PeriodicController),
        ("heuristic", HeuristicController),
    ],
)
def test_command_names_its_controller(command: str, kind: type) -> None:
    assert type(built(command)) is kind


def test_weights_follow_from_the_seed_alone() -> None:
    torch.manual_seed(0)
    first = weights(built(seed=1))
    torch.manual_seed(1)
    assert torch.equal(weights(built(seed=1)), first)
    assert not torch.equal(weights(built(seed=2)), first)


def test_resumed_policy_has_the_agent_of_its_checkpoint() -> None:
    trained = built(seed=5)
    assert isinstance(trained, PolicyController)

    class Loaded(PPOAgent):
        @classmethod
        def load(cls, path: Path, **_: object) -> PPOAgent:
            assert path == Path("c.pt")
            assert isinstance(trained, PolicyController)
            return trained.agent

    restored = built(seed=1, resumed=loaded(), agent=Loaded)
    assert torch.equal(weights(restored), weights(trained))


class Damaged(PPOAgent):
    """Raises what a foreign file may raise."""

    error: Exception = RuntimeError("size mismatch\nfor every layer")

    @classmethod
    def load(cls, path: Path, **_: object) -> PPOAgent:
        raise cls.error


def test_damaged_contents_are_one_sentence_with_the_file() -> None:
    with pytest.raises(UnreadableFileError) as caught:
        built(resumed=loaded(), agent=Damaged)
    assert str(caught.value) == ("c.pt: does not contain the state of this run: size mismatch")


def test_error_that_already_has_a_sentence_is_not_wrapped() -> None:
    class Refusing(Damaged):
        error = UsageError("this checkpoint needs a GPU")

    with pytest.raises(UsageError, match=r"^this checkpoint needs a GPU$"):
        built(resumed=loaded(), agent=Refusing)
