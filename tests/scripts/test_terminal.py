"""Plain tables, colours and JSON on standard output."""

import json

import pytest

from esper.scripts.terminal import Colour, paint, print_json, print_table


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make standard output look like a terminal."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_numbers_are_aligned_right_and_texts_left(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "count"], [["a", "7"], ["longer", "-12.5"], ["c", "-"]])
    assert printed(capsys) == [
        "name    count",
        "a           7",
        "longer  -12.5",
        "c           -",
    ]


def test_column_with_one_text_is_aligned_left(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["value", "x"], [["12345", "1"], ["n/a", "2"]])
    assert printed(capsys) == ["value  x", "12345  1", "n/a    2"]


def test_table_without_rows_is_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["a", "b"], [])
    assert printed(capsys) == ["a  b"]


def test_pipe_gets_no_colour(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["a"], [["1"]], colours=[Colour.RED])
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.usefixtures("terminal")
def test_terminal_gets_the_colour_of_each_row() -> None:
    assert paint("x", Colour.RED) == "\x1b[31mx\x1b[0m"
    assert paint("x", None) == "x"


@pytest.mark.usefixtures("terminal")
def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert paint("x", Colour.GREEN) == "x"


def test_json_ends_with_one_newline_and_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"b": [1, None], "a": "ü"})
    text = capsys.readouterr().out
    assert json.loads(text) == {"b": [1, None], "a": "ü"}
    assert text.endswith("}\n")
    assert not text.endswith("\n\n")
    assert len(text.splitlines()) > 1
