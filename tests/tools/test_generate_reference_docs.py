"""The reference pages are those that the code generates, and they leave nothing out."""

import msgspec
import pytest
from tools.generate_reference_docs import DOCS, PAGES, field_docs

from esper.leyline.payloads import DegradationDetected, RunFinished
from esper.leyline.telemetry import EVENT_SPECS
from esper.nissa.reading.sql_views import VIEWS
from esper.scripts.job_flags import ALL_FLAGS


@pytest.mark.parametrize("name", PAGES)
def test_committed_page_is_what_the_code_says(name: str) -> None:
    found = (DOCS / name).read_text(encoding="utf-8")
    assert found == PAGES[name](), "run 'make docs'"


def test_every_event_field_view_and_flag_is_listed() -> None:
    text = {name: (DOCS / name).read_text(encoding="utf-8") for name in PAGES}
    for spec in EVENT_SPECS.values():
        _, _, section = text["reference_events.md"].partition(f"### {spec.event_type.value}\n")
        listed = section.partition("###")[0]
        for field in msgspec.structs.fields(spec.payload):
            assert f"| `{field.name}` |" in listed
    for view in VIEWS:
        assert f"## `{view}`" in text["reference_sql.md"]
    for flag in ALL_FLAGS:
        assert f"`{flag.name}" in text["reference_commands.md"]
        assert flag.is_pair or f"`{flag.key}`" in text["reference_configuration.md"], flag.key


def test_docstrings_are_those_below_the_fields_inherited_ones_too() -> None:
    class Base(msgspec.Struct):
        one: int
        """Not found: defined inside of a function."""

    assert field_docs(Base) == {"one": ""}
    assert field_docs(RunFinished)["status"] == "`completed`, `interrupted` or `failed`."
    assert set(field_docs(DegradationDetected)) == {
        field.name for field in msgspec.structs.fields(DegradationDetected)
    }
