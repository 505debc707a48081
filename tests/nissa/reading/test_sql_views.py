"""Views: a column for every field of their events, of the type that the field has."""

from pathlib import Path

import msgspec
import pytest
from tests.nissa.fake_run import FakeRun

from esper.leyline.telemetry import EVENT_SPECS, EventType, Severity
from esper.nissa.reading.query import query_logs
from esper.nissa.reading.sql_views import VIEWS, view_sql

RUN = FakeRun(num_rounds=2, failed_env=1)
EVENTS = [msgspec.to_builtins(event) for event in RUN.events()]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("duckdb")
    path = tmp_path_factory.mktemp("run") / "events.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in RUN.lines()))
    return path


def of_types(*types: EventType) -> list[dict]:
    return [event for event in EVENTS if event["event_type"] in types]


def test_every_view_has_a_question_and_a_name_of_its_own() -> None:
    assert all(view.question.endswith("?") and view.name == name for name, view in VIEWS.items())
    assert all(bool(view.types) != (view.sql is not None) for view in VIEWS.values())


@pytest.mark.parametrize("name", [name for name, view in VIEWS.items() if view.types])
def test_view_of_event_types_has_all_their_fields_and_rows(name: str, log: Path) -> None:
    view = VIEWS[name]
    result = query_logs([log], f'SELECT * FROM "{name}" ORDER BY seq')
    fields = {
        field
        for event_type in view.types
        for field in EVENT_SPECS[event_type].payload.__struct_fields__
    }
    assert fields <= set(result.columns)

    expected = of_types(*view.types)
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    assert [row["seq"] for row in rows] == [event["seq"] for event in expected]
    for row, event in zip(rows, expected, strict=True):
        for field, value in event["data"].items():
            if isinstance(value, str | int | float | bool | None):
                assert row[field] == value, field
                assert value is None or type(row[field]) is type(value), field


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_can_be_selected(name: str, log: Path) -> None:
    assert query_logs([log], f'SELECT count(*) FROM "{name}"').rows[0][0] >= 0


def test_unnested_views_have_a_row_per_item(log: Path) -> None:
    actions = of_types(EventType.LAST_ACTION)
    num_components = sum(len(event["data"]["reward_components"]) for event in actions)
    assert query_logs([log], "SELECT count(*) FROM rewards").rows == [(num_components,)]

    counts = [event["data"]["counts"] for event in of_types(EventType.ACTION_DISTRIBUTION)]
    decided = {op: sum(count.get(op, 0) for count in counts) for count in counts for op in count}
    sql = "SELECT op, sum(num_decided) FROM action_distribution GROUP BY op"
    assert {op: int(num) for op, num in query_logs([log], sql).rows} == decided


def test_anomalies_are_the_events_from_warning_on(log: Path) -> None:
    grave = {
        spec.event_type
        for spec in EVENT_SPECS.values()
        if spec.severity not in (Severity.DEBUG, Severity.INFO)
    }
    found = query_logs([log], "SELECT seq FROM anomalies ORDER BY seq").rows
    assert [seq for (seq,) in found] == [event["seq"] for event in of_types(*grave)]
    assert found


def test_statement_creates_the_view_by_its_quoted_name() -> None:
    for view in VIEWS.values():
        assert view_sql(view).startswith(f'CREATE VIEW "{view.name}" AS SELECT ')
