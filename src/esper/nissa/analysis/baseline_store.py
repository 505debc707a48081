"""Baselines: capturing one from a run, storing it, and reading both sides of a comparison."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from esper.leyline.baselines import BASELINE_FORMAT, Baseline, Provenance, RunProfile
from esper.leyline.errors import UnreadableFileError, UsageError
from esper.leyline.manifest import RunManifest
from esper.leyline.untyped_json import readable_json
from esper.nissa.analysis.content import Content, ContentTask, read_content
from esper.nissa.analysis.counting import PARALLEL_BYTES
from esper.nissa.analysis.normalizing import normal_form
from esper.nissa.analysis.run_profile import Scan, ScanTask, read_started, scan_log
from esper.nissa.reading.lines import STDIN, read_lines
from esper.nissa.reading.run_lookup import find_log, run_directory_of
from esper.nissa.storage.files import read_limited
from esper.nissa.storage.run_directory import read_manifest

__all__ = [
    "BASELINE_DIR",
    "Side",
    "capture",
    "list_baselines",
    "read_baseline",
    "read_provenance",
    "read_sides",
    "scan_logs",
    "write_baseline",
]

MAX_BASELINE_BYTES: Final = 64 << 20
BASELINE_DIR: Final = Path("telemetry/baselines")
EARLY_EVENTS: Final = 1024
"""Two runs of different seeds or configurations differ within these."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a comparison: a baseline, or a run that was scanned."""

    name: str
    baseline: Baseline
    log: Path | None
    """None for a baseline file, which contains no events."""
    blocks: list[str]


def capture(path: Path) -> Baseline:
    """Capture the baseline of a run."""
    log = find_log(path)
    scan = scan_logs([log], with_keys=True)[0]
    if not scan.profile.counts:
        raise UnreadableFileError(path, "contains no events, so there is nothing to capture")
    return _baseline(log, scan)


def _baseline(log: Path, scan: Scan) -> Baseline:
    return Baseline(
        format=BASELINE_FORMAT, provenance=read_provenance(log, scan), profile=scan.profile
    )


def read_provenance(log: Path, scan: Scan) -> Provenance:
    """Return a run's provenance from its manifest, or else from its TRAINING_STARTED event."""
    manifest = _read_manifest(log)
    started = scan.profile.started
    if manifest is None:
        if started is None:
            return Provenance()
        return Provenance(
            schema_version=started.schema_version,
            esper_version=started.esper_version,
            data_source=started.data_source,
        )
    return Provenance(
        schema_version=manifest.schema_version,
        esper_version=manifest.esper_version,
        commit=manifest.commit,
        data_source=manifest.data_source or (started.data_source if started else None),
        machine_kind=manifest.machine_kind,
        config=manifest.job.training,
    )


def _read_manifest(log: Path) -> RunManifest | None:
    directory = run_directory_of(log)
    path = None if directory is None else directory / "run.json"
    if path is None or not path.is_file():
        return None
    return read_manifest(path.parent)


def write_baseline(baseline: Baseline, path: Path) -> None:
    """Write a baseline as indented JSON, so that changes are readable in a review."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(readable_json(baseline))
    except OSError as error:
        raise UnreadableFileError(path, f"cannot be written: {error.strerror}") from None


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file."""
    try:
        data = read_limited(path, MAX_BASELINE_BYTES, "baseline")
        baseline = msgspec.json.decode(data, type=Baseline)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableFileError(
            path, f"not a baseline: {error}; 'esper-telemetry baseline capture' creates one"
        ) from None
    if baseline.format != BASELINE_FORMAT:
        raise UnreadableFileError(
            path, f"has format {baseline.format!r}, this version reads {BASELINE_FORMAT!r}"
        )
    return baseline


def list_baselines(directory: Path = BASELINE_DIR) -> dict[Path, Baseline]:
    """Read every baseline of a directory."""
    if not directory.is_dir():
        raise UnreadableFileError(directory, "no such directory; baselines are stored here")
    return {path: read_baseline(path) for path in sorted(directory.glob("*.json"))}


