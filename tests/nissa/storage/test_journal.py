"""The durable log: committing, opening after a crash, cutting back."""

import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nissa.making import FailingFiles, block, cut_back, line, read_events, seqs

from esper.leyline.errors import (
    ForeignFileError,
    TelemetryLostError,
    UnreadableFileError,
    UsageError,
)
from esper.nissa.storage import log_recovery
from esper.nissa.storage.blocks import CommitRecord, parse_commit_record
from esper.nissa.storage.files import FileSystem
from esper.nissa.storage.journal import Journal, claim_run, open_journal


def opened(run_dir: Path, files: FileSystem | None = None) -> Journal:
    return open_journal(run_dir / "events.jsonl", files=files or FileSystem(), has_checksums=True)


def write_blocks(run_dir: Path, *sizes: int) -> None:
    journal = opened(run_dir)
    for size in sizes:
        journal.append(block(journal.next_seq, size))
    journal.close()


def checked_seqs(run_dir: Path) -> list[int]:
    """Hold a log against its checksums, read from first principles; return its seqs."""
    data = (run_dir / "events.jsonl").read_bytes()
    position, next_seq = 0, 0
    for text in (run_dir / "events.crc").read_text().splitlines():
        start, end, first_seq, last_seq, crc = text.split(" ")[:5]
        assert (int(start), int(first_seq)) == (position, next_seq)
        assert f"{zlib.crc32(data[int(start) : int(end)]):08x}" == crc
        assert data[int(start) : int(end)].count(b"\n") == int(last_seq) - int(first_seq) + 1
        position, next_seq = int(end), int(last_seq) + 1
    assert position == len(data)
    return seqs(read_events(run_dir / "events.jsonl"))


def test_every_byte_of_a_log_is_covered_by_contiguous_checksums(tmp_path: Path) -> None:
    write_blocks(tmp_path, 3, 1, 4)

    assert checked_seqs(tmp_path) == list(range(8))


def test_sequence_continues_after_reopening(tmp_path: Path) -> None:
    write_blocks(tmp_path, 3)
    write_blocks(tmp_path, 2, 2)

    assert checked_seqs(tmp_path) == list(range(7))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_log_cut_at_any_byte_opens_with_every_whole_event_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    write_blocks(run_dir, 2, 3, 1)
    log, checksums = run_dir / "events.jsonl", run_dir / "events.crc"
    whole = log.read_bytes()
    log_end = data.draw(st.integers(0, len(whole)))
    os.truncate(log, log_end)
    os.truncate(checksums, data.draw(st.integers(0, checksums.stat().st_size)))

    journal = opened(run_dir)
    num_kept = whole[:log_end].count(b"\n")
    torn = log_end - (whole[:log_end].rfind(b"\n") + 1)
    assert journal.next_seq == num_kept
    assert journal.recovery.num_bytes_cut == torn
    journal.append(block(num_kept, 2))
    journal.close()

    assert checked_seqs(run_dir) == list(range(num_kept + 2))


def test_uncovered_line_that_breaks_the_sequence_is_cut_off(tmp_path: Path) -> None:
    write_blocks(tmp_path, 2)
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(line(2) + line(4) + line(5))

    journal = opened(tmp_path)

    assert journal.recovery.num_events_covered == 1
    assert journal.recovery.num_bytes_cut == len(line(4) + line(5))
    journal.close()
    assert checked_seqs(tmp_path) == [0, 1, 2]


def test_damaged_block_is_refused_and_named(tmp_path: Path) -> None:
    write_blocks(tmp_path, 2, 3)
    log = tmp_path / "events.jsonl"
    data = bytearray(log.read_bytes())
    data[-40] ^= 1
    log.write_bytes(data)

    with pytest.raises(UnreadableFileError, match=r"events 2 to 4 .* is damaged"):
        opened(tmp_path)


