"""The measures find what was planted in a made-up tree, and hold what they claim of the source."""

import sys
from pathlib import Path

import pytest
from tools.measure_house import (
    CARRIERS,
    DECISION,
    EVENT,
    Measure,
    function_sizes,
    has_code_to_run,
    import_cycles,
    import_graph,
    main,
    static_measures,
    untested_measure,
    walk_measures,
)
from tools.source_modules import SourceModule, source_modules

from tools import measure_house

TREE = {
    "__init__.py": "",
    "alone.py": '"""Nothing."""\nimport os\n',
    "a.py": "from house.b import name\nimport house.deep.c\n\ndef run():\n    return name\n",
    "b.py": "name = 1\n\ndef late():\n    from house import a\n    return a\n",
    "deep/__init__.py": "",
    "deep/c.py": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from house.a import run\n"
        "else:\n"
        "    from house import alone\n"
        "class Shape:\n"
        "    def area(self):\n"
        '        """Return the area."""\n'
        "    def rim(self): ...\n"
    ),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        path = tmp_path / "src" / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def modules(root: Path) -> tuple[SourceModule, ...]:
    return source_modules(root / "src" / "house")


def test_graph_has_the_imports_of_functions_and_of_type_checking(
    modules: tuple[SourceModule, ...],
) -> None:
    assert import_graph(modules) == {
        "house": frozenset(),
        "house.alone": frozenset(),
        "house.a": {"house.b", "house.deep.c"},
        "house.b": {"house.a"},
        "house.deep": frozenset(),
        "house.deep.c": {"house.a", "house.alone"},
    }


def test_cycle_by_way_of_a_function_is_found_and_one_for_types_only_is_not(
    modules: tuple[SourceModule, ...],
) -> None:
    graph = import_graph(modules, is_type_checking_included=False)

    assert import_cycles(graph) == [["house.a", "house.b"]]
    assert import_cycles(import_graph(modules)) == [["house.a", "house.b", "house.deep.c"]]


def test_separate_cycles_are_separate_groups() -> None:
    graph = {name: frozenset(targets) for name, *targets in ("ab", "bca", "cd", "dc", "ed")}

    assert import_cycles(graph) == [["a", "b"], ["c", "d"]]


def test_function_is_measured_without_signature_and_docstring(tmp_path: Path) -> None:
    text = 'def work(\n    a,\n    b,\n):\n    """Work.\n\n    Much.\n    """\n    a()\n\n    b()\n'
    (tmp_path / "module.py").write_text(text, encoding="utf-8")

    assert set(function_sizes(source_modules(tmp_path)).values()) == {3}


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (0, "".join(f"import house.m{index}\n" for index in range(21))),
        (1, "def work():\n" + "    pass\n" * 61),
        (2, "\n" * 801),
        (3, "def work():\n    import house.m0\n"),
    ],
)
def test_figure_beyond_its_limit_is_missed_and_no_other(
    tmp_path: Path, position: int, text: str
) -> None:
    house = tmp_path / "house"
    house.mkdir()
    for index in range(21):
        imports = "import house.big\n" if position == 3 and index == 0 else ""
        (house / f"m{index}.py").write_text(imports, encoding="utf-8")
    (house / "big.py").write_text(text, encoding="utf-8")

    measures = list(static_measures(source_modules(house)))

    assert [measure.is_met for measure in measures] == [index != position for index in range(4)]
    assert "house.big" in measures[position].details[0]


def test_module_is_tested_by_its_mirror_or_by_the_file_that_the_table_names(
    root: Path, modules: tuple[SourceModule, ...]
) -> None:
    (root / "tests").mkdir()
    assert untested_measure(modules, root, {}).details == ("a.py", "b.py")

    (root / "tests" / "test_a.py").touch()
    assert untested_measure(modules, root, {"b.py": "tests/test_gone.py"}).details == ("b.py",)
    assert untested_measure(modules, root, {"b.py": "tests/test_a.py"}).is_met


def test_declarations_have_no_code_to_run(modules: tuple[SourceModule, ...]) -> None:
    running = {module.name for module in modules if has_code_to_run(module)}

    assert running == {"house.a", "house.b"}


def test_table_of_tests_has_no_row_that_is_not_needed() -> None:
    modules = source_modules()
    paths = {module.path.relative_to(module.root).as_posix() for module in modules}
    untested = untested_measure(modules, measure_house.ROOT, {}).details

    assert set(measure_house.TESTED_BY) <= paths
    assert set(measure_house.TESTED_BY) <= set(untested)


def test_ways_are_found_in_a_real_run_and_stay_within_their_limits() -> None:
    stacks = measure_house.stacks_of_a_tiny_run()

    ends = {str(stack[-1]) for stack in stacks}
    assert ends == {leg.end for leg in (*DECISION, *CARRIERS, *EVENT)}
    for measure in walk_measures(stacks):
        assert measure.is_met, str(measure)


@pytest.mark.parametrize(("value", "code", "word"), [(3, 0, "met"), (4, 1, "MISSED")])
def test_exit_code_and_text_say_whether_a_limit_is_exceeded(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    value: int,
    code: int,
    word: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["measure_house"])
    monkeypatch.setattr(measure_house, "static_measures", lambda _: iter(()))
    monkeypatch.setattr(measure_house, "untested_measure", lambda *_: Measure("tests", 0, 0))
    measured = Measure("calls", value, 3, ("first",))
    monkeypatch.setattr(measure_house, "stacks_of_a_tiny_run", set)
    monkeypatch.setattr(measure_house, "walk_measures", lambda _: iter([measured]))

    assert main() == code
    assert f"{word:<7}calls: {value} (limit 3)\n         first\n" in capsys.readouterr().out


def test_argument_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["measure_house", "--fast"])

    assert main() == 2
