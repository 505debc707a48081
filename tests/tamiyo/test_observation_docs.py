"""The page about observations is the one the code generates."""

from tools.generate_observation_docs import PATH, page


def test_committed_page_is_what_the_tables_say() -> None:
    found = PATH.read_text(encoding="utf-8")
    assert found == page(), "run 'python tools/generate_observation_docs.py'"
