"""Counts are exact, and what is no event is never counted."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nissa.fake_run import FakeRun

from esper.nissa.analysis import counting
from esper.nissa.analysis.counting import BadLine, CountBy, CountTask, Tally, count_logs, count_part


def counted(tmp_path: Path, *lines: bytes, by: CountBy = CountBy.TYPE) -> Tally:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return count_part(CountTask(path=str(path), by=by))


def test_counts_equal_those_of_a_json_parser(tmp_path: Path) -> None:
    lines = list(FakeRun().lines())

    tally = counted(tmp_path, *lines)

    assert tally.counts == Counter(json.loads(line)["event_type"] for line in lines)
    assert (tally.num_lines, tally.num_bad) == (len(lines), 0)


def test_type_may_stand_anywhere_and_only_the_top_level_one_counts(tmp_path: Path) -> None:
    tally = counted(
        tmp_path,
        b'{"data":{"event_type":"INNER"},"event_type":"A"}',
        b'{"text":"\\"event_type\\":\\"B\\"","event_type":"A"}',
        b'  {"event_type" : "\\u0041"}\r',
    )

    assert tally.counts == {"A": 3}


def test_python_nan_tokens_count(tmp_path: Path) -> None:
    tally = counted(
        tmp_path, b'{"event_type":"A","x":NaN}', b'{"x":[-Infinity,Infinity],"event_type":"A"}'
    )

    assert (tally.counts, tally.num_bad) == ({"A": 2}, 0)


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'"event_type"',
        b"null",
        b'{"event_type":3}',
        b'{"event_type":null}',
        b'{"type":"A"}',
        b'{"event_type":"A"} {"event_type":"B"}',
        b'{"event_type":"A"}}',
        b'{"event_type":"A",}',
        b'{"event_type":"A","x":01}',
        b'{"event_type":"A","x":"\xff"}',
        b'{"event_type":"A","x":NaN,}',
        b'{"event_type":"A","x":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"event_type":"A","x":NaN,"y":' + b"[" * 100_000 + b"}",
    ],
    ids=range(15),
)
def test_line_that_is_not_one_event_is_bad(line: bytes, tmp_path: Path) -> None:
    tally = counted(tmp_path, b'{"event_type":"GOOD"}', line, b'{"event_type":"GOOD"}')

    assert tally.counts == {"GOOD": 2}
    assert [bad.line for bad in tally.bad_lines] == [2]


def test_object_over_two_lines_does_not_make_up_for_two_on_one(tmp_path: Path) -> None:
    tally = counted(tmp_path, b'{"event_type":"A"}{"event_type":"B"}', b'{"event_type":', b'"C"}')

    assert (tally.counts, tally.num_bad) == ({}, 3)


def test_blank_lines_are_neither_events_nor_bad(tmp_path: Path) -> None:
    tally = counted(tmp_path, b"", b'{"event_type":"A"}', b"   ", b"{")

    assert (tally.counts, tally.num_bad) == ({"A": 1}, 1)
    assert tally.bad_lines[0].line == 4


def test_only_the_first_five_bad_lines_are_kept(tmp_path: Path) -> None:
    tally = counted(tmp_path, *[b"{"] * 9)

    assert tally.num_bad == 9
    assert [bad.line for bad in tally.bad_lines] == [1, 2, 3, 4, 5]


FOREIGN = [
    b'{"event_type":"ANALYTICS_SNAPSHOT","data":{"kind":"last_action","env_id":3}}',
    b'{"event_type":"ANALYTICS_SNAPSHOT","data":{"kind":null}}',
    b'{"event_type":"EPOCH_COMPLETED","data":{"kind":"ignored"},"severity":"info"}',
    b'{"event_type":"EPOCH_COMPLETED","data":[1],"severity":7,"round":"x","env_id":2}',
]


@pytest.mark.parametrize(
    ("by", "counts"),
    [
        (CountBy.KIND, {"last_action": 1, "ANALYTICS_SNAPSHOT": 1, "EPOCH_COMPLETED": 2}),
        (CountBy.ENV, {"3": 1, "-": 2, "2": 1}),
        (CountBy.SEVERITY, {"info": 1, "-": 3}),
        (CountBy.ROUND, {"-": 4}),
    ],
)
def test_foreign_logs_count_by_what_they_have(
    by: CountBy, counts: dict[str, int], tmp_path: Path
) -> None:
    assert counted(tmp_path, *FOREIGN, by=by).counts == counts


@pytest.mark.parametrize("by", [CountBy.ENV, CountBy.ROUND, CountBy.SEVERITY])
def test_own_logs_count_by_their_envelope(by: CountBy, tmp_path: Path) -> None:
    lines = list(FakeRun().lines())
    key = {CountBy.ENV: "env_id", CountBy.ROUND: "round", CountBy.SEVERITY: "severity"}[by]
    values = [json.loads(line)[key] for line in lines]

    expected = Counter("-" if value is None else str(value) for value in values)

    assert counted(tmp_path, *lines, by=by).counts == expected


def test_two_processes_count_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    lines = [*FakeRun().lines(), b"{", *FakeRun(seed=8).lines(), b"["]
    path.write_bytes(b"\n".join(lines) + b"\n")
    alone = count_part(CountTask(path=str(path)))
    monkeypatch.setattr(counting, "PARALLEL_BYTES", 1)
    monkeypatch.setattr(counting.os, "cpu_count", lambda: 2)

    together = count_logs([path])[path]

    assert together == alone
    assert [bad.line for bad in together.bad_lines] == [lines.index(b"{") + 1, len(lines)]


def test_bad_lines_of_later_parts_are_numbered_from_the_start_of_the_file() -> None:
    parts = [Tally(counts={"A": 2}, num_lines=2), Tally(num_lines=1, bad_lines=[BadLine(1, "x")])]

    assert counting.merge_tallies(parts).bad_lines == [BadLine(3, "x")]


@given(st.lists(st.dictionaries(st.text(), st.floats() | st.text() | st.none(), max_size=3)))
@settings(max_examples=60, deadline=None)
def test_any_objects_written_by_python_are_counted_like_python_reads_them(
    tmp_path_factory: pytest.TempPathFactory, objects: list[dict[str, object]]
) -> None:
    rows = [{**item, "event_type": f"T{len(item)}"} for item in objects]
    lines = [
        json.dumps(row, ensure_ascii=len(row) % 2 == 0).encode(errors="replace") for row in rows
    ]

    tally = counted(tmp_path_factory.mktemp("log"), *lines)

    assert tally.counts == Counter(str(row["event_type"]) for row in rows)