def read_sides(left: Path, right: Path) -> list[Side]:
    """Read both sides of a comparison; large runs are read in parallel.

    Two runs of equal content are not parsed, and runs that differ from the start get no digest.
    Collecting key sets is the slowest part of a scan. Two runs with equal digests have equal keys,
    so where the content is not known, keys are collected only for runs that differ or that are
    compared with a baseline.
    """
    paths = [left, right]
    baselines = {path: read_baseline(path) for path in paths if _is_baseline(path)}
    logs = {path: find_log(path) for path in paths if path not in baselines}
    distinct = list(dict.fromkeys(logs.values()))
    scans = _scans_of(distinct, is_against_baseline=bool(baselines))
    return [
        Side(name=str(path), baseline=baselines[path], log=None, blocks=[])
        if path in baselines
        else _scanned_side(path, logs[path], scans[logs[path]])
        for path in paths
    ]


def _scans_of(logs: Sequence[Path], *, is_against_baseline: bool) -> dict[Path, Scan]:
    if is_against_baseline or len(logs) < 2:
        return _scanned(logs, with_keys=is_against_baseline)
    if _parts_early(logs):
        return _scanned(logs, with_keys=True, with_digest=False)
    contents = _read_contents(logs)
    is_known = all(content.is_known for content in contents)
    if is_known and contents[0] == contents[1]:
        return {log: _unparsed(log, content) for log, content in zip(logs, contents, strict=True)}
    scans = _scanned(logs, with_keys=is_known)
    if not is_known and len({scan.profile.digest for scan in scans.values()}) > 1:
        return _scanned(logs, with_keys=True)
    return scans


def _scanned(
    logs: Sequence[Path], *, with_keys: bool, with_digest: bool = True
) -> dict[Path, Scan]:
    scans = scan_logs(logs, with_keys=with_keys, with_digest=with_digest)
    return dict(zip(logs, scans, strict=True))


def _parts_early(logs: Sequence[Path]) -> bool:
    """Compare the first events: logs that differ there need no digest."""
    # A pipe could not be read again.
    if not all(_size(log) for log in logs):
        return False
    starts = [list(islice(_normal_forms(log), EARLY_EVENTS)) for log in logs]
    return starts[0] != starts[1]


def _normal_forms(log: Path) -> Iterator[bytes]:
    for line in read_lines(log):
        if line.strip() and (form := normal_form(line)) is not None:
            yield form


def _unparsed(log: Path, content: Content) -> Scan:
    """Return what a comparison of equal runs shows: the counts, and how the run was started."""
    profile = RunProfile(
        counts=content.counts,
        terms={},
        key_sets={},
        broken_orders={},
        started=read_started(next(read_lines(log))),
        status=None,
        num_lines=sum(content.counts.values()),
        num_bad_lines=0,
        digest=content.digest,
    )
    return Scan(profile=profile, blocks=[])


def _read_contents(logs: Sequence[Path]) -> list[Content]:
    tasks = [ContentTask(path=str(log)) for log in logs]
    if sum(_size(log) for log in logs) < PARALLEL_BYTES:
        return [read_content(task) for task in tasks]
    # Imported here because only large logs need it.
    from esper.nissa.analysis.reading_processes import run_tasks

    return run_tasks(tasks, Content)


def _is_baseline(path: Path) -> bool:
    return path.suffix == ".json" and path.is_file()


def _scanned_side(path: Path, log: Path, scan: Scan) -> Side:
    if not scan.profile.counts:
        raise UnreadableFileError(path, "contains no events, so there is nothing to compare")
    name = str(path if path.exists() else log.parent)  # the run that an id or a name stood for
    return Side(name=name, baseline=_baseline(log, scan), log=log, blocks=scan.blocks)


def scan_logs(logs: Sequence[Path], *, with_keys: bool, with_digest: bool = True) -> list[Scan]:
    """Scan logs; several large ones each in their own process."""
    tasks = [ScanTask(path=str(log), with_keys=with_keys, with_digest=with_digest) for log in logs]
    if len(logs) < 2 or sum(_size(log) for log in logs) < PARALLEL_BYTES:
        return [scan_log(task) for task in tasks]
    # Imported here because only large logs need it.
    from esper.nissa.analysis.reading_processes import run_tasks

    return run_tasks(tasks, Scan)


def _size(log: Path) -> int:
    if log == STDIN:
        raise UsageError("standard input can be read only once; name a file or a run")
    return log.stat().st_size
