"""The registry of tasks: shipped ones, your own, and those of plug-ins."""

import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import torch

from esper.leyline.errors import ExitCode, PluginError, UnknownNameError
from esper.leyline.jobs import merge_job
from esper.leyline.tasks import TASKS
from esper.runtime import tasks
from esper.runtime.batches import SharedBatchIterator, batch_size_for
from esper.runtime.datasets import TensorDataset
from esper.runtime.sources import DataOrigin, DataRequest
from esper.runtime.tasks import RegisteredTask, TaskRegistry, load_dataset, registered_task

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "your_own_task.md"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> TaskRegistry:
    """Stand in for the registry of the process."""
    registry = TaskRegistry(find_plugins=list)
    monkeypatch.setattr(tasks, "_REGISTRY", registry)
    return registry


@pytest.fixture
def stripes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Give the documented example as an importable module."""
    text = DOCUMENT.read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    module = ModuleType("documented_stripes")
    exec(compile(found[1], str(DOCUMENT), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def plugin(value: str) -> EntryPoint:
    return EntryPoint(name="stripes", value=value, group=tasks.ENTRY_POINT_GROUP)


def test_shipped_tasks_are_known_and_load(registry: TaskRegistry) -> None:
    assert registry.all_tasks() == TASKS
    assert load_dataset("digits", DataRequest()).origin is DataOrigin.PACKAGE


def test_unknown_task_is_refused_with_the_nearest_name(registry: TaskRegistry) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'digits'"):
        registered_task("digit")


def test_documented_task_joins_a_job_and_feeds_its_envs(
    registry: TaskRegistry, stripes: ModuleType
) -> None:
    stripes.register()

    job, spec = merge_job(("test", {"training": {"task": "stripes"}}), tasks=tasks.all_tasks())
    dataset = load_dataset("stripes", DataRequest())
    size = batch_size_for(spec, job.training, len(dataset.train))
    iterator = SharedBatchIterator(dataset, n_envs=2, batch_size_per_env=size, seed=1)
    shares = next(iterator.batches(round=0, step=0))

    assert (job.training.slots, job.training.max_epochs) == (("r0c0", "r0c1"), 20)
    assert [batch.inputs.shape for batch in shares] == [(20, 1, 8, 8)] * 2


def test_documented_data_can_be_learnt(stripes: ModuleType) -> None:
    dataset = stripes.load_stripes(stripes.STRIPES, DataRequest())
    assert isinstance(dataset, TensorDataset)
    split = dataset.test
    kernel = torch.tensor([[1.0, -1.0]]).view(1, 1, 1, 2)
    across = torch.nn.functional.conv2d(split.inputs, kernel).square().mean((1, 2, 3))
    down = torch.nn.functional.conv2d(split.inputs, kernel.mT).square().mean((1, 2, 3))

    assert ((across < down).long() == split.targets).float().mean() > 0.9


def test_held_out_parts_are_no_larger_than_the_task_wants(
    registry: TaskRegistry, stripes: ModuleType
) -> None:
    spec = msgspec.structs.replace(stripes.STRIPES, max_held_out=10)
    tasks.register_task(spec, load=stripes.load_stripes)
    whole = stripes.load_stripes(spec, DataRequest())

    dataset = load_dataset("stripes", DataRequest())

    assert len(dataset.train) == len(whole.train)
    for part, all_of_it in ((dataset.val, whole.val), (dataset.test, whole.test)):
        stride = len(all_of_it) // 10
        assert len(part) == 10 < len(all_of_it)
        assert torch.equal(part.inputs, all_of_it.inputs[::stride][:10])
        assert torch.equal(part.targets, all_of_it.targets[::stride][:10])


def test_name_that_is_taken_is_refused(registry: TaskRegistry, stripes: ModuleType) -> None:
    stripes.register()

    with pytest.raises(PluginError, match="'stripes': a task of this name already exists"):
        stripes.register()
    with pytest.raises(PluginError, match="'digits'"):
        registry.register(RegisteredTask(spec=TASKS["digits"], load=stripes.load_stripes))


def test_host_builder_is_kept_with_its_task(registry: TaskRegistry, stripes: ModuleType) -> None:
    def build_host(spec: object, generator: object) -> torch.nn.Module:
        return torch.nn.Identity()

    tasks.register_task(stripes.STRIPES, load=stripes.load_stripes, build_host=build_host)

    assert registered_task("stripes").build_host is build_host
    assert registered_task("digits").build_host is None


def test_plugins_are_loaded_once_and_only_when_needed(
    monkeypatch: pytest.MonkeyPatch, stripes: ModuleType
) -> None:
    asked = []

    def find() -> list[EntryPoint]:
        asked.append(True)
        return [plugin("documented_stripes:register")]

    registry = TaskRegistry(find_plugins=find)
    monkeypatch.setattr(tasks, "_REGISTRY", registry)
    assert asked == []

    assert "stripes" in tasks.all_tasks()
    assert registered_task("stripes").spec is stripes.STRIPES
    assert asked == [True]


def test_other_processes_know_what_is_installed_and_not_what_was_registered_here(
    monkeypatch: pytest.MonkeyPatch, stripes: ModuleType
) -> None:
    registry = TaskRegistry(find_plugins=lambda: [plugin("documented_stripes:register")])
    monkeypatch.setattr(tasks, "_REGISTRY", registry)
    by_hand = msgspec.structs.replace(stripes.STRIPES, name="by_hand")
    tasks.register_task(by_hand, load=stripes.load_stripes)

    known = {name: tasks.is_installed_task(name) for name in ("digits", "stripes", "by_hand")}

    assert known == {"digits": True, "stripes": True, "by_hand": False}


@pytest.mark.parametrize("value", ["no_such_module:register", "math:no_such", "math:sqrt"])
def test_plugin_that_fails_is_named_with_a_way_on(value: str) -> None:
    registry = TaskRegistry(find_plugins=lambda: [plugin(value)])

    with pytest.raises(PluginError, match=f"'stripes': {value} failed: .*uninstall") as caught:
        registry.all_tasks()

    assert caught.value.exit_code is ExitCode.USAGE


def test_looking_up_a_task_loads_no_torch() -> None:
    code = (
        "import sys\n"
        "from esper.runtime.tasks import all_tasks, registered_task\n"
        "assert 'digits' in all_tasks() and registered_task('digits')\n"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
