"""Downloads: whole and checked, or not there at all."""

import fcntl
import hashlib
from pathlib import Path

import pytest
from tests.runtime.file_server import ServedFile, serving

from esper.leyline.errors import DownloadError, ExitCode, InterruptedRunError
from esper.runtime.downloads import Checksum, RemoteFile, download
from esper.runtime.sources import CancelCheck, ProgressCallback, never_cancelled

CONTENT = bytes(range(256)) * 2000


@pytest.fixture(autouse=True)
def without_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def ignore(name: str, num_bytes: int, total: int | None) -> None:
    pass


def remote(file: ServedFile, *, content: bytes = CONTENT, max_bytes: int = 1 << 20) -> RemoteFile:
    checksum = Checksum(algorithm="sha256", hexdigest=hashlib.sha256(content).hexdigest())
    return RemoteFile(url=file.url, checksum=checksum, max_bytes=max_bytes)


def fetch(
    wanted: RemoteFile,
    target: Path,
    *,
    on_progress: ProgressCallback = ignore,
    check_cancelled: CancelCheck = never_cancelled,
    limit_s: float = 5.0,
) -> None:
    download(
        wanted, target, on_progress=on_progress, check_cancelled=check_cancelled, limit_s=limit_s
    )


def part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def test_file_arrives_whole_and_progress_counts_to_its_end(tmp_path: Path) -> None:
    target, seen = tmp_path / "new" / "file", []
    with serving(ServedFile(CONTENT)) as file:
        fetch(remote(file), target, on_progress=lambda *reported: seen.append(reported))

    assert target.read_bytes() == CONTENT
    assert seen[-1] == ("the-file.bin", len(CONTENT), len(CONTENT))
    assert [reported[1] for reported in seen] == sorted(reported[1] for reported in seen)
    assert list(target.parent.iterdir()) == [target]


def test_download_that_breaks_off_goes_on_where_it_stopped(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with serving(ServedFile(CONTENT, break_after=[100_000, 200_000])) as file:
        fetch(remote(file), target)

    assert target.read_bytes() == CONTENT
    assert file.ranges == [None, "bytes=100000-", "bytes=300000-"]


def test_download_begins_anew_where_the_server_knows_no_ranges(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with serving(ServedFile(CONTENT, supports_range=False, break_after=[100_000])) as file:
        fetch(remote(file), target)

    assert target.read_bytes() == CONTENT


def test_download_that_stalls_goes_on_with_a_new_connection(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with serving(ServedFile(CONTENT, break_after=[100_000], stalls=True)) as file:
        fetch(remote(file), target, limit_s=0.2)

    assert target.read_bytes() == CONTENT
    assert len(file.ranges) == 2


def test_download_that_never_gets_further_fails_and_names_the_address(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with (
        serving(ServedFile(CONTENT, break_after=[1000, 0, 0, 0])) as file,
        pytest.raises(DownloadError, match=r"the connection was closed 511000 bytes") as caught,
    ):
        fetch(remote(file), target)

    assert caught.value.exit_code is ExitCode.USAGE
    assert not target.exists()
    assert part_of(target).read_bytes() == CONTENT[:1000]


def test_wrong_content_is_thrown_away(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with serving(ServedFile(CONTENT)) as file, pytest.raises(DownloadError, match="sha256"):
        fetch(remote(file, content=b"something else"), target)

    assert not target.exists()
    assert part_of(target).read_bytes() == b""


def test_damaged_part_of_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "file"
    part_of(target).write_bytes(b"x" * 1000)
    with serving(ServedFile(CONTENT)) as file:
        fetch(remote(file), target)

    assert target.read_bytes() == CONTENT
    assert file.ranges == ["bytes=1000-", None]


def test_part_that_is_complete_already_is_only_checked(tmp_path: Path) -> None:
    target = tmp_path / "file"
    part_of(target).write_bytes(CONTENT)
    with serving(ServedFile(CONTENT)) as file:
        fetch(remote(file), target)

    assert target.read_bytes() == CONTENT


def test_more_bytes_than_allowed_are_refused(tmp_path: Path) -> None:
    with serving(ServedFile(CONTENT)) as file, pytest.raises(DownloadError, match="larger than"):
        fetch(remote(file, max_bytes=1000), tmp_path / "file")

    assert part_of(tmp_path / "file").read_bytes() == b""


def test_refusal_of_the_server_is_reported(tmp_path: Path) -> None:
    with (
        serving(ServedFile(CONTENT, status=404)) as file,
        pytest.raises(DownloadError, match="answered 404"),
    ):
        fetch(remote(file), tmp_path / "file")

    assert file.ranges == [None]


def test_server_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with serving(ServedFile(CONTENT)) as file:
        gone = remote(file)

    with pytest.raises(DownloadError, match="cannot be reached"):
        fetch(gone, tmp_path / "file")


def test_cancelled_download_keeps_what_has_arrived(tmp_path: Path) -> None:
    target = tmp_path / "file"
    arrived: list[int] = []

    def cancel_in_the_middle() -> None:
        if arrived and arrived[-1] > 100_000:
            raise InterruptedRunError("asked to stop")

    with serving(ServedFile(CONTENT)) as file:
        with pytest.raises(InterruptedRunError):
            fetch(
                remote(file),
                target,
                on_progress=lambda name, num_bytes, total: arrived.append(num_bytes),
                check_cancelled=cancel_in_the_middle,
            )
        assert part_of(target).read_bytes() == CONTENT[: arrived[-1]]
        fetch(remote(file), target)

    assert target.read_bytes() == CONTENT
    assert file.ranges == [None, f"bytes={arrived[-1]}-"]


def test_file_that_another_process_fetches_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with serving(ServedFile(CONTENT)) as file, part_of(target).open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="another process"):
            fetch(remote(file), target)

    assert file.ranges == []


def test_directory_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"a file")
    with (
        serving(ServedFile(CONTENT)) as file,
        pytest.raises(DownloadError, match=r"cannot be written to .*taken"),
    ):
        fetch(remote(file), tmp_path / "taken" / "file")
