"""Figures kept: one file per day of measuring, and the latest one in docs/performance.md."""

import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from esper.nissa.run_directory import cpu_model
from tools.bench.rows import Row

__all__ = ["latest_results", "refresh_document", "rendered", "write_results"]

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "tools" / "bench" / "results"
DOCUMENT: Final = ROOT / "docs" / "performance.md"
BEGIN: Final = "<!-- figures: begin -->\n"
END: Final = "<!-- figures: end -->\n"


def write_results(
    rows: Iterable[Row],
    *,
    is_quick: bool,
    took_s: float | None,
    directory: Path = RESULTS,
    date: str | None = None,
) -> Path:
    """Write the rows and what they were measured on; return the file, the only one of its day.

    Args:
        rows: what was measured.
        is_quick: whether in the quick form.
        took_s: how long all rows took; None if these are only some, which take their places among
            the others of the same day and form.
        directory: of the files.
        date: the day, in ISO form; None for today.
    """
    date = date or datetime.now(UTC).date().isoformat()
    directory.mkdir(exist_ok=True)
    earlier = sorted(directory.glob(f"{date}-*.json"))
    stored = {row.name: _stored(row) for row in rows}
    if took_s is None and earlier:
        known = _read(earlier[-1])
        if known["is_quick"] == is_quick:
            took_s = known["took_s"]
            stored = {row["name"]: row for row in known["rows"]} | stored
    results = {
        "date": date,
        "commit": _commit(),
        "is_quick": is_quick,
        "took_s": took_s,
        "machine": {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "system": platform.system(),
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "load_average": round(os.getloadavg()[0], 1),
        },
        "rows": list(stored.values()),
    }
    for path in earlier:
        path.unlink()
    path = directory / f"{results['date']}-{results['commit']}.json"
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def latest_results(directory: Path = RESULTS) -> dict[str, Any]:
    """Read the newest file; there is one per day, and its name begins with the date."""
    return _read(max(directory.glob("*.json")))


def _read(path: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results


def refresh_document(document: Path = DOCUMENT, directory: Path = RESULTS) -> None:
    """Put the newest figures between the marks of the document."""
    text = document.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    figures = rendered(latest_results(directory))
    document.write_text(before + BEGIN + figures + END + after, encoding="utf-8")


def rendered(results: dict[str, Any]) -> str:
    """Return a file's figures as Markdown: rows with targets, then how cost grows."""
    machine = results["machine"]
    took_s = results["took_s"]
    head = (
        f"Measured on {results['date']}, the last rows at commit `{results['commit']}`"
        f"{', quick form' if results['is_quick'] else ''}"
        f"{'' if took_s is None else f', all rows at first within {took_s / 60:.0f} minutes'}: "
        f"{machine['cpu']}, {machine['cores']} cores, load average {machine['load_average']} at "
        "the end, "
        f"{machine['system']}, Python {machine['python']}, torch {machine['torch']}.\n"
    )
    judged = [row for row in results["rows"] if row["bound"]]
    growing = [row for row in results["rows"] if not row["bound"]]
    tables = [
        *_table(("row", "measured", "target", "unit", "", "on what"), map(_judged_cells, judged)),
        "\n### How cost grows\n",
        *_table(("what", "measured", "unit", "on what"), map(_growing_cells, growing)),
    ]
    return "\n".join((head, *tables)) + "\n"


def _table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield "|---" * len(header) + "|"
    for cells in lines:
        yield f"| {' | '.join(cells)} |"


def _judged_cells(row: dict[str, Any]) -> tuple[str, ...]:
    verdict = "" if row["is_met"] else "missed"
    return row["name"], _number(row["measured"]), row["bound"], row["unit"], verdict, row["note"]


def _growing_cells(row: dict[str, Any]) -> tuple[str, ...]:
    return row["name"], _number(row["measured"]), row["unit"], row["note"]


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:,.4g}"


def _stored(row: Row) -> dict[str, object]:
    return {
        "name": row.name,
        "measured": row.measured if math.isfinite(row.measured) else None,
        "target": row.target,
        "bound": row.bound,
        "unit": row.unit,
        "is_met": row.is_met,
        "note": row.note,
    }


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"
