"""Logs that are not ours: every reader accepts and refuses the same lines, whatever is in them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.leyline.test_untyped_json import FRAGMENTS, INTEGERS, TEXTS, VALUES

from esper.nissa.analysis.counting import CountBy, CountTask, count_part
from esper.nissa.analysis.diff import diff_paths
from esper.nissa.analysis.normalizing import differing_paths, normal_form
from esper.nissa.analysis.run_profile import ScanTask, scan_log
from esper.nissa.analysis.validation import validate_log
from esper.nissa.reading.rendering import render_line

EVENTS = st.builds(
    lambda other, event_type, data: {**other, "event_type": event_type, "data": data},
    st.dictionaries(TEXTS, VALUES, max_size=3),
    st.sampled_from(["A", "B"]) | VALUES,
    st.dictionaries(TEXTS, VALUES, max_size=3) | VALUES,
)


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """Draw an event as a program would write it, now and then with a piece put in or taken out."""
    data = bytearray(json.dumps(draw(EVENTS)).encode())
    if draw(st.booleans()):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 4)))
        data[start:end] = draw(st.sampled_from(FRAGMENTS))
    return bytes(data)


def type_by_python(line: bytes) -> str | None:
    """Return what Python's json finds: the oracle, as far as the text is UTF-8."""
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except ValueError:
        return None
    event_type = value.get("event_type") if isinstance(value, dict) else None
    return event_type if isinstance(event_type, str) else None


@given(lines())
@settings(deadline=None, max_examples=200)
@example(b'\xef\xbb\xbf{"event_type":"A"}')
@example(b'{"event_type":"A","event_type":"B"}')
@example(b'{"event_type":"A","event_type":1}')
@example(b'{"event_type":"A","x":"\\ud800"}')
@example(b'{"event_type":"A","x":1e999}')
@example(b'{"event_type":NaN}')
@example(b'{"event_type":"A","x":"\xed\xa0\x80"}')
def test_count_and_diff_accept_the_lines_that_python_accepts(
    tmp_path_factory: pytest.TempPathFactory, line: bytes
) -> None:
    log = tmp_path_factory.mktemp("log") / "log.jsonl"
    log.write_bytes(line + b"\n")
    is_event = type_by_python(line) is not None

    for by in CountBy:
        tally = count_part(CountTask(path=str(log), by=by))
        assert (tally.num_events, tally.num_bad) == (is_event, not is_event), by
    profile = scan_log(ScanTask(path=str(log))).profile
    assert (sum(profile.counts.values()), profile.num_bad_lines) == (is_event, not is_event)
    assert list(profile.counts) == list(count_part(CountTask(path=str(log))).counts)


@given(st.lists(lines(), min_size=2, max_size=5))
@settings(deadline=None, max_examples=200)
@example([b'{"event_type":"A","x":"}', b'{"event_type":NaN}', b'{"event_type":"B","x":"NaN"}'])
@example([b'{"event_type":"A","x":NaN}', b'{"event_type":"NaN","x":-Infinity}'])
def test_lines_of_a_file_are_counted_like_each_by_itself(
    tmp_path_factory: pytest.TempPathFactory, written: list[bytes]
) -> None:
    log = tmp_path_factory.mktemp("log") / "log.jsonl"
    log.write_bytes(b"".join(line + b"\n" for line in written))
    found = [type_by_python(line) for line in written]

    tally = count_part(CountTask(path=str(log)))

    assert tally.num_events == sum(item is not None for item in found)
    assert [bad.line for bad in tally.bad_lines] == [
        number for number, item in enumerate(found, 1) if item is None
    ]


def form_by_python(event: dict[str, Any]) -> str:
    """Return what may be compared of an event, as Python's json writes it."""
    ids = {"event_id", "timestamp", "ts", "run_id", "seq"}
    return json.dumps({key: item for key, item in event.items() if key not in ids}, sort_keys=True)


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(item) for key, item in reversed(value.items())}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


