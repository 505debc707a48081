"""The report: the dashboard's page with the data of a run, as one self-contained file."""

from pathlib import Path
from typing import Final

import msgspec

from esper.karn.view.snapshot import EnvDetail, Patch
from esper.karn.view.view_feed import read_run
from esper.karn.view.view_model import START
from esper.karn.web.page import self_contained_page
from esper.leyline.errors import UsageError
from esper.leyline.manifest import RunManifest
from esper.nissa.analysis.diff import Difference, diff_paths
from esper.nissa.storage.run_directory import MANIFEST_FILE, read_manifest

__all__ = ["Report", "build_report", "write_report"]

NOT_COMPARED: Final = "Not compared with a baseline; 'report --baseline FILE' does."


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The data embedded in the page of a report."""

    view: Patch
    details: dict[int, EnvDetail]
    """The drill-down of every env."""
    manifest: RunManifest | None
    baseline: str
    """The result of the comparison with a baseline."""


def write_report(run_dir: Path, output: Path, baseline: Path | None = None) -> None:
    """Write the report of a running or finished run."""
    page = self_contained_page(msgspec.json.encode(build_report(run_dir, baseline)))
    try:
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{output}: cannot write the report: {reason}") from None


def build_report(run_dir: Path, baseline: Path | None = None) -> Report:
    """Collect the data of a report as of the run's last event."""
    model = read_run(run_dir)
    snapshot = model.snapshot()
    details = {env.env_id: model.detail(env.env_id) for env in snapshot.envs}
    return Report(
        view=model.patch(START, snapshot.now),
        details={env_id: detail for env_id, detail in details.items() if detail is not None},
        manifest=read_manifest(run_dir) if (run_dir / MANIFEST_FILE).exists() else None,
        baseline=NOT_COMPARED if baseline is None else _verdict(diff_paths(baseline, run_dir)),
    )


def _verdict(difference: Difference) -> str:
    if difference.is_same:
        return f"Same as the baseline {difference.left}."
    changed = [change.event_type for change in difference.counts if change.delta]
    counts = f" Counts that differ: {', '.join(changed)}." if changed else ""
    return f"Differs from the baseline {difference.left}.{counts}"
