"""The writer: what it commits, in which blocks and order, and how it fails."""

import errno
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.nissa.making import RUN_ID, FailingFiles, checkpoint_loaded, pruned, read_events, seqs

from esper.leyline.config import FsyncPolicy
from esper.leyline.telemetry import Channel, Draft
from esper.nissa.bus.feed import LiveFeed
from esper.nissa.bus.inbox import Inbox
from esper.nissa.bus.writer import MAX_BLOCK_EVENTS, Writer
from esper.nissa.storage.files import FileSystem
from esper.nissa.storage.journal import open_journal

WAIT_S = 20.0


@dataclass(frozen=True)
class Rig:
    """A writer that has not started, and what it stands between."""

    inbox: Inbox
    feed: LiveFeed
    writer: Writer
    logs: dict[Channel, Path]

    def write_all(self) -> None:
        self.inbox.close()
        self.writer.start()
        assert self.writer.join(WAIT_S)


def rig_in(run_dir: Path, files: FileSystem | None = None) -> Rig:
    logs = {channel: run_dir / f"{channel.name.lower()}.jsonl" for channel in Channel}
    inbox = Inbox(max_bytes=10**7, next_seqs=dict.fromkeys(Channel, 0))
    feed = LiveFeed(next_seq=0, max_bytes=10**7)
    writer = Writer(
        inbox=inbox,
        journals={
            channel: open_journal(path, files=files or FileSystem(), has_checksums=True)
            for channel, path in logs.items()
        },
        feed=feed,
        run_id=RUN_ID,
        group="g",
        fsync=FsyncPolicy.ROUND,
        fsync_interval_s=1.0,
    )
    return Rig(inbox, feed, writer, logs)


def test_queued_drafts_are_in_the_log_and_in_the_feed_byte_for_byte(tmp_path: Path) -> None:
    rig = rig_in(tmp_path)
    num_events = 2 * MAX_BLOCK_EVENTS + 3
    for number in range(num_events):
        rig.inbox.put(Draft(pruned(age_steps=number)))

    rig.write_all()

    events = read_events(rig.logs[Channel.RUN])
    assert seqs(events) == list(range(num_events))
    assert [event.data for event in events] == [pruned(age_steps=it) for it in range(num_events)]
    page = rig.feed.read(0, 10**8)
    assert page is not None
    assert page.data == rig.logs[Channel.RUN].read_bytes()
    assert rig.inbox.num_committed == rig.inbox.num_synced == num_events
    assert rig.feed.is_closed
    assert rig.feed.is_complete


def test_block_holds_at_most_its_number_of_events(tmp_path: Path) -> None:
    rig = rig_in(tmp_path)
    for _ in range(MAX_BLOCK_EVENTS + 1):
        rig.inbox.put(Draft(pruned()))
    rig.write_all()
    page = rig.feed.read(0, 1)
    assert page is not None
    assert page.num_events == MAX_BLOCK_EVENTS


def test_operational_events_are_written_but_not_fed(tmp_path: Path) -> None:
    rig = rig_in(tmp_path)
    rig.inbox.put(Draft(checkpoint_loaded()))
    rig.write_all()
    assert seqs(read_events(rig.logs[Channel.OPERATIONAL])) == [0]
    assert rig.feed.next_seq == 0


def test_size_of_what_was_encoded_becomes_the_next_guess(tmp_path: Path) -> None:
    rig = rig_in(tmp_path)
    rig.inbox.put(Draft(pruned()))
    [entry] = rig.inbox.take()[0][Channel.RUN]
    before = entry.route.mean_bytes
    rig.inbox.put(Draft(pruned()))
    rig.write_all()
    size = rig.logs[Channel.RUN].stat().st_size
    assert abs(entry.route.mean_bytes - size) < abs(before - size)


def test_failing_disk_ends_the_feed_as_incomplete_and_frees_producers(tmp_path: Path) -> None:
    files = FailingFiles()
    rig = rig_in(tmp_path, files)
    files.write_error = errno.ENOSPC
    rig.inbox.put(Draft(pruned()))

    rig.write_all()

    assert rig.writer.failure is not None
    assert rig.writer.failure.exit_code == 3
    assert (rig.inbox.num_committed, rig.inbox.num_lost) == (0, 1)
    assert rig.feed.next_seq == 0, "what is not in the log is not in the feed"
    assert rig.feed.is_closed
    assert not rig.feed.is_complete


class UnclosableFiles(FileSystem):
    """Files whose closing fails, as on a full network disk; they are closed all the same."""

    def __init__(self) -> None:
        self.closed: list[int] = []

    def close(self, descriptor: int) -> None:
        self.closed.append(descriptor)
        super().close(descriptor)
        raise OSError(errno.EDQUOT, "disk quota exceeded")


def test_files_that_fail_to_close_are_closed_once_and_the_failure_is_named(tmp_path: Path) -> None:
    files = UnclosableFiles()
    rig = rig_in(tmp_path, files)

    rig.write_all()

    assert rig.writer.failure is not None
    assert "disk quota exceeded" in str(rig.writer.failure)
    # A descriptor that is closed twice may be somebody else's by then.
    assert len(files.closed) == len(set(files.closed)) == 2 * len(rig.logs)
    for path in rig.logs.values():
        open_journal(path, files=FileSystem(), has_checksums=True).close()


@pytest.mark.parametrize("num_before", [0, 3])
def test_events_before_one_that_cannot_be_encoded_are_written(
    tmp_path: Path, num_before: int
) -> None:
    rig = rig_in(tmp_path)
    for _ in range(num_before):
        rig.inbox.put(Draft(pruned()))
    rig.inbox.put(Draft(pruned("\ud800")))
    rig.inbox.put(Draft(pruned()))

    rig.write_all()

    assert f"event {num_before} cannot be encoded" in str(rig.writer.failure)
    assert seqs(read_events(rig.logs[Channel.RUN])) == list(range(num_before))
