"""What loads what, each seen in a fresh process."""

import subprocess
import sys

import pytest

LIGHT_MODULES = [
    "esper",
    "esper.leyline.jobs",
    "esper.leyline.telemetry",
    "esper.nissa",
    "esper.nissa.bus.hub",
    "esper.nissa.live.server",
    "esper.nissa.bus.recording_hub",
    "esper.scripts.telemetry",
    "esper.scripts.train",
]
HEAVY = ("torch", "numpy", "esper.simic", "esper.kasmina")


def loaded_after(code: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after running `code`."""
    script = f"{code}\nimport sys\nprint(*sys.modules, sep='\\n')"
    result = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    return set(result.stdout.splitlines())


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_light_modules_load_neither_torch_nor_the_trainer(module: str) -> None:
    assert loaded_after(f"import {module}").isdisjoint(HEAVY)


@pytest.mark.parametrize("arguments", [["schema"], ["--help"]])
def test_telemetry_command_never_imports_torch(arguments: list[str]) -> None:
    code = (
        "import contextlib, io\n"
        "from esper.scripts.telemetry import main\n"
        f"with contextlib.redirect_stdout(io.StringIO()): main({arguments!r})"
    )
    assert loaded_after(code).isdisjoint(HEAVY)


def test_the_server_for_agents_never_imports_torch() -> None:
    code = "import esper.karn.mcp.server, mcp.server.lowlevel, mcp.server.stdio"
    assert loaded_after(code).isdisjoint(HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["tasks"], ["presets"], ["config", "show"]])
def test_train_command_answers_questions_without_torch(arguments: list[str]) -> None:
    code = (
        "import contextlib, io\n"
        "from esper.scripts.train import main\n"
        f"with contextlib.redirect_stdout(io.StringIO()): main({arguments!r})"
    )
    assert loaded_after(code).isdisjoint((*HEAVY, "asyncio", "esper.karn.report.run_report"))


@pytest.mark.parametrize("module", ["esper.simic", "esper.simic.training", "esper.simic.telemetry"])
def test_packages_of_training_are_light_to_import(module: str) -> None:
    loaded = loaded_after(f"import {module}")
    assert loaded.isdisjoint({"torch", "numpy", "esper.simic.training.vectorized"})


def test_public_names_come_from_the_package_on_first_use() -> None:
    code = (
        "from esper.simic import (ParallelEnvState, train_ppo_vectorized, advance_active_seed,\n"
        "    resolve_target_slot, calculate_entropy_anneal_steps, aggregate_ppo_metrics,\n"
        "    run_ppo_updates)\n"
        "from esper.simic.telemetry.emitters import emit_batch_completed\n"
        "import esper.simic\n"
        "assert all(hasattr(esper.simic, name) for name in esper.simic.__all__)\n"
        "assert not hasattr(esper.simic, 'no_such_name')\n"
        "from esper.simic.training import vectorized\n"
        "assert train_ppo_vectorized is vectorized.train_ppo_vectorized"
    )
    assert "torch" in loaded_after(code)


def test_training_a_policy_imports_neither_the_compiler_nor_symbolic_shapes() -> None:
    code = (
        "import tempfile\n"
        "from esper.scripts.train import main\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    arguments = ['ppo', '--rounds', '1', '--envs', '1', '--episode-length', '1']\n"
        "    assert main([*arguments, '--quiet', '--telemetry-dir', folder]) == 0"
    )
    assert loaded_after(code).isdisjoint({"torch._dynamo", "sympy"})
