"""The table of envs fits the terminal, stays readable and does not jump."""

import re

import pytest
from tests.karn.console.test_console import screen_of
from tests.karn.story import Story

EVENTS = list(Story(num_rounds=2, num_envs=4, num_steps=24, has_trouble=False).events())
HEAD = re.compile(r"^env .*accuracy .*r0c0 ")


def table_of(width: int, num_events: int) -> list[str]:
    lines = screen_of(EVENTS[:num_events], width=width)
    start = next(index for index, line in enumerate(lines) if HEAD.match(line))
    return lines[start : start + 5]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_every_cell_is_readable_at_every_moment(width: int) -> None:
    for num_events in range(60, len(EVENTS), 97):
        head, *rows = table_of(width, num_events)
        assert len(head) <= width
        for row in rows:
            assert len(row) <= width
            assert "…" not in row
            assert re.search(r"\d\d\.\d %", row)
            assert re.search(r"[+-]\d+\.\d\d ?$", row)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_columns_stay_where_they_are(width: int) -> None:
    heads = {table_of(width, num_events)[0] for num_events in range(60, len(EVENTS), 97)}
    assert len(heads) == 1


def test_narrow_terminal_leaves_out_curves_first_and_wide_one_shows_more() -> None:
    middle = len(EVENTS) // 2
    narrow, medium, wide = (table_of(width, middle) for width in (80, 120, 200))
    curve = re.compile("[▁▂▃▄▅▆▇█]{3}")
    assert all("last action" in table[0] for table in (narrow, medium, wide))
    assert not any(curve.search(row) for row in narrow)
    assert any(curve.search(row) for row in medium)
    assert any(re.search(r"[a-z_]+ (train|blend|hold|germ|fossil) \d\.\d\d", row) for row in wide)
    assert max(map(len, wide)) >= 195
