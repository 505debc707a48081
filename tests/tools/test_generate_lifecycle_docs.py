"""The page about the lifecycle says what the code does."""

from tools.generate_lifecycle_docs import PATH, page

from esper.kasmina.lifecycle import Operation
from esper.leyline.stages import TRANSITIONS, Stage


def test_committed_page_is_what_the_tables_say() -> None:
    assert PATH.read_text(encoding="utf-8") == page(), (
        "run 'python -m tools.generate_lifecycle_docs'"
    )


def test_diagram_has_every_edge_and_no_other() -> None:
    edges = {
        (start, end)
        for line in page().splitlines()
        if "-->" in line and "[*]" not in line
        for start, end in [line.split(":")[0].split(" --> ")]
    }

    assert {(start.strip(), end) for start, end in edges} == {
        (start.name, end.name)
        for start, ends in TRANSITIONS.items()
        for end in ends
        if start is not Stage.UNKNOWN
    }


def test_every_operation_has_a_row() -> None:
    assert all(f"| `{operation.value}` |" in page() for operation in Operation)
