"""JSON without a type is read like Python's json reads it, and written the same everywhere."""

import json
import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from esper.leyline.untyped_json import (
    compact_json,
    decode_json,
    decode_marked,
    decode_python_json,
    readable_json,
    without_tokens,
)

SURROGATES = st.characters(categories=["Cs"])
TEXTS = st.text() | st.text(SURROGATES | st.sampled_from('a\\"u\0\ud83d\ude00'), max_size=4)
INTEGERS = st.integers() | st.integers(min_value=-(10**30), max_value=10**30)
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats() | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda items: st.lists(items, max_size=4) | st.dictionaries(TEXTS, items, max_size=4),
    max_leaves=12,
)
"""Whatever Python's json can write."""

FRAGMENTS = [
    *(b"NaN", b"Infinity", b"-Infinity", b"-NaN", b"-", b"+", b"0", b"1", b".5", b"1.", b"e5"),
    *(b"1e999", b"-1e999", b"1e-999", b"01", b"18446744073709551615", b"18446744073709551616"),
    *(b"-9223372036854775808", b"-9223372036854775809", b"9" * 400, b"0" * 25, b"0." + b"1" * 30),
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b'"a"', b"\\", b'"\\', b"\\ud800", b"\\udc00"),
    *(b"\\ud83d\\ude00", b"\\\\ud800", b"\\u0000", b"\\u00g0", b"\t", b"\r", b"\x00", b"null"),
    *(b"\xff", b"\xef\xbb\xbf", b"\xe2\x82\xac", b"true", b" "),
]  # fmt: skip


def unpaired(text: str) -> str:
    """Replace surrogates as documented; Python keeps pairs of escapes as one character."""
    return re.sub("[\ud800-\udfff]", lambda match: f"\ufffd{ord(match[0]):04x}", text)


def without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return unpaired(value)
        case list():
            return [without_surrogates(item) for item in value]
        case dict():
            return {unpaired(key): without_surrogates(item) for key, item in value.items()}
    return value


def as_python_reads_it(line: bytes) -> str:
    """Return the value as text, or what stands for a refusal."""
    try:
        return repr(without_surrogates(json.loads(line.decode("utf-8-sig"))))
    except ValueError:
        return "refused"


def as_we_read_it(line: bytes) -> str:
    try:
        return repr(decode_python_json(line))
    except ValueError:
        return "refused"


@given(VALUES, st.booleans())
@settings(deadline=None, max_examples=300)
@example(value=["\ud83d\ude00", {"\ud800": 2**64}], is_ascii=True)
def test_whatever_python_writes_is_read_like_python_reads_it(value: object, is_ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii)
    line = text.encode(errors="replace")

    assert as_we_read_it(line) == as_python_reads_it(line)
    assert as_we_read_it(line) != "refused"


@st.composite
def damaged_lines(draw: st.DrawFn) -> bytes:
    """Draw JSON with pieces put in and taken out."""
    data = bytearray(json.dumps(draw(VALUES)).encode())
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 4)))
        data[start:end] = draw(st.sampled_from(FRAGMENTS))
    return bytes(data)


@given(damaged_lines())
@settings(deadline=None, max_examples=600)
@example(b'"\\"\\"\\" NaN')
@example(b'{"a":"NaN}')
@example(b'[1NaN,"a"NaN]')
@example(b'{"\\u0000":[NaN,["\\u0000","1"],["\\u0000\\u0000","1"],"\\u0000",""]}')
@example(b'["\\ud800\\ud83d\\ude00\\\\ud800\\udc00"]')
def test_damaged_text_is_refused_or_read_exactly_as_python_does(line: bytes) -> None:
    assert as_we_read_it(line) == as_python_reads_it(line)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"  ",
        b"\xff\xfe[\x00]\x00",
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf\xef\xbb\xbf[]",
        b"[" * 100_000,
        b"[" * 1100 + b"]" * 1100,
        b'{"a":' * 100_000,
        b'"' + b'\\"' * 500_000,
        b"[NaN," + b"[" * 1010 + b"]" * 1011,
        b"[NaN,%b]" % b",".join(b'"%b"' % (rb"\u0000" * length) for length in range(1, 9)),
    ],
    ids=range(11),
)
def test_text_that_cannot_be_read_is_refused_at_once(line: bytes) -> None:
    assert as_we_read_it(line) == "refused"


