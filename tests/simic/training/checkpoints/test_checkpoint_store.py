"""Checkpoints: which are kept, what a failing disk leaves, and what is never read."""

import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.fingerprints import digest_of
from tests.simic.training.disks import DiskWithoutLinks, FailingDisk

from esper.leyline.errors import ExitCode, RunFailedError, UnreadableFileError
from esper.simic.training.checkpoints.checkpoint_store import (
    CHECKPOINT_VERSION,
    CheckpointStore,
    encode_checkpoint,
    read_checkpoint,
)


def contents_of(number: int) -> dict[str, object]:
    return {"number": number, "tensor": torch.full((50,), float(number))}


def numbers_in(directory: Path) -> dict[str, int]:
    return {path.name: read_checkpoint(path)["number"] for path in directory.glob("*.pt")}


def test_store_keeps_the_last_three_and_the_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for number in range(6):
        store.save(encode_checkpoint(contents_of(number)), number, is_best=number == 1)

    assert numbers_in(tmp_path) == {
        "best.pt": 1,
        "round-000003.pt": 3,
        "round-000004.pt": 4,
        "round-000005.pt": 5,
    }
    assert store.latest() == tmp_path / "round-000005.pt"


def test_best_round_is_on_the_disk_once(tmp_path: Path) -> None:
    saved = CheckpointStore(tmp_path).save(encode_checkpoint(contents_of(1)), 1, is_best=True)

    assert (tmp_path / "best.pt").samefile(saved.path)


def test_disk_without_links_keeps_the_best_round_as_well(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, files=DiskWithoutLinks())
    for number in range(2):
        store.save(encode_checkpoint(contents_of(number)), number, is_best=number == 0)

    assert numbers_in(tmp_path) == {"best.pt": 0, "round-000000.pt": 0, "round-000001.pt": 1}
    assert list(tmp_path.glob("*.tmp")) == []


