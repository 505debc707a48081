"""The registry of built-in and plug-in tasks. Imports torch only when data are loaded."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Final, TypeAlias

from esper.leyline.errors import PluginError, UsageError
from esper.leyline.jobs import Layer
from esper.leyline.plugins import FindPlugins, call_plugins, installed_plugins
from esper.leyline.tasks import TASKS, TaskSpec, is_task_reference, task_named
from esper.runtime.sources import DataRequest
from esper.runtime.task_references import object_at

if TYPE_CHECKING:
    from torch import Generator, nn

    from esper.runtime.datasets import TensorDataset

__all__ = [
    "ENTRY_POINT_GROUP",
    "HostBuilder",
    "RegisteredTask",
    "TaskLoader",
    "TaskRegistry",
    "all_tasks",
    "is_installed_task",
    "load_dataset",
    "load_task",
    "register_task",
    "registered_task",
    "tasks_for",
]

ENTRY_POINT_GROUP: Final = "esper.tasks"
"""Each entry point names a function without parameters that calls register_task."""

TaskLoader: TypeAlias = "Callable[[TaskSpec, DataRequest], TensorDataset]"
HostBuilder: TypeAlias = "Callable[[TaskSpec, Generator], nn.Module]"


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisteredTask:
    """A task and the functions that load its data and build its host."""

    spec: TaskSpec
    load: TaskLoader
    build_host: "HostBuilder | None" = None
    """None builds the host that `spec.host` describes."""


def _load_shipped(spec: TaskSpec, request: DataRequest) -> "TensorDataset":
    # Imported here so that listing the tasks does not import torch.
    from esper.runtime.loaders import LOADERS

    return LOADERS[spec.dataset](spec, request)


def installed_tasks() -> Iterable[EntryPoint]:
    """Return the entry points of installed packages."""
    return installed_plugins(ENTRY_POINT_GROUP)


@dataclass(eq=False, slots=True)
class TaskRegistry:
    """The known tasks; plug-ins are loaded once, on first access."""

    find_plugins: FindPlugins = installed_tasks
    _tasks: dict[str, RegisteredTask] = field(init=False)
    _installed: set[str] = field(init=False)
    _has_asked: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._tasks = {
            name: RegisteredTask(spec=spec, load=_load_shipped) for name, spec in TASKS.items()
        }
        self._installed = set(self._tasks)

    def register(self, task: RegisteredTask) -> None:
        """Add a task."""
        if task.spec.name in self._tasks:
            raise PluginError("task", task.spec.name, "a task of this name already exists")
        self._tasks[task.spec.name] = task

    def load(self, reference: str) -> None:
        """Add the task that `package.module:NAME` or `path/to/file.py:NAME` means, under this name.

        Every process that names it finds it, so it counts as installed.
        """
        self._ask_plugins()
        if reference not in self._tasks:
            self._tasks[reference] = self._task_of(reference, object_at(reference))
            self._installed.add(reference)

    def _task_of(self, reference: str, found: object) -> RegisteredTask:
        if isinstance(found, RegisteredTask):
            return found
        if not isinstance(found, TaskSpec):
            raise UsageError(
                f"task {reference}: is a {type(found).__name__}; expected a TaskSpec, or a "
                "RegisteredTask if it loads its own data"
            )
        # The names of shipped data sets are those of the tasks that they come with.
        for task in self._tasks.values():
            if task.spec.dataset == found.dataset:
                return RegisteredTask(spec=found, load=task.load)
        known = sorted({task.spec.dataset for task in self._tasks.values()})
        raise UsageError(
            f"task {reference}: no data set is called {found.dataset!r} (known: "
            f"{', '.join(known)}); give a RegisteredTask with a load function for your own"
        )

    def all_tasks(self) -> Mapping[str, TaskSpec]:
        """Return every task by its name."""
        self._ask_plugins()
        return {name: task.spec for name, task in self._tasks.items()}

    def named(self, name: str) -> RegisteredTask:
        """Return the task with this name."""
        task_named(name, self.all_tasks())
        return self._tasks[name]

    def is_installed(self, name: str) -> bool:
        """Return whether the task is available in every process.

        Tasks that a script registers itself exist in its own process only.
        """
        self._ask_plugins()
        return name in self._installed

    def _ask_plugins(self) -> None:
        if self._has_asked:
            return
        self._has_asked = True
        by_hand = set(self._tasks) - self._installed
        call_plugins("task", self.find_plugins())
        self._installed = set(self._tasks) - by_hand


_REGISTRY: Final = TaskRegistry()


def register_task(
    spec: TaskSpec, *, load: TaskLoader, build_host: "HostBuilder | None" = None
) -> None:
    """Register a custom task, so that `esper-train` can train it.

    Args:
        spec: the task.
        load: loads its data.
        build_host: builds its host; None builds the one that `spec.host` describes.
    """
    _REGISTRY.register(RegisteredTask(spec=spec, load=load, build_host=build_host))


def all_tasks() -> Mapping[str, TaskSpec]:
    """Return every task, shipped or registered, by its name."""
    return _REGISTRY.all_tasks()


def load_task(name: str) -> None:
    """Import the task if the name says where it is written; any other name changes nothing.

    Call it only with names that the user has given, not with those that a file contains.
    """
    if is_task_reference(name):
        _REGISTRY.load(name)


def tasks_for(layers: Iterable[tuple[str, Layer]]) -> Mapping[str, TaskSpec]:
    """Return every task by its name, those included that these layers name by a reference."""
    for _, layer in layers:
        table = layer.get("training")
        name = table.get("task") if isinstance(table, Mapping) else None
        if isinstance(name, str):
            load_task(name)
    return all_tasks()


def is_installed_task(name: str) -> bool:
    """Return whether the task is available in every process, not only in this one."""
    return _REGISTRY.is_installed(name)


def registered_task(name: str) -> RegisteredTask:
    """Return the task with this name, with its loader and host builder."""
    return _REGISTRY.named(name)


def load_dataset(name: str, request: DataRequest) -> "TensorDataset":
    """Load the data of the task with this name."""
    task = registered_task(name)
    dataset, most = task.load(task.spec, request), task.spec.max_held_out
    return dataset if most is None else dataset.with_held_out(most)
