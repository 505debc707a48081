"""Tasks that are named by their file or module."""

import sys
from pathlib import Path

import pytest

from esper.leyline.errors import UsageError
from esper.leyline.tasks import TASKS, is_task_reference
from esper.runtime import tasks
from esper.runtime.task_references import object_at
from esper.runtime.tasks import TaskRegistry, load_task, registered_task, tasks_for

PREAMBLE = """
import msgspec
from esper.leyline.tasks import TASKS, is_task_reference
from esper.runtime.tasks import RegisteredTask
from {name}_helper import SUMMARY
SPEC = msgspec.structs.replace(TASKS["digits"], name="mine", summary=SUMMARY)
OWN = RegisteredTask(spec=SPEC, load=lambda spec, request: None)
UNKNOWN = msgspec.structs.replace(SPEC, dataset="nothing")
NUMBER = 3
"""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> TaskRegistry:
    """Stand in for the registry of the process."""
    registry = TaskRegistry(find_plugins=list)
    monkeypatch.setattr(tasks, "_REGISTRY", registry)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return registry


@pytest.fixture
def name(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Write a file with tasks and return its name, which no other test has."""
    name = f"written_{abs(hash(request.node.nodeid))}"
    (tmp_path / f"{name}.py").write_text(PREAMBLE.format(name=name), encoding="utf-8")
    (tmp_path / f"{name}_helper.py").write_text("SUMMARY = 'by hand'", encoding="utf-8")
    return name


@pytest.mark.parametrize("task", TASKS)
def test_no_shipped_name_is_imported(registry: TaskRegistry, task: str) -> None:
    load_task(task)
    assert registered_task(task).spec is TASKS[task]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a.py:T", True), ("/x/y z.py:T", True), ("p.q:T", True), ("p:T", True), ("digits", False)]
    + [
        (text, False)
        for text in ("probe:wait", "a.py", "a.py:", ":T", "a b:T", "p.q:T U", "p.:T", "")
    ],
)
def test_only_a_place_and_a_name_are_a_reference(text: str, expected: bool) -> None:
    assert is_task_reference(text) is expected


@pytest.mark.parametrize("attribute", ["SPEC", "OWN"])
def test_task_is_found_by_file_and_by_module(
    registry: TaskRegistry,
    tmp_path: Path,
    name: str,
    attribute: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for reference in (f"{name}.py:{attribute}", f"{name}:{attribute}"):
        known = tasks_for([("flag", {"training": {"task": reference}})])
        assert known[reference].summary == "by hand"
        assert registered_task(reference).spec.name == "mine"
        assert registry.is_installed(reference)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("NUMBER", "is a int; expected a TaskSpec"),
        ("UNKNOWN", "no data set is called 'nothing'"),
        ("SPECS", "has no SPECS; did you mean SPEC?"),
    ],
)
def test_what_is_no_task_is_refused_in_a_sentence(
    registry: TaskRegistry, tmp_path: Path, name: str, attribute: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        load_task(f"{tmp_path}/{name}.py:{attribute}")


@pytest.mark.parametrize("code", ["1 / 0", "import no_such_module", "def broken(:"])
def test_code_that_fails_is_reported_and_may_be_mended(
    registry: TaskRegistry, tmp_path: Path, name: str, code: str
) -> None:
    path = tmp_path / f"{name}.py"
    whole = path.read_text(encoding="utf-8")
    path.write_text(code, encoding="utf-8")
    with pytest.raises(UsageError, match="importing it failed"):
        load_task(f"{path}:SPEC")
    path.write_text(whole, encoding="utf-8")
    load_task(f"{path}:SPEC")
    assert registered_task(f"{path}:SPEC").spec.summary == "by hand"


def test_file_called_like_another_module_is_refused(registry: TaskRegistry, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("T = 1", encoding="utf-8")
    with pytest.raises(UsageError, match="another module is called json"):
        object_at(f"{tmp_path}/json.py:T")


def test_missing_file_or_module_is_a_sentence(registry: TaskRegistry, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        object_at(f"{tmp_path}/nothing.py:T")
    with pytest.raises(UsageError, match="there is no module README; a file is named as"):
        object_at("README.md:TASK")
    with pytest.raises(UsageError, match="there is no module"):
        object_at("no_such_package.module:T")
