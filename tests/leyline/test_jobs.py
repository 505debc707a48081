"""Merging, converting and checking a job."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.config import Job, TrainingConfig
from esper.leyline.errors import ConfigError, UsageError
from esper.leyline.jobs import Layer, layer_from_text, merge_job
from esper.leyline.rewards import RewardMode
from esper.leyline.tasks import PRESETS, TASKS, CnnHostSpec


def merged(*layers: Layer) -> Job:
    job, _ = merge_job(*((f"layer {index}", layer) for index, layer in enumerate(layers)))
    return job


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_a_valid_job_by_itself(name: str) -> None:
    job, task = merge_job(("test", {"training": {"task": name}}))
    assert job.training.task == task.name == name
    assert set(job.training.slots) <= set(task.host.slot_ids)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_valid_job_by_itself(name: str) -> None:
    job = merged({"training": {"preset": name}})
    chosen = msgspec.to_builtins(job.training)
    for key, value in msgspec.to_builtins(PRESETS[name].settings).items():
        if isinstance(value, dict):
            assert chosen[key] | value == chosen[key]
        else:
            assert chosen[key] == value


def test_later_layers_win_over_earlier_ones_and_over_preset_and_task() -> None:
    preset = {"training": {"preset": "cifar_baseline"}}
    assert merged(preset).training.entropy_coef == 0.1
    low, high = {"training": {"entropy_coef": 0.2}}, {"training": {"entropy_coef": 0.3}}
    assert merged(preset, low).training.entropy_coef == 0.2
    assert merged(preset, low, high).training.entropy_coef == 0.3
    assert merged(high, low, preset).training.entropy_coef == 0.2


def test_tables_are_merged_key_by_key() -> None:
    first = {"training": {"reward": {"rent_weight": 0.1, "max_rent": 2.0}}}
    second = {"training": {"reward": {"rent_weight": 0.2}}}
    reward = merged(first, second).training.reward
    assert (reward.rent_weight, reward.max_rent) == (0.2, 2.0)


def test_task_on_the_command_line_wins_over_the_presets_task() -> None:
    job = merged({"training": {"preset": "cifar_baseline", "task": "cifar_scale"}})
    assert job.training.task == "cifar_scale"
    assert job.training.entropy_coef == 0.1


def test_a_shown_job_is_the_same_job_when_read_again() -> None:
    job = merged({"training": {"preset": "tinystories"}, "run": {"lanes": 3}})
    text = msgspec.json.encode(job).decode()
    again, _ = merge_job(("again", layer_from_text(text, source="again", is_toml=False)))
    assert again == job


def test_layers_are_not_changed_by_merging() -> None:
    layer = {"training": {"reward": {"rent_weight": 0.1}}}
    merged(layer, {"training": {"reward": {"rent_weight": 0.2}}})
    assert layer == {"training": {"reward": {"rent_weight": 0.1}}}


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"training": {"entrpy_coef": 1}}, r"'training.entrpy_coef'; did you mean .*entropy_coef"),
        ({"training": {"learning_rate": 1}}, r"'training.learning_rate'; did you .*'training.lr'"),
        ({"training": {"epochs": 1}}, r"unknown key 'training.epochs'; did you .*n_episodes'"),
        ({"lr": 1.0}, r"unknown key 'lr'; did you mean 'training.lr'"),
        ({"training": {"zzz": 1}}, r"unknown key 'training.zzz'; 'esper-train config show'"),
        ({"training": {"reward": {"max_rnt": 1}}}, r"did you mean 'training.reward.max_rent'"),
        ({"training": {"lr": "fast"}}, r"training.lr = 'fast': expected `float`, got `str`"),
        ({"training": {"lr": math.nan}}, r"training.lr = nan: must be a finite number"),
        ({"training": {"reward": {"max_rent": math.inf}}}, r"reward.max_rent = inf: must be"),
        ({"training": {"entropy_coef_per_head": {"op": math.inf}}}, r"inf: must be a finite"),
        ({"training": {"entropy_coef_per_head": {"opp": 1.0}}}, r"'opp': must be one of slot"),
        ({"training": {"n_envs": 0}}, r"training.n_envs = 0: must be at least 1"),
        ({"training": {"n_envs": 2.5}}, r"training.n_envs = 2.5: expected `int`, got `float`"),
        ({"training": {"seed": -1}}, r"training.seed = -1: must be at least 0"),
        ({"training": {"gamma": 1.5}}, r"training.gamma = 1.5: must be above 0 and at most 1"),
        ({"training": {"slots": ["r0c0", "mid"]}}, r"slot id 'mid': expected r<row>c<column>"),
        ({"training": {"slots": ["r9c9"]}}, r"'r9c9': task digits has no such slot; it has r0c0"),
        ({"training": {"slots": []}}, r"slots = \[\]: must have at least 1 item"),
        ({"training": {"slots": ["r0c0", "r0c0"]}}, r"must name each slot once"),
        ({"training": {"slots": ["r0c0", 3]}}, r"training.slots\[1\] = 3: expected `str`"),
        ({"training": {"task": "cifar"}}, r"unknown task 'cifar'; did you mean 'cifar_"),
        ({"training": {"preset": "none"}}, r"unknown preset 'none'; .*known: bytes_lm"),
        ({"training": {"reward_mode": "shap"}}, r"reward_mode = 'shap': must be one of shaped, "),
        (
            {"training": {"reward_family": "loss", "reward_mode": "sparse"}},
            r"reward_mode = 'sparse': must be shaped with the loss family",
        ),
        ({"training": {"telemetry": {"level": "loud"}}}, r"level = 'loud': must be one of off, "),
        ({"training": {"lifecycle": {"auto_forward": [5]}}}, r"'G5': must be among G1, G2, G3"),
        ({"training": {"lifecycle": {"auto_forward": [4]}}}, r"= 4: must be one of 0, 1, 2, 3, 5"),
        ({"training": {"governor": {"history_window": 5}}}, r"window = 5: must be at least min_"),
        ({"training": {"governor": {"panics_to_rollback": 0}}}, r"back = 0: must be at least 1"),
        ({"training": {"governor": {"sensitivity": 0}}}, r"sensitivity = 0: must be above 0"),
        ({"training": {"governor": {"death_penalty": -1}}}, r"penalty = -1: must be at least 0"),
        ({"training": {"lifecycle": {"min_prune_age_steps": -1}}}, r"= -1: must be at least 0"),
        ({"training": {"devices": ["cpu"] * 9}}, r"must name 1 to n_envs devices"),
        ({"training": {"devices": []}}, r"devices = \[\]: must have at least 1 item"),
        (
            {"training": {"entropy_coef_per_head": {1: 0.5}}},
            r"entropy_coef_per_head = \{1: 0.5\}: expected `str`, got `int`",
        ),
        (
            {"training": {"entropy_coef_per_head": {"op": -0.5}}},
            r"entropy_coef_per_head = .*op.*: must be at least 0",
        ),
        ({"training": 3}, r"training = 3: must be a table"),
        ({"run": {"profiler": {"torch_active": 0}}}, r"torch_active = 0: must be at least 1"),
        ({"run": {"lanes": 0}}, r"run.lanes = 0: must be at least 1"),
        ({"run": {"name": "latest"}}, r"run.name = 'latest': must be .* must not be 'latest'"),
        ({"run": {"name": "a/b"}}, r"run.name = 'a/b': must be 1 to 64 letters, digits"),
        ({"run": {"name": ""}}, r"run.name = '': must be 1 to 64"),
        ({"run": {"name": "-x"}}, r"run.name = '-x': .* must start with a letter or a digit"),
        ({"run": {"name": "x" * 65}}, r"must be 1 to 64 letters"),
        ({"run": {"tags": {"a b": "1"}}}, r"run.tags = 'a b': must be KEY=VALUE with a key of"),
        ({"run": {"tags": {"a": 1}}}, r"run.tags\S* = .*: expected `str`, got `int`"),
        ({"run": {"serve": "8765"}}, r"run.serve = '8765': must be HOST:PORT"),
        ({"run": {"serve": "localhost:²"}}, r"run.serve = 'localhost:²': must be HOST:PORT"),
    ],
)
def test_bad_input_is_one_sentence_with_the_value_and_the_way_on(
    layer: Layer, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        merged(layer)
    assert "\n" not in str(caught.value)


def test_errors_name_the_layer_they_come_from() -> None:
    with pytest.raises(ConfigError, match=r"^my\.toml: unknown key"):
        merge_job(("my.toml", {"training": {"x": 1}}), ("command line", {}))


@pytest.mark.parametrize(
    "settings",
    [{"n_envs": 0}, {"n_envs": "two"}, {"slots": ["r0c0", "r0c0"]}, {"slots": ["r0c0", 3]}],
)
def test_a_bad_value_names_the_last_layer_that_sets_it(settings: Layer) -> None:
    layers = [
        ("my.toml", {"training": {"n_envs": 2, "slots": ["r0c0"]}}),
        ("--set", {"training": settings}),
        ("--lanes", {"run": {"lanes": 1}}),
    ]
    with pytest.raises(ConfigError, match=r"^--set: training\."):
        merge_job(*layers)


@pytest.mark.parametrize(
    ("text", "is_toml", "message"),
    [
        ("a = ", True, "run.x: not TOML"),
        ("{", False, "run.x: not JSON"),
        ("[1]", False, "run.x: must be a table with the keys training and run"),
    ],
)
def test_text_that_is_no_configuration_is_refused(text: str, is_toml: bool, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        layer_from_text(text, source="run.x", is_toml=is_toml)


def test_toml_and_json_say_the_same() -> None:
    toml = layer_from_text('[training]\nlr = 0.5\nslots = ["r0c0"]', source="t", is_toml=True)
    json = layer_from_text(
        '{"training": {"lr": 0.5, "slots": ["r0c0"]}}', source="j", is_toml=False
    )
    assert merged(toml) == merged(json)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
keys = st.sampled_from([field.name for field in msgspec.structs.fields(TrainingConfig)])


@given(st.dictionaries(keys, json_values, max_size=3))
def test_any_value_in_any_key_gives_a_job_or_an_error_of_ours(settings: Layer) -> None:
    try:
        job = merged({"training": settings})
    except UsageError as error:
        assert str(error)
    else:
        assert isinstance(job.training.reward_mode, RewardMode)


def test_a_task_of_ones_own_can_be_chosen() -> None:
    mine = msgspec.structs.replace(
        TASKS["digits"],
        name="mine",
        host=CnnHostSpec(in_channels=1, image_size=8, num_classes=2, base_channels=2),
    )
    job, task = merge_job(("test", {"training": {"task": "mine"}}), tasks={"mine": mine})
    assert task is mine
    assert job.training.max_epochs == mine.defaults["max_epochs"] != TrainingConfig().max_epochs
