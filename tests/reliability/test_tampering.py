"""What somebody else does to the files of a run is noticed, and nothing of theirs is touched."""

import random
import shutil
from pathlib import Path

import pytest
from tests.builders.fingerprints import latest_checkpoint
from tools.soak.children import Child, resume_flags
from tools.soak.tampering import (
    DEEDS_BEFORE_RESUME,
    DEEDS_WHILE_WRITING,
    FILES,
    VICTIM,
    Case,
    Deed,
    append,
    contents_of,
    finished_run,
    pipe,
    symlink,
    tamper_before_resume,
    tamper_while_writing,
    truncate,
)

from esper.nissa.analysis.validation import validate_run
from esper.nissa.storage.blocks import Block, CommitRecord, parse_commit_record
from esper.nissa.storage.journal import EVENTS_FILE, OPERATIONAL_FILE
from esper.nissa.storage.run_directory import OWN_DIRECTORIES
from esper.simic.training.checkpoints.checkpoint_store import encode_checkpoint, read_checkpoint


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("deed", [truncate, append, symlink])
def test_log_that_somebody_changes_ends_the_run_with_one_sentence(
    deed: Deed, tmp_path: Path
) -> None:
    tamper_while_writing(tmp_path, Case(EVENTS_FILE, deed))


def test_other_files_of_a_run_are_watched_too(tmp_path: Path) -> None:
    deed = random.Random(14).choice(DEEDS_WHILE_WRITING)
    for name in FILES[1:]:
        tamper_while_writing(tmp_path, Case(name, deed))


@pytest.mark.parametrize(
    ("name", "deed"),
    [(EVENTS_FILE, symlink), *zip(FILES, reversed(DEEDS_BEFORE_RESUME), strict=True)],
)
def test_link_in_a_run_directory_is_refused_by_resume(
    name: str, deed: Deed, whole: Path, tmp_path: Path
) -> None:
    tamper_before_resume(tmp_path, whole, Case(name, deed))


def copy_of(whole: Path, folder: Path) -> Path:
    shutil.copytree(whole.parent, folder / "runs")
    return folder / "runs" / whole.name


def resume(folder: Path, *more: str) -> tuple[int, str]:
    ended = Child([*resume_flags(folder / "runs"), *more], folder / "output.txt").wait()
    assert "Traceback" not in ended.output
    return ended.code, ended.output


@pytest.mark.parametrize("name", OWN_DIRECTORIES)
def test_directory_of_a_run_that_is_a_link_is_refused(
    name: str, whole: Path, tmp_path: Path
) -> None:
    run_dir = copy_of(whole, tmp_path)
    elsewhere = tmp_path / "elsewhere"
    if (run_dir / name).exists():
        (run_dir / name).rename(elsewhere)
    else:
        elsewhere.mkdir()
        (elsewhere / "jsonl.json").write_text('{"next_seq":999999}')
    (run_dir / name).symlink_to(elsewhere)
    before = contents_of(run_dir), contents_of(elsewhere)
    code, output = resume(tmp_path, "--rounds", "4")
    assert (code, output.count("\n")) == (2, 1)
    assert f"{name}: is a symbolic link" in output
    assert (contents_of(run_dir), contents_of(tmp_path / "elsewhere")) == before


def test_temporary_name_that_is_a_link_is_not_written_through(whole: Path, tmp_path: Path) -> None:
    run_dir = copy_of(whole, tmp_path)
    victim = tmp_path / "victim"
    victim.write_bytes(VICTIM)
    for name in (
        "run.json.tmp",
        "events.crc.tmp",
        "grown.pt.tmp",
        "checkpoints/round-000004.pt.tmp",
    ):
        (run_dir / name).symlink_to(victim)
    assert resume(tmp_path, "--rounds", "5")[0] == 0
    assert victim.read_bytes() == VICTIM


def test_damaged_byte_of_the_operational_log_takes_nothing_with_it(
    whole: Path, tmp_path: Path
) -> None:
    run_dir = copy_of(whole, tmp_path)
    assert resume(tmp_path)[0] == 0  # a resume is an operational event
    assert resume(tmp_path)[0] == 0
    log = run_dir / OPERATIONAL_FILE
    data = bytearray(log.read_bytes())
    assert data.count(b"\n") >= 2
    data[3] ^= 1
    log.write_bytes(data)

    assert resume(tmp_path)[0] == 0

    assert log.read_bytes().startswith(bytes(data))
    found = validate_run(run_dir)
    assert [(finding.file, finding.line) for finding in found.findings][:1] == [(log.name, 1)]


