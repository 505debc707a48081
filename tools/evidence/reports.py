"""The stored reports of the experiment: rounded figures, with date, commit and machine."""

import math
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from esper.leyline.comparison import ComparisonReport
from esper.leyline.errors import UnreadableFileError
from esper.leyline.inspection import InspectionReport
from esper.nissa.storage.run_directory import cpu_model
from tools.calibration import Calibration

__all__ = [
    "CALIBRATION",
    "CLOSED_LOOP",
    "CLOSED_LOOP_PROBE",
    "COMPARED",
    "FASHION",
    "KNOWN",
    "PLANS",
    "PRESETS",
    "ROOT",
    "Kept",
    "KeptCalibration",
    "KeptInspections",
    "inspection_path",
    "keep_calibration",
    "keep_inspections",
    "keep_reports",
    "read_calibration",
    "read_inspections",
    "read_kept",
    "report_path",
]

ROOT: Final = Path(__file__).resolve().parents[2]
REPORTS: Final = Path(__file__).resolve().parent / "reports"
KNOWN: Final = "digits_growth"
"""The preset that the policies are trained with."""
FASHION: Final = "fashion_growth"
"""The preset of the transfer experiment."""
CLOSED_LOOP: Final = "closed_loop"
"""The preset of the jobs of the second experiment."""
CLOSED_LOOP_PROBE: Final = "closed_loop_probe"
"""The preset that its policies are trained with."""
CALIBRATION: Final = "calibration.json"
COMPARED: Final = ("contexts", "lottery", "held-out-contexts", "fashion-contexts")
"""What these are compared on."""
PLANS: Final = (
    "schedule:best_schedule_of_probe_contexts.json",
    "rule:best_rule_of_probe_contexts.json",
)
"""What `tools.probes.plans` finds on the probe, as arms of the second experiment: other opponents
than those of the searches, which have few episodes of networks."""
PRESETS: Final = (KNOWN, FASHION, *COMPARED)
INSPECTION_SUFFIX: Final = ".inspection.json"
INSPECTIONS: Final = "inspections.json"
NUM_DIGITS: Final = 5
"""Significant digits of a stored figure."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A report and what it was measured on."""

    date: str
    """UTC."""
    commit: str
    machine: str
    report: ComparisonReport


class KeptInspections(msgspec.Struct, frozen=True, kw_only=True):
    """Inspections of the policies of the second experiment, and what they were measured on."""

    date: str
    """UTC."""
    commit: str
    machine: str
    reports: tuple[InspectionReport, ...]
    """One for each policy."""


class KeptCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """A calibration of contributions, and what it was measured on."""

    date: str
    """UTC."""
    commit: str
    machine: str
    report: Calibration


def inspection_path(folder: Path, policy: str) -> Path:
    """Return the path of this policy's inspection."""
    return folder / f"{policy}{INSPECTION_SUFFIX}"


def report_path(folder: Path, preset: str) -> Path:
    """Return the path of this preset's report."""
    return folder / f"{preset}.json"


def read_kept(directory: Path = REPORTS) -> dict[str, Kept]:
    """Return the stored reports by preset."""
    return {
        preset: msgspec.json.decode(path.read_bytes(), type=Kept)
        for preset in PRESETS
        if (path := report_path(directory, preset)).exists()
    }


def keep_reports(folder: Path, directory: Path = REPORTS) -> Iterator[Path]:
    """Store the reports of a folder; yield the paths of those that have changed."""
    kept = read_kept(directory)
    directory.mkdir(exist_ok=True)
    for preset in PRESETS:
        path = report_path(folder, preset)
        if not path.exists():
            continue
        report = compact(_read_report(path))
        if preset in kept and kept[preset].report == report:
            continue  # unchanged: keep the date and commit of its measurement
        target = report_path(directory, preset)
        target.write_bytes(msgspec.json.encode(Kept(**_origin(), report=report)) + b"\n")
        yield target


def read_inspections(directory: Path = REPORTS) -> KeptInspections | None:
    """Return the stored inspections; None before there are any."""
    path = directory / INSPECTIONS
    return msgspec.json.decode(path.read_bytes(), type=KeptInspections) if path.exists() else None


def keep_inspections(folder: Path, directory: Path = REPORTS) -> Iterator[Path]:
    """Store the inspections of a folder; yield their path if they have changed."""
    paths = sorted(folder.glob(f"*{INSPECTION_SUFFIX}"))
    reports = tuple(
        msgspec.convert(_shortened(msgspec.to_builtins(_decoded(path)), {}), InspectionReport)
        for path in paths
    )
    kept = read_inspections(directory)
    if not reports or (kept is not None and kept.reports == reports):
        return
    directory.mkdir(exist_ok=True)
    target = directory / INSPECTIONS
    target.write_bytes(msgspec.json.encode(KeptInspections(**_origin(), reports=reports)) + b"\n")
    yield target


def read_calibration(directory: Path = REPORTS) -> KeptCalibration | None:
    """Return the stored calibration; None before there is one."""
    path = directory / CALIBRATION
    return msgspec.json.decode(path.read_bytes(), type=KeptCalibration) if path.exists() else None


def keep_calibration(folder: Path, directory: Path = REPORTS) -> Iterator[Path]:
    """Store the calibration of a folder; yield its path if it has changed."""
    path = folder / CALIBRATION
    if not path.exists():
        return
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except msgspec.DecodeError as error:
        raise UnreadableFileError(path, f"not a calibration: {error}") from None
    report = msgspec.convert(_shortened(msgspec.to_builtins(found), {}), Calibration)
    kept = read_calibration(directory)
    if kept is not None and kept.report == report:
        return
    directory.mkdir(exist_ok=True)
    target = directory / CALIBRATION
    target.write_bytes(msgspec.json.encode(KeptCalibration(**_origin(), report=report)) + b"\n")
    yield target


def _decoded(path: Path) -> InspectionReport:
    try:
        return msgspec.json.decode(path.read_bytes(), type=InspectionReport)
    except msgspec.DecodeError as error:
        raise UnreadableFileError(path, f"not the report of an inspection: {error}") from None


def _read_report(path: Path) -> ComparisonReport:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ComparisonReport)
    except msgspec.DecodeError as error:
        raise UnreadableFileError(path, f"not the report of a comparison: {error}") from None


def compact(report: ComparisonReport) -> ComparisonReport:
    """Return a report with rounded figures and without local paths."""
    names = {arm.arm: _public_name(arm.arm) for arm in report.arms}
    return msgspec.convert(_shortened(msgspec.to_builtins(report), names), ComparisonReport)


def _public_name(arm: str) -> str:
    kind, _, policies = arm.partition(":")
    return ":".join((kind, *([",".join(map(_last_part, policies.split(",")))] if policies else ())))


def _last_part(path: str) -> str:
    return path.rpartition("/")[2]


def _shortened(value: Any, names: Mapping[str, str]) -> Any:
    match value:
        case float():
            # Non-finite floats mean not measured; JSON cannot represent them.
            return float(f"{value:.{NUM_DIGITS}g}") if math.isfinite(value) else None
        case str():
            return names.get(value, value)
        case list() | tuple():
            return [_shortened(item, names) for item in value]
        case dict():
            return {key: _shortened(item, names) for key, item in value.items()}
    return value


def _origin() -> dict[str, str]:
    """Return when and on what a report was measured."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _commit(),
        "machine": f"{os.cpu_count()} cores of {cpu_model()}, Python {platform.python_version()}",
    }


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
