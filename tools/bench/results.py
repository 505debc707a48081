"""Figures kept: one file per run of the bench, and the latest one in docs/performance.md."""

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


def write_results(rows: Iterable[Row], *, is_quick: bool, directory: Path = RESULTS) -> Path:
    """Write the rows and what they were measured on; return the file."""
    now = datetime.now(UTC)
    results = {
        "date": now.date().isoformat(),
        "commit": _commit(),
        "is_quick": is_quick,
        "machine": {
            "cpu": cpu_model(),
            "cores": os.cpu_count(),
            "system": platform.system(),
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "load_average": round(os.getloadavg()[0], 1),
        },
        "rows": [_stored(row) for row in rows],
    }
    directory.mkdir(exist_ok=True)
    path = directory / f"{results['date']}-{results['commit']}.json"
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def latest_results(directory: Path = RESULTS) -> dict[str, Any]:
    """Read the newest file."""
    files = sorted(
        directory.glob("*.json"), key=lambda path: (path.name[:10], path.stat().st_mtime)
    )
    results: dict[str, Any] = json.loads(files[-1].read_text(encoding="utf-8"))
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
    head = (
        f"Measured on {results['date']} at commit `{results['commit']}`"
        f"{', quick form' if results['is_quick'] else ''}: {machine['cpu']}, "
        f"{machine['cores']} cores, load average {machine['load_average']} at the end, "
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