def test_link_that_a_crash_left_behind_is_never_written_through(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    saved = store.save(encode_checkpoint(contents_of(1)), 1, is_best=False)
    (tmp_path / "best.pt.tmp").hardlink_to(saved.path)  # killed before the renaming

    store.save_best(encode_checkpoint(contents_of(2)))

    assert numbers_in(tmp_path) == {"best.pt": 2, "round-000001.pt": 1}


def test_store_without_a_checkpoint_has_no_latest(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path).latest() is None


def test_last_checkpoint_is_written_to_the_save_path_as_well(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    store = CheckpointStore(directory, copy_to=tmp_path / "copy.pt")
    for number in range(2):
        store.save(encode_checkpoint(contents_of(number)), number, is_best=False)

    assert read_checkpoint(tmp_path / "copy.pt")["number"] == 1


def test_full_disk_at_any_moment_leaves_whole_checkpoints_and_says_so(tmp_path: Path) -> None:
    disk = FailingDisk()
    CheckpointStore(tmp_path, files=disk).save(encode_checkpoint(contents_of(0)), 0, is_best=True)
    num_calls = disk.num_calls

    for fail_at in range(1, num_calls + 1):
        store = CheckpointStore(tmp_path, files=FailingDisk(fail_at))
        with pytest.raises(RunFailedError, match="No space left on device") as caught:
            store.save(encode_checkpoint(contents_of(fail_at)), fail_at, is_best=True)

        found = numbers_in(tmp_path)
        assert set(found.values()) <= set(range(fail_at + 1))
        latest = store.latest()
        assert latest is not None
        assert read_checkpoint(latest)["number"] == int(latest.stem.removeprefix("round-"))
        assert caught.value.exit_code is ExitCode.FAILED
        assert list(tmp_path.glob("*.tmp")) == []


def test_checkpoint_survives_the_way_to_the_disk_bit_by_bit(tmp_path: Path) -> None:
    contents = {
        "weights": {"a": torch.randn(3, 4), "b": torch.arange(5)},
        "numbers": [1, 2.5, float("inf"), None, "text", True],
    }
    saved = CheckpointStore(tmp_path).save(encode_checkpoint(contents), 0, is_best=False)

    read = read_checkpoint(saved.path)

    assert read.pop("version") == CHECKPOINT_VERSION
    assert digest_of(read) == digest_of(contents)
    assert saved.num_bytes == saved.path.stat().st_size


def test_encoded_checkpoint_does_not_follow_later_changes(tmp_path: Path) -> None:
    tensor = torch.zeros(3)
    data = encode_checkpoint({"tensor": tensor})
    tensor += 1

    saved = CheckpointStore(tmp_path).save(data, 0, is_best=False)

    assert read_checkpoint(saved.path)["tensor"].tolist() == [0.0, 0.0, 0.0]


def test_later_checkpoints_are_set_aside_and_can_be_put_back(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for number in range(1, 4):
        store.save(encode_checkpoint(contents_of(number)), number, is_best=False)
    before = numbers_in(tmp_path)

    later = store.set_aside(1)

    assert store.latest() == tmp_path / "round-000001.pt"
    assert set(numbers_in(tmp_path).values()) == {1, 2, 3}
    store.put_back(later)
    assert numbers_in(tmp_path) == before


def test_adopted_copy_becomes_the_latest_of_its_run(tmp_path: Path) -> None:
    copy = tmp_path / "copy.pt"
    copy.write_bytes(encode_checkpoint(contents_of(4)))
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    store = CheckpointStore(directory)

    store.adopt(copy, 4)

    assert numbers_in(directory) == {"round-000004.pt": 4}


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('a checkpoint ran code')",))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a checkpoint",
        pickle.dumps({"version": 1}),
        pickle.dumps(Bomb()),
        encode_checkpoint(contents_of(1))[:500],
        b"\x00" * 4096,
    ],
    ids=["empty", "text", "pickle", "bomb", "truncated", "zeros"],
)
def test_file_that_is_no_checkpoint_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.pt"
    path.write_bytes(data)

    with pytest.raises(UnreadableFileError, match=r"file\.pt: not a checkpoint") as caught:
        read_checkpoint(path)

    assert caught.value.exit_code is ExitCode.USAGE


def test_missing_file_and_directory_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="No such file"):
        read_checkpoint(tmp_path / "missing.pt")
    with pytest.raises(UnreadableFileError, match="not a regular file"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize("stored", [[1, 2], {"agent": {}}, torch.zeros(3)])
def test_file_of_another_program_is_refused(stored: object, tmp_path: Path) -> None:
    path = tmp_path / "foreign.pt"
    torch.save(stored, path)

    with pytest.raises(UnreadableFileError, match="not a checkpoint of Esper"):
        read_checkpoint(path)


def test_checkpoint_of_another_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = tmp_path / "future.pt"
    torch.save({"version": 99}, path)

    with pytest.raises(
        UnreadableFileError,
        match=r"another release of Esper \(version 99\), and this one reads version 2; train",
    ):
        read_checkpoint(path)


WHOLE = encode_checkpoint(contents_of(7))


@settings(max_examples=60)
@given(place=st.integers(0, len(WHOLE) - 1), bit=st.integers(0, 7))
def test_flipped_bit_is_refused_or_harmless(
    place: int, bit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(WHOLE)
    data[place] ^= 1 << bit
    path = tmp_path_factory.getbasetemp() / "flipped.pt"
    path.write_bytes(data)

    try:
        read = read_checkpoint(path)
    except UnreadableFileError:
        return

    assert read["number"] == 7
    assert torch.equal(read["tensor"], torch.full((50,), 7.0))


@settings(max_examples=40)
@given(length=st.integers(0, len(WHOLE) - 1))
def test_truncated_checkpoint_is_refused(
    length: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "truncated.pt"
    path.write_bytes(WHOLE[:length])

    with pytest.raises(UnreadableFileError):
        read_checkpoint(path)
