"""Which logs are being written."""

import fcntl
from pathlib import Path

import pytest

from esper.nissa.storage import log_locks
from esper.nissa.storage.log_locks import is_locked, locked_files


def test_file_is_locked_exactly_while_somebody_holds_it(tmp_path: Path) -> None:
    path, other = tmp_path / "log", tmp_path / "other"
    other.touch()
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        locked = locked_files()
        assert locked is not None
        assert is_locked(path, locked)
        assert not is_locked(other, locked)
    locked = locked_files()
    assert locked is not None
    assert not is_locked(path, locked)


def test_strange_rows_are_skipped_and_a_missing_list_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "locks"
    monkeypatch.setattr(log_locks, "_LOCKS", rows)
    assert locked_files() is None
    rows.write_text(
        "1: FLOCK  ADVISORY  WRITE 5 fe:00:77 0 EOF\n"
        "1: -> FLOCK  ADVISORY  WRITE 6 fe:00:78 0 EOF\n"
        "2: POSIX  ADVISORY  WRITE 5 fe:00:79 0 EOF\n3: FLOCK  ADVISORY  WRITE 5 what 0 EOF\n\n"
    )
    assert locked_files() == {(254, 0, 77)}
