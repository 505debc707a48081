"""Numbers, durations, sparklines and untrusted text as a terminal shows them."""

import ast
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.karn.console.formatting import (
    MISSING,
    STAGE_LABELS,
    duration,
    number,
    sparkline,
)
from esper.leyline.printable import printable
from esper.leyline.stages import Stage

BLOCKS = {False: "▁▂▃▄▅▆▇█", True: "_.:-=+*#"}


@pytest.mark.parametrize(
    ("value", "pattern", "unit", "expected"),
    [
        (None, ".2f", " %", MISSING),
        (0.0, ".2f", "", "0.00"),
        (12.345, ".1f", " %", "12.3 %"),
        (2.0, "+.2f", "", "+2.00"),
    ],
)
def test_missing_number_is_a_dash_and_zero_is_a_number(
    value: float | None, pattern: str, unit: str, expected: str
) -> None:
    assert number(value, pattern, unit) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, MISSING),
        (0.4, "0 s"),
        (59.0, "59 s"),
        (60.0, "1 min 0 s"),
        (3599.9, "59 min 59 s"),
        (3600.0, "1 h 0 min"),
        (90061.0, "25 h 1 min"),
    ],
)
def test_duration_has_at_most_two_units(seconds: float | None, expected: str) -> None:
    assert duration(seconds) == expected


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=40), st.booleans())
def test_sparkline_ranks_its_values_and_leaves_gaps(
    values: list[float | None], is_ascii: bool
) -> None:
    known = [value for value in values if value is not None]
    drawn = sparkline(values, is_ascii=is_ascii)
    if not known:
        assert drawn == ""
        return

    assert [char == " " for char in drawn] == [value is None for value in values]
    heights = [BLOCKS[is_ascii].index(char) for char in drawn if char != " "]
    ranked = [height for _, height in sorted(zip(known, heights, strict=True))]
    assert ranked == sorted(ranked)
    assert ranked[0] == 0
    assert ranked[-1] == (7 if max(known) > min(known) else 0)


def test_every_stage_has_a_label_of_its_own() -> None:
    labels = [STAGE_LABELS[stage.name] for stage in Stage if stage.name in STAGE_LABELS]
    assert len(set(labels)) == len(STAGE_LABELS)
    assert STAGE_LABELS.keys() <= {stage.name for stage in Stage}


@given(st.text(st.characters()))  # surrogates included, as file names may contain them
def test_printable_text_escapes_what_a_terminal_might_act_on_and_keeps_the_rest(text: str) -> None:
    shown = [printable(char) for char in text]
    assert printable(text) == "".join(shown)
    for char, escaped in zip(text, shown, strict=True):
        if char == " " or unicodedata.category(char)[0] not in "CZ":
            assert escaped == char
        else:
            assert escaped.isascii()
            assert escaped.startswith("\\")
            assert not any(unicodedata.category(one).startswith("C") for one in escaped)
            assert ast.literal_eval(f'"{escaped}"') == char


def test_escape_sequence_of_a_hostile_name_is_disarmed() -> None:
    assert printable("a\x1b[31mb\u202e") == r"a\x1b[31mb\u202e"