def test_log_that_lost_a_round_does_not_fit_its_checkpoint(whole: Path, tmp_path: Path) -> None:
    run_dir = copy_of(whole, tmp_path)
    checkpoint = latest_checkpoint(run_dir)
    assert checkpoint is not None
    contents = read_checkpoint(checkpoint)
    del contents["version"]
    for log_seq, told in ((5, "is within round"), (0, "is after 0 rounds")):
        contents["header"]["log_seq"] = log_seq
        checkpoint.write_bytes(encode_checkpoint(contents))
        before = contents_of(run_dir)
        code, output = resume(tmp_path)
        assert (code, output.count("\n")) == (2, 1)
        assert told in output or "is after" in output
        assert contents_of(run_dir) == before


def test_task_that_changed_under_its_name_is_refused_with_the_difference(
    whole: Path, tmp_path: Path
) -> None:
    run_dir = copy_of(whole, tmp_path)
    checkpoint = latest_checkpoint(run_dir)
    assert checkpoint is not None
    contents = read_checkpoint(checkpoint)
    del contents["version"]
    assert contents["header"]["task"]["host"]["num_blocks"] == 2
    contents["header"]["task"]["host"]["num_blocks"] = 3
    checkpoint.write_bytes(encode_checkpoint(contents))
    code, output = resume(tmp_path)
    assert (code, output.count("\n")) == (2, 1)
    assert "host.num_blocks of task 'tiny' was 3 and is now 2" in output


def test_checkpoints_are_ordered_by_number_and_foreign_names_are_left_alone(
    whole: Path, tmp_path: Path
) -> None:
    run_dir = copy_of(whole, tmp_path)
    foreign = {}
    for name in ("round-999.pt", "round-abc.pt", "round-0000004.pt", "round-+00004.pt"):
        path = run_dir / "checkpoints" / name
        path.write_bytes(name.encode())
        foreign[path] = name.encode()
    (run_dir / "checkpoints" / "round-999999.pt").mkdir()
    assert resume(tmp_path, "--rounds", "8")[0] == 0
    for path, data in foreign.items():
        assert path.read_bytes() == data


def test_appending_to_a_finished_log_is_cut_off_by_resume(whole: Path, tmp_path: Path) -> None:
    run_dir = copy_of(whole, tmp_path)
    append(run_dir / EVENTS_FILE, run_dir)
    assert resume(tmp_path, "--rounds", "4")[0] == 0
    assert validate_run(run_dir).is_valid


def rewrite_lines(run_dir: Path, old: bytes, new: bytes) -> None:
    """Change lines of a log as somebody would who computes its checksums again."""
    log, checksums = run_dir / EVENTS_FILE, run_dir / "events.crc"
    data, written, lines = log.read_bytes(), b"", []
    for text in checksums.read_bytes().splitlines(keepends=True):
        record = parse_commit_record(text)
        assert record is not None
        changed = data[record.start : record.end].replace(old, new)
        block = Block(record.first_seq, record.num_events, changed)
        lines.append(CommitRecord.of(block, len(written)).line())
        written += changed
    log.write_bytes(written)
    checksums.write_bytes(b"".join(lines))


END_OF_ROUND = b'"event_type":"BATCH_EPOCH_COMPLETED"'


@pytest.mark.parametrize(
    "new", [b'"event_type":1', b"#", b'"event_type":"\xff"', b'"round":"x"'], ids=str
)
def test_log_of_valid_checksums_and_no_events_is_refused(
    new: bytes, whole: Path, tmp_path: Path
) -> None:
    run_dir = copy_of(whole, tmp_path)
    rewrite_lines(run_dir, END_OF_ROUND, new)
    before = contents_of(run_dir)
    code, output = resume(tmp_path)
    assert (code, output.count("\n")) == (2, 1), output
    assert "contains a line that is no event" in output
    assert contents_of(run_dir) == before


def test_manifest_that_is_a_pipe_is_not_waited_for(whole: Path, tmp_path: Path) -> None:
    run_dir = copy_of(whole, tmp_path)
    pipe(run_dir / "run.json", tmp_path)
    code, output = resume(tmp_path)
    assert (code, output.count("\n")) == (2, 1), output


def test_directory_in_the_way_of_a_temporary_file_is_named(whole: Path, tmp_path: Path) -> None:
    run_dir = copy_of(whole, tmp_path)
    (run_dir / "events.crc.tmp").mkdir()
    code, output = resume(tmp_path, "--rounds", "4")
    assert (code, output.count("\n")) == (2, 1), output
    assert "events.crc.tmp: the run cannot be rewound: Is a directory" in output