@given(EVENTS, EVENTS)
@settings(deadline=None, max_examples=200)
@example({"event_type": "A", "x": 10**30}, {"event_type": "A", "x": 10**30 + 1})
@example({"event_type": "A", "x": float("nan")}, {"event_type": "A", "x": None})
@example({"event_type": "A", "x": float("nan")}, {"event_type": "A", "x": "NaN"})
@example({"event_type": "A", "x": float("inf")}, {"event_type": "A", "x": -float("inf")})
@example({"event_type": "A", "x": 1}, {"event_type": "A", "x": 1.0})
@example({"event_type": "A", "x": 2**64}, {"event_type": "A", "x": str(2**64)})
@example({"event_type": "A", "x": 2**64}, {"event_type": "A", "x": ["\0", str(2**64)]})
@example({"event_type": "A", "x": "\ud800"}, {"event_type": "A", "x": "\ud801"})
@example({"event_type": "A", "x": "\ufffdd800"}, {"event_type": "A", "x": "\\ud800"})
def test_two_foreign_events_are_equal_where_python_writes_the_same(
    one: dict[str, Any], two: dict[str, Any]
) -> None:
    first, second = (json.dumps(event).encode() for event in (one, two))
    turned = json.dumps(reversed_keys(one), separators=(", ", " : "), ensure_ascii=False)
    again = turned.encode(errors="replace")

    assert (normal_form(first) == normal_form(second)) == (
        form_by_python(one) == form_by_python(two)
    )
    if "\ufffd" not in turned and json.loads(again) == json.loads(first):
        assert normal_form(again) == normal_form(first)


@given(st.dictionaries(TEXTS, VALUES, max_size=3), INTEGERS)
@settings(deadline=None)
def test_only_the_field_that_was_changed_is_named(data: dict[str, Any], number: int) -> None:
    before, after = (
        json.dumps({"event_type": "A", "data": data, "x": {"y": value}}).encode()
        for value in (number, number + 1)
    )

    assert differing_paths(before, after) == ["x.y"]
    assert differing_paths(before, before) == []


def test_ids_are_not_compared_whatever_they_are() -> None:
    forms = {
        normal_form(b'{"event_id":%b,"event_type":"A","x":["\\u0000","1"]}' % event_id)
        for event_id in (b"1", b"NaN", b"9" * 30, b'"NaN"', b'"\\ud800"', b"1e999", b"[[{}]]")
    }

    assert len(forms) == 1


def test_true_is_not_one() -> None:
    assert differing_paths(b'{"a":true,"b":NaN}', b'{"a":1,"b":NaN}') == ["a"]


def deep_lines() -> Iterator[bytes]:
    for depth in (200, 250, 253, 254, 255, 500, *range(940, 1030, 3), 5_000, 100_000):
        for number in (b"", b"NaN", b"9" * 30):
            yield b'{"event_type":"A","data":%b%b%b}' % (b"[" * depth, number, b"]" * depth)
            yield b'{"event_type":"A","data":%b1%b,"x":%b}' % (
                *(b'{"a":' * depth, b"}" * depth, number or b"0"),
            )


def test_no_depth_of_nesting_makes_a_reader_fail(tmp_path: Path) -> None:
    written = list(deep_lines())
    log, other = tmp_path / "log.jsonl", tmp_path / "other.jsonl"
    log.write_bytes(b"\n".join(written) + b"\n")
    other.write_bytes(b"\n".join([*written[:-1], b"{}"]) + b"\n")

    tally = count_part(CountTask(path=str(log)))

    assert tally.num_events + tally.num_bad == len(written)
    assert tally.num_events >= 6 * 6, "up to 500 levels are read"
    assert diff_paths(log, log).is_same
    assert not diff_paths(log, other).is_same
    assert validate_log(log).num_events == 0
    assert all("\n" not in render_line(line) for line in written)


def test_validate_names_the_type_of_a_foreign_line_with_a_nan(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(b'{"event_type":"FOREIGN","x":NaN}\n')

    kinds = [finding.kind for finding in validate_log(log).findings]

    assert kinds == ["type", "unfinished"]


def test_foreign_line_is_shown_with_its_numbers() -> None:
    line = b'{"event_type":"A","data":{"x":NaN,"y":18446744073709551616}}'

    assert render_line(line) == "A  {'x': nan, 'y': 18446744073709551616}"
