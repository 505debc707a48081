"""A file is followed line by line, through growth, truncation and replacement."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from esper.leyline.errors import UnreadableFileError
from esper.nissa.reading.tailing import LineFilter, follow_file


class Stop(Exception):
    """Ends a tail that would go on for ever."""


def script(*actions: Callable[[], object]) -> Callable[[float], None]:
    """Make a wait that does one thing to the file at a time instead of sleeping."""
    steps: Iterator[Callable[[], object]] = iter(actions)

    def wait(_: float) -> None:
        try:
            next(steps)()
        except StopIteration:
            raise Stop from None

    return wait


def followed(path: Path, *actions: Callable[[], object]) -> list[bytes]:
    lines: list[bytes] = []
    with pytest.raises(Stop):
        lines.extend(follow_file(path, is_following=True, wait=script(*actions)))
    return lines


def append(path: Path, text: str) -> Callable[[], object]:
    def act() -> None:
        with path.open("a") as stream:
            stream.write(text)

    return act


def test_file_is_read_once_without_follow(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a\n\nb")

    assert list(follow_file(path, is_following=False)) == [b"a", b"b"]


def test_growth_is_followed_and_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a\nb")

    lines = followed(path, append(path, ""), append(path, "c\nd\n"), append(path, "e\n"))

    assert lines == [b"a", b"bc", b"d", b"e"]


def test_replaced_file_is_read_to_its_end_and_then_from_the_new_start(tmp_path: Path) -> None:
    path, new = tmp_path / "log", tmp_path / "new"
    path.write_text("a\n")
    new.write_text("x\ny\n")

    def replace() -> None:
        append(path, "last\n")()
        new.replace(path)

    assert followed(path, replace, append(path, "z\n")) == [b"a", b"last", b"x", b"y", b"z"]


def test_file_that_vanishes_for_a_while_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a\n")

    def move_away() -> None:
        path.rename(tmp_path / "old")

    lines = followed(path, move_away, append(path, "b\n"), append(path, "c\n"))

    assert lines == [b"a", b"b", b"c"]


def test_file_that_was_cut_back_is_read_again_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("aaaa\nbbbb\n")

    assert followed(path, lambda: path.write_text("c\n")) == [b"aaaa", b"bbbb", b"c"]


def test_compressed_file_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\x1f\x8b\x08")

    with pytest.raises(UnreadableFileError, match="cannot be followed"):
        next(follow_file(path, is_following=True))


@pytest.mark.parametrize(
    ("wanted", "seqs"),
    [
        (LineFilter(), [0, 1, 2, 3]),
        (LineFilter(types=frozenset({"A"})), [0, 2]),
        (LineFilter(env_ids=frozenset({1})), [1, 2, 3]),
        (LineFilter(since=2), [2, 3]),
        (LineFilter(types=frozenset({"A"}), env_ids=frozenset({1}), since=1), [2]),
    ],
)
def test_filter_takes_types_envs_and_seqs(wanted: LineFilter, seqs: list[int]) -> None:
    lines = {
        0: b'{"event_type":"A","seq":0,"env_id":0}',
        1: b'{"event_type":"B","seq":1,"env_id":1}',
        2: b'{"event_type":"A","seq":2,"env_id":1}',
        3: b'{"event_type":"B","seq":3,"env_id":null}',
    }

    assert [seq for seq, line in lines.items() if wanted.accepts(line)] == seqs
    assert wanted.accepts(b"not an event")
