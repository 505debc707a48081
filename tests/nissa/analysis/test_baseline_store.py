"""Baselines on disk: captured, written, read again, listed, and refused with a reason."""

from pathlib import Path

import msgspec
import pytest
from tests.nissa.fake_run import FakeRun, write_run

from esper.leyline.baselines import BASELINE_FORMAT
from esper.leyline.errors import UnreadableFileError, UsageError
from esper.nissa.analysis import baseline_store
from esper.nissa.analysis.baseline_store import (
    capture,
    list_baselines,
    read_baseline,
    read_sides,
    scan_logs,
    write_baseline,
)
from esper.nissa.reading.lines import STDIN

RUN = FakeRun(num_rounds=2)
OTHER = FakeRun(num_rounds=2, seed=8, run_id="11111111")


def test_captured_baseline_has_the_counts_and_the_provenance_of_its_run(tmp_path: Path) -> None:
    baseline = capture(RUN.write(tmp_path))

    manifest = RUN.manifest()
    assert baseline.format == BASELINE_FORMAT
    assert sum(baseline.profile.counts.values()) == len(list(RUN.lines()))
    assert baseline.profile.key_sets
    assert baseline.provenance.commit == manifest.commit
    assert baseline.provenance.machine_kind == manifest.machine_kind
    assert baseline.provenance.config == manifest.job.training


def test_log_without_a_manifest_gets_its_provenance_from_the_first_event(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    log.write_bytes(b"".join(line + b"\n" for line in RUN.lines()))
    found = capture(log).provenance
    assert found.schema_version == RUN.manifest().schema_version
    assert (found.commit, found.machine_kind, found.config) == (None, None, None)


def test_baseline_survives_its_file_and_is_listed(tmp_path: Path) -> None:
    baseline = capture(RUN.write(tmp_path / "runs"))
    path = tmp_path / "deep" / "baselines" / "b.json"
    write_baseline(baseline, path)

    assert read_baseline(path) == baseline
    assert list_baselines(path.parent) == {path: baseline}
    assert len(path.read_text(encoding="utf-8").splitlines()) > 20


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"{}", "not a baseline"), (b"\xff", "not a baseline"), (b"[" * 100_000, "not a baseline")],
)
def test_other_files_are_no_baselines(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_bytes(content)
    with pytest.raises(UnreadableFileError, match=reason):
        read_baseline(path)


def test_baseline_of_another_format_is_refused_with_both_formats(tmp_path: Path) -> None:
    baseline = msgspec.structs.replace(capture(RUN.write(tmp_path)), format="esper-baseline-0")
    write_baseline(baseline, tmp_path / "b.json")
    with pytest.raises(UnreadableFileError, match=f"'esper-baseline-0'.*{BASELINE_FORMAT!r}"):
        read_baseline(tmp_path / "b.json")


def test_what_cannot_be_captured_is_refused_with_the_way_on(tmp_path: Path) -> None:
    RUN.write(tmp_path / "runs")
    newest = OTHER.write(tmp_path / "runs")
    with pytest.raises(UsageError, match=f"contains 2 runs; name one of them, such as {newest}"):
        capture(tmp_path / "runs")
    write_run(tmp_path / "empty", [])
    with pytest.raises(UnreadableFileError, match="contains no events"):
        capture(tmp_path / "empty")
    with pytest.raises(UnreadableFileError, match="no such directory"):
        list_baselines(tmp_path / "nowhere")
    with pytest.raises(UnreadableFileError, match="cannot read the baseline: No such file"):
        read_baseline(tmp_path / "nowhere.json")


def test_key_sets_are_collected_only_where_a_comparison_needs_them(tmp_path: Path) -> None:
    run, other = RUN.write(tmp_path), OTHER.write(tmp_path)
    write_baseline(capture(run), tmp_path / "b.json")

    def has_keys(left: Path, right: Path) -> list[bool]:
        return [bool(side.baseline.profile.key_sets) for side in read_sides(left, right)]

    assert has_keys(run, run) == [False, False]
    assert has_keys(run, other) == [True, True]
    assert has_keys(tmp_path / "b.json", run) == [True, True]
    assert read_sides(tmp_path / "b.json", run)[0].log is None


def test_runs_that_differ_early_are_read_once_and_get_no_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = RUN.write(tmp_path), OTHER.write(tmp_path)
    profiles = [side.baseline.profile for side in read_sides(run, other)]
    monkeypatch.setattr(baseline_store, "EARLY_EVENTS", 0)
    digested = [side.baseline.profile for side in read_sides(run, other)]

    assert [profile.digest for profile in profiles] == ["", ""]
    assert digested[0].digest != digested[1].digest
    assert profiles == [msgspec.structs.replace(profile, digest="") for profile in digested]


def test_large_logs_are_scanned_in_processes_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [run.write(tmp_path) / "events.jsonl" for run in (RUN, OTHER)]
    here = scan_logs(logs, with_keys=True)
    monkeypatch.setattr(baseline_store, "PARALLEL_BYTES", 1)
    assert scan_logs(logs, with_keys=True) == here


def test_standard_input_cannot_be_both_sides() -> None:
    with pytest.raises(UsageError, match="read only once"):
        scan_logs([STDIN, STDIN], with_keys=False)