def test_log_that_is_being_written_cannot_be_opened_twice(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    with pytest.raises(UsageError, match="another process is writing this log"):
        opened(tmp_path)
    journal.close()


def test_log_that_cannot_be_created_names_path_and_errno(tmp_path: Path) -> None:
    with pytest.raises(TelemetryLostError, match=r"events\.jsonl: .*\(errno 2\); no event is on"):
        opened(tmp_path / "missing")


@pytest.mark.parametrize("bytes_left", [0, 1, 100, 700])
def test_append_that_fills_the_disk_leaves_whole_blocks_alone(
    tmp_path: Path, bytes_left: int
) -> None:
    write_blocks(tmp_path, 2)
    files = FailingFiles()
    journal = opened(tmp_path, files)
    files.bytes_left = bytes_left

    with pytest.raises(OSError, match="no space left"):
        journal.append(block(2, 3))

    journal.close()
    assert checked_seqs(tmp_path) == [0, 1]


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def link_elsewhere(path: Path) -> None:
    path.rename(path.with_name("other"))
    path.symlink_to("other")


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"foreign\n")


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("name", ["events.jsonl", "events.crc"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (remove, "was removed while"),
        (replace, "was replaced by another file"),
        (link_elsewhere, "was replaced by another file"),
        (append, "was changed by another process"),
        (shorten, "was changed by another process"),
    ],
)
def test_change_by_somebody_else_is_noticed_at_the_next_append_and_left_alone(
    tmp_path: Path, change: Callable[[Path], None], told: str, name: str
) -> None:
    journal = opened(tmp_path)
    journal.append(block(0, 2))
    change(tmp_path / name)
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    with pytest.raises(TelemetryLostError, match=rf"{name}: {told}.*last event on disk is 1"):
        journal.append(block(2, 1))

    journal.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == left


@given(place=st.integers(0, 10_000), value=st.integers(0, 255))
@settings(max_examples=60, deadline=None)
def test_damaged_byte_of_a_log_without_checksums_takes_no_other_line_with_it(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int
) -> None:
    path = tmp_path_factory.mktemp("run") / "operational.jsonl"
    journal = open_journal(path, files=FileSystem(), has_checksums=False)
    for _ in range(3):
        journal.append(block(journal.next_seq, 2))
    journal.close()
    data = bytearray(path.read_bytes())
    # The last newline is what makes the last line whole.
    data[place % (len(data) - 1)] = value
    path.write_bytes(data)

    journal = open_journal(path, files=FileSystem(), has_checksums=False)
    journal.append(block(journal.next_seq, 1))
    journal.close()

    assert path.read_bytes().startswith(bytes(data))
    assert journal.recovery.num_bytes_cut == 0


@given(line_text=st.binary(max_size=60))
def test_only_what_was_written_reads_as_a_commit_record(line_text: bytes) -> None:
    record = parse_commit_record(line_text)

    assert record is None or record.line() == line_text.rstrip(b"\n") + b"\n"


@pytest.mark.parametrize("last_seq", [-1, 0, 1, 2, 4, 5])
def test_cutting_back_keeps_events_up_to_the_one_named_and_the_rest_beside(
    tmp_path: Path, last_seq: int
) -> None:
    write_blocks(tmp_path, 2, 3, 1)
    whole = (tmp_path / "events.jsonl").read_bytes()

    num_cut = cut_back(tmp_path, last_seq)

    assert num_cut == 5 - last_seq
    assert checked_seqs(tmp_path) == list(range(last_seq + 1))
    redone = tmp_path / "events.redone-1.jsonl"
    kept_beside = redone.read_bytes() if redone.exists() else b""
    assert (tmp_path / "events.jsonl").read_bytes() + kept_beside == whole


def test_events_redone_twice_are_kept_twice(tmp_path: Path) -> None:
    write_blocks(tmp_path, 4)
    cut_back(tmp_path, 2)
    write_blocks(tmp_path, 2)
    cut_back(tmp_path, 2)

    assert seqs(read_events(tmp_path / "events.redone-1.jsonl")) == [3]
    assert seqs(read_events(tmp_path / "events.redone-2.jsonl")) == [3, 4]


def test_torn_line_behind_the_cut_is_not_kept_as_an_event(tmp_path: Path) -> None:
    write_blocks(tmp_path, 3, 2)
    with (tmp_path / "events.jsonl").open("ab") as log:
        log.write(line(5)[:-10])

    assert cut_back(tmp_path, 2) == 2
    assert seqs(read_events(tmp_path / "events.redone-1.jsonl")) == [3, 4]


