"""Writes the table at the end of docs/sinks.md from the table of fields in the code."""

from pathlib import Path
from typing import Final

from esper.nissa.sinks.fields import FIELDS, FieldRow

PATH = Path(__file__).resolve().parents[1] / "docs" / "sinks.md"
HEADER: Final = "| event | field | becomes | name |\n|---|---|---|---|\n"


def main() -> None:
    """Write the page."""
    PATH.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the whole page: its text as it is, and the table."""
    text, _, _ = PATH.read_text(encoding="utf-8").partition(HEADER)
    rows = sorted(FIELDS, key=lambda row: (row.event_type, row.shape, row.name))
    return "".join([text, HEADER, *map(_row, rows)])


def _row(row: FieldRow) -> str:
    return f"| {row.event_type} | `{row.field}` | {row.shape} | `{row.name}` |\n"


if __name__ == "__main__":
    main()
