"""The public entry point and the factored action space keep their promises."""

import ast
import inspect

from tools.source_modules import source_modules

from esper.leyline.actions import HEAD_SPECS, HEADS, head_sizes
from esper.leyline.config import RunOptions, TrainingConfig
from esper.simic.training import vectorized
from esper.simic.training.arguments import NotGiven
from esper.simic.training.vectorized import train_ppo_vectorized

PROMISED = {
    *("n_episodes", "n_envs", "max_epochs", "device", "devices", "task", "slots", "seed"),
    *("save_path", "resume_path", "reward_family", "reward_mode", "reward", "entropy_coef"),
    *("entropy_coef_start", "entropy_coef_end", "entropy_coef_min", "entropy_anneal_episodes"),
    *("entropy_coef_per_head", "telemetry", "telemetry_dir", "profiler", "gpu_preload", "amp"),
    *("amp_dtype", "compile_mode", "max_seeds", "lr", "clip_ratio", "gamma", "gae_lambda"),
    *("ppo_updates_per_batch", "recurrent_n_epochs", "value_coef", "lstm_hidden_dim"),
    *("ready_event", "shutdown_event", "sinks", "serve", "progress", "on_event"),
}
RETIRED = {"recurrent", "factored"}
"""The policy is both, always."""


def parameters() -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(train_ppo_vectorized).parameters)


def test_every_promised_parameter_is_there_and_no_retired_one() -> None:
    assert set(parameters()) >= PROMISED
    assert not set(parameters()) & RETIRED


def test_every_parameter_is_a_keyword_with_a_default() -> None:
    for name, parameter in parameters().items():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, name
        assert parameter.default is not inspect.Parameter.empty, name


def test_every_key_of_the_configuration_is_a_parameter() -> None:
    keys = {*TrainingConfig.__struct_fields__, *RunOptions.__struct_fields__}
    assert keys <= set(parameters())
    assert set(parameters()) - keys == {
        *("progress", "watch", "on_event", "ready_event", "shutdown_event")
    }


def test_not_given_has_a_value_of_its_own_that_help_shows() -> None:
    for struct in (TrainingConfig(), RunOptions()):
        for name in struct.__struct_fields__:
            default = parameters()[name].default
            assert isinstance(default, NotGiven), name
            assert default.configured == getattr(struct, name), name
    text = str(inspect.signature(train_ppo_vectorized))
    assert "lr: float = <task's, else 0.0003>" in text
    assert "fsync: str = <default 'round'>" in text
    assert "reward_mode: str = <task's, else 'shaped'>" in text
    assert "= <task's, else RewardConfig()>" in text


def test_entry_point_has_no_nested_function() -> None:
    tree = ast.parse(inspect.getsource(train_ppo_vectorized))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in functions] == ["train_ppo_vectorized"]


def test_no_module_of_training_imports_the_entry_point() -> None:
    importers = [
        module.name
        for module in source_modules()
        for _, name in module.imported_names()
        if f"{name}.".startswith(f"{vectorized.__name__}.") and module.package == "simic"
    ]
    # The package's own front door loads it on first use; evaluation stands above training.
    others = {name for name in importers if not name.startswith("esper.simic.evaluation.")}
    assert others <= {"esper.simic"}


def test_training_package_itself_imports_nothing() -> None:
    module = next(item for item in source_modules() if item.name == "esper.simic.training")
    assert list(module.imported_names()) == []


def test_action_is_factored_into_eight_heads() -> None:
    assert len(HEADS) == len(HEAD_SPECS) == len(head_sizes(3)) == 8