def test_damage_behind_the_cut_does_not_matter(tmp_path: Path) -> None:
    write_blocks(tmp_path, 2, 3)
    log = tmp_path / "events.jsonl"
    log.write_bytes(log.read_bytes()[:-40] + b"#" * 40)

    cut_back(tmp_path, 1)

    assert checked_seqs(tmp_path) == [0, 1]


def test_cutting_back_to_an_event_that_is_not_there_is_refused(tmp_path: Path) -> None:
    write_blocks(tmp_path, 2)
    with pytest.raises(UnreadableFileError, match="ends with event 1, before the event 2"):
        cut_back(tmp_path, 2)


class CrashingFiles(FileSystem):
    """Stops the process, as it were, before the n-th change."""

    def __init__(self, num_changes: int) -> None:
        self.num_changes = num_changes

    def _count(self) -> None:
        if self.num_changes == 0:
            raise KeyboardInterrupt
        self.num_changes -= 1

    def write(self, descriptor: int, data: bytes) -> None:
        self._count()
        super().write(descriptor, data)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def truncate(self, descriptor: int, num_bytes: int) -> None:
        self._count()
        super().truncate(descriptor, num_bytes)


@pytest.mark.parametrize("num_changes", range(5))
def test_cut_that_crashed_anywhere_can_be_repeated(tmp_path: Path, num_changes: int) -> None:
    write_blocks(tmp_path, 2, 3, 1)
    with pytest.raises(KeyboardInterrupt):
        cut_back(tmp_path, 2, files=CrashingFiles(num_changes))

    cut_back(tmp_path, 2)

    assert checked_seqs(tmp_path) == [0, 1, 2]
    assert [path.name for path in tmp_path.glob("*redone*.jsonl")] == ["events.redone-1.jsonl"]
    assert seqs(read_events(tmp_path / "events.redone-1.jsonl")) == [3, 4, 5]


