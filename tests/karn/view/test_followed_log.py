"""Following a log that another process writes: whole lines only, and a sentence for a cut log."""

from pathlib import Path

import anyio
import pytest
from tests.nissa.making import RUN_ID, line

from esper.karn.view import followed_log
from esper.karn.view.followed_log import FollowedLog, follow, open_source
from esper.leyline.errors import UnreadableFileError


def test_only_whole_lines_are_returned_and_the_rest_follows(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    first, second = line(0), line(1)
    path.write_bytes(first + second[:10])
    log = FollowedLog(path)

    block = log.read_more()
    assert block is not None
    assert (block.first_seq, block.data) == (0, first)
    assert log.read_more() is None

    with path.open("ab") as file:
        file.write(second[10:])
    block = log.read_more()
    assert block is not None
    assert (block.first_seq, block.data) == (1, second)
    assert (log.next_seq, log.num_bytes) == (2, len(first + second))


def test_blocks_of_any_chunk_size_join_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line(seq) for seq in range(20)]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(lines))
    # Shorter than a line, about a line, and several lines.
    for num_bytes in (7, len(lines[0]) + 1, 3 * len(lines[0])):
        monkeypatch.setattr(followed_log, "CHUNK_BYTES", num_bytes)
        log = FollowedLog(path)
        blocks = list(iter(log.read_more, None))

        assert b"".join(block.data for block in blocks) == b"".join(lines)
        assert [block.first_seq for block in blocks[1:]] == [
            block.next_seq for block in blocks[:-1]
        ]
        for seq in range(20):
            start_seq, offset = log.offset_before(seq)
            assert start_seq <= seq
            assert offset == sum(map(len, lines[:start_seq]))


def test_log_that_is_not_there_yet_has_no_lines(tmp_path: Path) -> None:
    assert FollowedLog(tmp_path / "events.jsonl").read_more() is None


def test_truncated_log_is_refused_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(line(0) + line(1))
    log = FollowedLog(path)
    log.read_more()
    path.write_bytes(line(0))

    with pytest.raises(UnreadableFileError, match="truncated by a resumed run"):
        log.read_more()


def test_source_has_the_run_id_of_the_first_event(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(line(0))
    assert open_source(tmp_path).run_id == RUN_ID


@pytest.mark.parametrize(("content", "run_id"), [(b"", ""), (line(0)[:-1], "")])
def test_log_without_a_whole_first_line_has_no_run_id_yet(
    tmp_path: Path, content: bytes, run_id: str
) -> None:
    (tmp_path / "events.jsonl").write_bytes(content)
    assert open_source(tmp_path).run_id == run_id


def test_directory_without_a_log_and_foreign_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match=r"no events\.jsonl here"):
        open_source(tmp_path)
    (tmp_path / "events.jsonl").write_bytes(b"hello\n")
    with pytest.raises(UnreadableFileError, match="not the log of a run"):
        open_source(tmp_path)


@pytest.mark.anyio
async def test_appended_lines_are_published_in_order(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(line(0))
    source = open_source(tmp_path)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow, source)
            for seq in (1, 2):
                with path.open("ab") as file:
                    file.write(line(seq))
                await source.feed.wait_for(seq)
            tasks.cancel_scope.cancel()
    assert source.feed.next_seq == 3
