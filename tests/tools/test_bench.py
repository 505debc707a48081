"""The bench finds its rows and says what is wrong with a call."""

import pytest
from tools.bench.__main__ import main
from tools.bench.rows import ROWS, Row, load_all_benches


def test_rows_of_the_bus_are_found() -> None:
    load_all_benches()
    assert {"E1", "E2", "E5", "E6", "E7", "leyline import"} <= set(ROWS)


def test_unknown_row_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["E99"])
    assert "no row E99; there are" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("is_at_least", "measured", "is_met"), [(False, 2, False), (True, 2, True)]
)
def test_target_is_an_upper_bound_unless_said_otherwise(
    is_at_least: bool, measured: float, is_met: bool
) -> None:
    row = Row(name="r", measured=measured, target=1, unit="s", is_at_least=is_at_least)
    assert row.is_met is is_met