def test_nearest_known_place_is_at_or_before_the_event(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for _ in range(20):
        journal.append(block(journal.next_seq, 50))
    data = journal.path.read_bytes()
    for seq in (0, 1, 499, 999):
        place, offset = journal.offset_before(seq)
        assert place <= seq
        assert data[:offset].count(b"\n") == place
    assert journal.offset_before(999)[0] > 0
    journal.close()


def test_places_are_the_first_blocks_at_least_64_kib_apart(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    expected, start = [(0, 0)], 0
    for _ in range(100):
        next_block = block(journal.next_seq, 11)
        if start - expected[-1][1] >= 65_536:
            expected.append((next_block.first_seq, start))
        start += len(next_block.data)
        journal.append(next_block)
    assert len(expected) > 2
    seqs_asked = range(journal.next_seq)
    assert sorted({journal.offset_before(seq) for seq in seqs_asked}) == expected
    journal.close()
    journal = opened(tmp_path)
    assert sorted({journal.offset_before(seq) for seq in seqs_asked}) == expected
    journal.close()


def test_place_is_known_from_64_kib_on_and_not_a_byte_earlier(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for first_seq, start in ((1, 65_535), (2, 65_536), (3, 131_071), (4, 131_072)):
        journal.note_indexed(CommitRecord.of(block(first_seq, 1), start))
    assert [journal.offset_before(seq) for seq in (1, 2, 3, 4)] == [
        (0, 0),
        (2, 65_536),
        (2, 65_536),
        (4, 131_072),
    ]
    journal.close()


def test_lost_checksums_of_several_blocks_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_recovery, "COVERED_BYTES", 1)
    write_blocks(tmp_path, 2, 2)
    (tmp_path / "events.crc").unlink()
    journal = opened(tmp_path)
    assert journal.recovery.num_events_covered == 4
    journal.append(block(4, 1))
    journal.close()
    assert checked_seqs(tmp_path) == list(range(5))


def test_other_events_of_the_same_length_are_kept_beside_too(tmp_path: Path) -> None:
    write_blocks(tmp_path, 2, 1)
    foreign = b"x" * len(line(2))
    (tmp_path / "events.redone-1.jsonl").write_bytes(foreign)
    cut_back(tmp_path, 1)
    assert (tmp_path / "events.redone-1.jsonl").read_bytes() == foreign
    assert seqs(read_events(tmp_path / "events.redone-2.jsonl")) == [2]


class TrackingFiles(FailingFiles):
    """Knows which descriptors are open, and what was synced."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open: set[int] = set()
        self.synced: list[str] = []
        self.lock_error: OSError | None = None
        self.truncate_error: OSError | None = None

    def open(self, path: Path, flags: int) -> int:
        descriptor = super().open(path, flags)
        self.is_open.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        self.is_open.remove(descriptor)
        super().close(descriptor)

    def lock(self, descriptor: int) -> None:
        if self.lock_error is not None:
            raise self.lock_error
        super().lock(descriptor)

    def truncate(self, descriptor: int, num_bytes: int) -> None:
        if self.truncate_error is not None:
            raise self.truncate_error
        super().truncate(descriptor, num_bytes)

    def fsync(self, descriptor: int) -> None:
        super().fsync(descriptor)
        self.synced.append("file")

    def fsync_directory(self, path: Path) -> None:
        super().fsync_directory(path)
        self.synced.append("directory")


def test_files_are_synced_once_after_each_change_and_a_new_name_at_once(tmp_path: Path) -> None:
    files = TrackingFiles()
    journal = opened(tmp_path, files)
    assert files.synced == ["directory"]
    journal.sync()
    journal.append(block(0, 2))
    journal.sync()
    journal.sync()
    journal.close()
    opened(tmp_path, files).close()
    assert files.synced == ["directory", "file", "file"]
    cut_back(tmp_path, 0, files=files)
    assert files.synced[-1] == "file"
    assert not files.is_open


@pytest.mark.parametrize("tail", [b"x", line(2)])
def test_what_was_repaired_is_synced_before_the_log_goes_on(tmp_path: Path, tail: bytes) -> None:
    write_blocks(tmp_path, 1, 1)
    with (tmp_path / "events.jsonl").open("ab") as log:
        log.write(tail)
    files = TrackingFiles()
    journal = opened(tmp_path, files)
    assert files.synced == ["file", "file"]
    journal.append(block(journal.next_seq, 1))
    journal.close()
    assert checked_seqs(tmp_path) == list(range(journal.next_seq))


def test_nothing_stays_open_after_a_failure(tmp_path: Path) -> None:
    write_blocks(tmp_path, 2)
    holder, files = opened(tmp_path), TrackingFiles()
    with pytest.raises(UsageError):
        opened(tmp_path, files)
    holder.close()
    files.lock_error = OSError(5, "injected")
    with pytest.raises(TelemetryLostError, match="injected"):
        opened(tmp_path, files)
    files.lock_error, files.truncate_error = None, OSError(5, "injected")
    with pytest.raises(TelemetryLostError, match="injected"):
        opened(tmp_path, files)
    assert not files.is_open


def test_claim_that_a_journal_took_over_closes_nothing(tmp_path: Path) -> None:
    write_blocks(tmp_path, 2)
    claim = claim_run(tmp_path)
    journal = open_journal(claim.path, files=claim.files, has_checksums=True, claim=claim)
    claim.close()
    journal.append(block(2, 1))
    journal.close()
    assert checked_seqs(tmp_path) == [0, 1, 2]


def test_claim_of_a_run_with_foreign_or_missing_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="No such file"):
        claim_run(tmp_path)
    write_blocks(tmp_path, 2)
    (tmp_path / "operational.jsonl").symlink_to("events.crc")
    with pytest.raises(ForeignFileError, match=r"operational\.jsonl"):
        claim_run(tmp_path)


def test_append_after_a_full_disk_between_log_and_checksum_goes_on(tmp_path: Path) -> None:
    files = FailingFiles()
    journal = opened(tmp_path, files)
    files.bytes_left = len(block(0, 3).data) + 5
    with pytest.raises(OSError, match="no space left"):
        journal.append(block(0, 3))
    files.bytes_left = None
    journal.append(block(0, 3))
    journal.close()
    assert checked_seqs(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("last_seq", [2, 4])
def test_damage_before_the_cut_is_refused(tmp_path: Path, last_seq: int) -> None:
    write_blocks(tmp_path, 2, 3)
    log = tmp_path / "events.jsonl"
    data = bytearray(log.read_bytes())
    data[-40] ^= 1
    log.write_bytes(data)
    with pytest.raises(UnreadableFileError, match=r"events 2 to 4 .* is damaged"):
        cut_back(tmp_path, last_seq)
