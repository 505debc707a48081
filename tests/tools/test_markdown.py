"""Tables and marked blocks of the generated documents."""

import pytest
from tools.markdown import table, with_block

from esper.leyline.errors import UsageError

DOCUMENT = """# Title
<!-- figures: begin -->
old
<!-- figures: end -->
between
<!-- figures: more begin -->
<!-- figures: more end -->
end
"""


def test_table_has_a_head_a_rule_and_its_rows() -> None:
    assert table(("a", "b"), [("1", "2"), ("3", "")]) == "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 |  |"


def test_block_replaces_what_is_between_its_marks_and_nothing_else() -> None:
    found = with_block(with_block(DOCUMENT, "new\n"), "more\nlines\n", name="more")

    assert found == DOCUMENT.replace("old\n", "new\n").replace(
        "more begin -->\n", "more begin -->\nmore\nlines\n"
    )
    assert with_block(found, "new\n") == found


@pytest.mark.parametrize("cut", ["<!-- figures: begin -->\n", "<!-- figures: end -->\n"])
def test_document_without_one_of_the_marks_is_refused(cut: str) -> None:
    with pytest.raises(UsageError, match="figures: begin"):
        with_block(DOCUMENT.replace(cut, ""), "new\n")
