"""Readers: exact about what they accept, bounded in what they unpack."""

import gzip
import io
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from esper.leyline.errors import UnreadableFileError
from esper.runtime.formats import cifar_records, read_archive, read_bounded, read_idx

PIXELS = bytes(range(24))


def idx(shape: tuple[int, ...] = (2, 3, 4), data: bytes = PIXELS, kind: int = 8) -> bytes:
    return struct.pack(f">{len(shape) + 1}I", kind << 8 | len(shape), *shape) + data


def read_images(path: Path) -> torch.Tensor:
    return read_idx(path, item_shape=(3, 4), max_items=10)


@pytest.mark.parametrize("name", ["images", "images.gz"])
def test_idx_file_gives_its_items_plain_or_gzipped(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(idx()) if name.endswith(".gz") else idx())

    assert torch.equal(read_images(path), torch.arange(24, dtype=torch.uint8).view(2, 3, 4))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "truncated within its header"),
        (idx()[:10], "truncated within its header"),
        (idx()[:-1], "fewer than the 2 items"),
        (idx() + b"x", "more than the 2 items"),
        (idx((2, 4, 3)), r"shape \(4, 3\), not \(3, 4\)"),
        (idx(kind=13), "not a 3-dimensional IDX file"),
        (idx((24,)), "not a 3-dimensional IDX file"),
        (idx((0, 3, 4), b""), "declares 0 items"),
        (idx((11, 3, 4)), "declares 11 items"),
        (idx((2**32 - 1, 3, 4)), "declares 4294967295 items"),
    ],
)
def test_idx_file_that_is_not_as_announced_is_refused(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)

    with pytest.raises(UnreadableFileError, match=reason) as caught:
        read_images(path)

    assert str(caught.value).startswith(str(path))


def damaged(whole: bytes) -> Iterator[bytes]:
    """Yield every truncation and every flip of one bit."""
    for position in range(len(whole)):
        yield whole[:position]
        for bit in range(8):
            yield whole[:position] + bytes([whole[position] ^ 1 << bit]) + whole[position + 1 :]


def test_damaged_gzip_is_refused_or_read_unchanged(tmp_path: Path) -> None:
    path, num_refused = tmp_path / "images.gz", 0
    for content in damaged(gzip.compress(idx(), mtime=0)):
        path.write_bytes(content)
        try:
            images = read_images(path)
        except UnreadableFileError:
            num_refused += 1
        else:
            assert images.flatten().tolist() == list(PIXELS)
    assert num_refused > 300


def test_missing_file_is_reported_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="nothing: cannot be read: No such file"):
        read_bounded(tmp_path / "nothing", 10)


def test_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(50_000_000)))

    with pytest.raises(UnreadableFileError, match="more than 1000 bytes"):
        read_bounded(path, 1000)


def test_file_of_exactly_the_bound_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(PIXELS)

    assert read_bounded(path, len(PIXELS)) == PIXELS


def make_archive(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_archive_gives_the_named_files_and_writes_nothing(tmp_path: Path) -> None:
    members = [("../../outside", b"evil"), ("folder/one", b"1"), ("folder/two", b"22")]
    path = make_archive(tmp_path / "archive.tar.gz", members)

    found = read_archive(path, ["one", "two"], max_file_bytes=10, max_bytes=1 << 20)

    assert found == {"one": b"1", "two": b"22"}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("one", b"1")], "does not contain two"),
        ([("one", b"1"), ("two", b"2" * 11)], "two has 11 bytes"),
        ([("one", b"1"), ("two", b"2"), ("folder/one", b"3")], "one occurs twice"),
        ([("other", bytes(1 << 20))], "contains more than 65536 bytes"),
    ],
)
def test_archive_with_other_content_is_refused(
    tmp_path: Path, members: list[tuple[str, bytes]], reason: str
) -> None:
    path = make_archive(tmp_path / "archive.tar.gz", members)

    with pytest.raises(UnreadableFileError, match=reason):
        read_archive(path, ["one", "two"], max_file_bytes=10, max_bytes=1 << 16)


def test_damaged_archive_is_refused_or_read_unchanged(tmp_path: Path) -> None:
    members = {"one": b"1" * 9, "two": b"2" * 9}
    path, num_refused = make_archive(tmp_path / "archive.tar.gz", [*members.items()]), 0
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        try:
            found = read_archive(path, ["one", "two"], max_file_bytes=10, max_bytes=1 << 16)
        except UnreadableFileError:
            num_refused += 1
        else:
            assert found == members
    assert num_refused > 800


def test_link_in_an_archive_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "archive.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("one")
        link.type = tarfile.SYMTYPE
        link.linkname = "/etc/hostname"
        archive.addfile(link)

    with pytest.raises(UnreadableFileError, match="does not contain one"):
        read_archive(path, ["one"], max_file_bytes=10, max_bytes=1 << 16)


def test_cifar_record_is_a_label_and_three_planes() -> None:
    data = b"".join(bytes([label]) + bytes([label * 10]) * 3072 for label in (3, 7))

    images, labels = cifar_records(data, "somewhere")

    assert labels.tolist() == [3, 7]
    assert images.shape == (2, 3, 32, 32)
    assert (images == torch.tensor([30, 70]).view(2, 1, 1, 1)).all()


@pytest.mark.parametrize("num_bytes", [0, 1, 3072, 3074])
def test_cifar_file_of_another_size_is_refused(num_bytes: int) -> None:
    with pytest.raises(UnreadableFileError, match=f"somewhere: has {num_bytes} bytes"):
        cifar_records(bytes(num_bytes), "somewhere")
