"""Arguments of the entry point: given ones become a layer, all others are left to the job."""

import inspect
from pathlib import Path

import pytest

from esper.leyline.config import RunOptions, TrainingConfig
from esper.leyline.errors import InvalidValueError
from esper.leyline.jobs import merge_job
from esper.leyline.rewards import RewardMode
from esper.leyline.tasks import TASKS
from esper.simic.training.arguments import DEFAULTS, NotGiven, layer_from_arguments
from esper.simic.training.vectorized import train_ppo_vectorized

KEYS = (*TrainingConfig.__struct_fields__, *RunOptions.__struct_fields__)
NOTHING = {key: getattr(DEFAULTS, key) for key in KEYS}


def test_every_key_of_a_job_is_an_argument_with_its_default() -> None:
    parameters = inspect.signature(train_ppo_vectorized).parameters
    for key in KEYS:
        assert parameters[key].default is getattr(DEFAULTS, key)
    plain = {**_asdict(TrainingConfig()), **_asdict(RunOptions())}
    assert {key: NOTHING[key].configured for key in KEYS} == plain


def _asdict(table: object) -> dict[str, object]:
    return {name: getattr(table, name) for name in table.__struct_fields__}  # type: ignore[attr-defined]


def test_arguments_that_were_not_given_decide_nothing() -> None:
    assert layer_from_arguments(NOTHING) == {"training": {}, "run": {}}


def test_argument_that_equals_its_default_counts_as_given() -> None:
    layer = layer_from_arguments({**NOTHING, "seed": TrainingConfig().seed, "quiet": True})
    assert layer == {"training": {"seed": TrainingConfig().seed}, "run": {"quiet": True}}


def test_structs_enums_and_paths_become_plain_values_that_merge_to_the_same() -> None:
    config = TrainingConfig()
    given = {
        **NOTHING,
        "reward_mode": config.reward_mode,
        "governor": config.governor,
        "save_path": Path("a/b"),
    }
    layer = layer_from_arguments(given)

    assert layer["run"] == {"save_path": "a/b"}
    job, _ = merge_job(("arguments", layer), tasks=TASKS)
    assert job.training.governor == config.governor
    assert job.training.reward_mode is config.reward_mode
    assert job.run.save_path == "a/b"


def test_value_without_a_plain_form_is_named() -> None:
    with pytest.raises(InvalidValueError, match=r"training\.seed"):
        layer_from_arguments({**NOTHING, "seed": object()})


@pytest.mark.parametrize(
    ("default", "shown"),
    [
        (NotGiven(7, "default"), "<default 7>"),
        (NotGiven(RewardMode.SHAPED, "task's, else"), "<task's, else 'shaped'>"),
        (NotGiven(TrainingConfig().governor, "default"), "<default GovernorConfig()>"),
    ],
)
def test_help_shows_the_default_and_where_it_comes_from(default: NotGiven, shown: str) -> None:
    assert repr(default) == shown