def test_number_with_more_digits_than_python_converts_is_read_as_infinity() -> None:
    assert decode_python_json(b"[" + b"1" * 5000 + b"]") == [math.inf]


def test_numbers_beyond_orjson_are_marked_with_their_text() -> None:
    line = b'[NaN,-Infinity,1E999,18446744073709551616,18446744073709551615,"NaN","\\u0000"]'

    value, mark = decode_marked(line)

    assert mark == "\0\0", "the shortest that the line does not hold"
    texts = ["NaN", "-Infinity", "1E999", "18446744073709551616"]
    assert value == [*([mark, text] for text in texts), 18446744073709551615, "NaN", "\0"]
    assert decode_marked(b'["Nan",1e5]') == (["Nan", 1e5], None)


def test_tokens_become_null_outside_strings_only() -> None:
    lines = b'{"a":NaN,"NaN":"NaN","b":"\\"NaN","c":"\\\\"}\n[-Infinity,Infinity,"-Infinity"]\n'

    assert without_tokens(lines) == (
        b'{"a":null,"NaN":"NaN","b":"\\"NaN","c":"\\\\"}\n[null,null,"-Infinity"]\n'
    )


def test_last_of_equal_keys_counts() -> None:
    assert decode_python_json(b'{"a":1,"a":NaN,"a":2}') == {"a": 2}


@given(INTEGERS)
@settings(deadline=None)
def test_integers_stay_exact_in_plain_json(number: int) -> None:
    for text in (str(number), f'{{"a": [{number}, "{number}", "\\u0000"]}}'):
        assert repr(decode_json(text)) == repr(json.loads(text))
        assert repr(decode_json(text.encode())) == repr(json.loads(text))


@pytest.mark.parametrize("text", ["NaN", "[-Infinity]", "1e999", "", "{", "\udcff", '"\\ud800"'])
def test_plain_json_has_no_tokens_of_python(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        decode_json(text)


class Row(msgspec.Struct):
    """Something with a field that comes last in the alphabet first."""

    zeta: int
    alpha: dict[int, float]


def test_json_for_people_is_sorted_and_indented_and_ends_with_a_newline() -> None:
    text = readable_json([Row(1, {2: 0.5, 1: math.nan}), {"ä": [], "b": {}}])

    assert text.decode() == (
        "[\n"
        "  {\n"
        '    "alpha": {\n'
        '      "1": null,\n'
        '      "2": 0.5\n'
        "    },\n"
        '    "zeta": 1\n'
        "  },\n"
        "  {\n"
        '    "b": {},\n'
        '    "ä": []\n'
        "  }\n"
        "]\n"
    )


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.dictionaries(
        st.text(), st.lists(st.none() | st.booleans() | INTEGERS | FINITE | st.text(), max_size=4)
    )
)
@settings(deadline=None)
def test_json_for_people_holds_the_same_values(value: dict[str, object]) -> None:
    text = readable_json(value)

    read = json.loads(text)
    assert repr(dict(sorted(read.items()))) == repr(dict(sorted(value.items())))
    assert list(read) == sorted(value, key=str.encode)


def test_text_that_is_no_unicode_is_written_with_its_escapes() -> None:
    assert json.loads(readable_json({"a\udcff": ["\ud800", 2**70]})) == {
        "a\\udcff": ["\\ud800", 2**70]
    }


def test_rows_keep_the_order_of_their_columns_and_any_value() -> None:
    row = {
        "z": 2**100,
        "a": [math.nan, {1: (date(2024, 1, 2), datetime(2024, 1, 2, tzinfo=UTC))}],
        "m": Decimal("1.50"),
        "b": b"x",
    }

    assert compact_json(row).decode() == (
        '{"z":1267650600228229401496703205376,'
        '"a":[null,{"1":["2024-01-02","2024-01-02 00:00:00+00:00"]}],"m":"1.50","b":"b\'x\'"}'
    )
