"""Stores benchmark results, one file per day, and renders the latest in docs/performance.md."""

import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from esper.nissa.storage.run_directory import cpu_model
from tools.bench.plots import plot_links, write_plots
from tools.bench.rows import Row
from tools.markdown import table, with_block

__all__ = ["latest_results", "refresh_document", "rendered", "write_results"]

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "tools" / "bench" / "results"
DOCUMENT: Final = ROOT / "docs" / "performance.md"


def write_results(
    rows: Iterable[Row],
    *,
    is_quick: bool,
    took_s: float | None,
    directory: Path = RESULTS,
    date: str | None = None,
) -> Path:
    """Write the rows and a description of the machine; return the path of the day's only file.

    Args:
        rows: the measured rows.
        is_quick: whether they were measured in the quick form.
        took_s: duration of all rows; None for a subset, which is merged into the results of the
            same day and form.
        directory: directory of the files.
        date: the day in ISO format; None for today.
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
    """Write the newest figures between the document's markers, and their plots beside it."""
    results = latest_results(directory)
    text = document.read_text(encoding="utf-8")
    document.write_text(with_block(text, rendered(results)), encoding="utf-8")
    write_plots(results["rows"], document.parent / "images")


def rendered(results: dict[str, Any]) -> str:
    """Render a file's figures as Markdown: rows with targets, then rows without."""
    machine = results["machine"]
    took_s = results["took_s"]
    head = (
        f"Measured on {results['date']}, latest rows at commit `{results['commit']}`"
        f"{', quick form' if results['is_quick'] else ''}"
        f"{'' if took_s is None else f', complete run in {took_s / 60:.0f} minutes'}: "
        f"{machine['cpu']}, {machine['cores']} cores, load average {machine['load_average']} at "
        "the end, "
        f"{machine['system']}, Python {machine['python']}, torch {machine['torch']}.\n"
    )
    judged = [row for row in results["rows"] if row["bound"]]
    growing = [row for row in results["rows"] if not row["bound"]]
    tables = [
        table(("row", "measured", "target", "unit", "", "details"), map(_judged_cells, judged)),
        "\n### Scaling and other rows without targets\n",
        table(("row", "measured", "unit", "details"), map(_growing_cells, growing)),
        *plot_links(results["rows"]),
    ]
    return "\n".join((head, *tables)) + "\n"


def _judged_cells(row: dict[str, Any]) -> tuple[str, ...]:
    verdict = "" if row["is_met"] else "missed"
    return row["name"], _number(row["measured"]), row["bound"], row["unit"], verdict, row["note"]


def _growing_cells(row: dict[str, Any]) -> tuple[str, ...]:
    return row["name"], _number(row["measured"]), row["unit"], row["note"]


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:,.4g}"


def _stored(row: Row) -> dict[str, object]:
    point = {} if row.point is None else {"point": asdict(row.point)}
    return {
        "name": row.name,
        "measured": row.measured if math.isfinite(row.measured) else None,
        "target": row.target,
        "bound": row.bound,
        "unit": row.unit,
        "is_met": row.is_met,
        "note": row.note,
        **point,
    }


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"
