"""Reads IDX files, CIFAR-10's binary records and archives; size-limited, without pickle."""

import gzip
import io
import math
import struct
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, Final

import torch
from torch import Tensor

from esper.leyline.errors import UnreadableFileError

__all__ = [
    "CIFAR_RECORD_BYTES",
    "cifar_records",
    "read_archive",
    "read_bounded",
    "read_idx",
    "require_regular",
]

CIFAR_RECORD_BYTES: Final = 1 + 3 * 32 * 32
_IDX_UNSIGNED_BYTE: Final = 8


class _BoundedReader(io.RawIOBase):
    """A stream that raises beyond `max_bytes`, as protection against decompression bombs."""

    def __init__(self, stream: IO[bytes], path: Traversable, max_bytes: int) -> None:
        self._stream = stream
        self._path = path
        self._max_bytes = max_bytes
        self._num_bytes = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(min(size, self._room) if size >= 0 else self._room)
        self._num_bytes += len(data)
        if self._num_bytes > self._max_bytes:
            raise UnreadableFileError(self._path, f"contains more than {self._max_bytes} bytes")
        return data

    @property
    def _room(self) -> int:
        # One byte more than allowed, because an empty read would look like the end of the file.
        return self._max_bytes - self._num_bytes + 1


def require_regular(path: Traversable) -> None:
    """Raise UnreadableFileError for a pipe, device or directory, which reading might never end."""
    if isinstance(path, Path) and path.exists() and not path.is_file():
        raise UnreadableFileError(path, "is not a regular file")


@contextmanager
def _opened(path: Traversable, max_bytes: int) -> Iterator[_BoundedReader]:
    """Open a plain or gzipped file; convert read errors to errors that name the file."""
    try:
        require_regular(path)
        with path.open("rb") as raw:
            stream: IO[bytes] = raw
            if path.name.endswith(".gz"):
                stream = gzip.GzipFile(fileobj=raw)  # type: ignore[assignment]
            yield _BoundedReader(stream, path, max_bytes)
    except EOFError:
        raise UnreadableFileError(path, "is truncated") from None
    except (gzip.BadGzipFile, zlib.error, tarfile.TarError, ValueError) as error:
        raise UnreadableFileError(path, f"is damaged: {error}") from None
    except RecursionError:  # tarfile calls itself for each header that continues another one
        raise UnreadableFileError(path, "is damaged: its headers are chained too deeply") from None
    except OSError as error:
        raise UnreadableFileError(path, f"cannot be read: {error.strerror or error}") from None


def read_bounded(path: Traversable, max_bytes: int) -> bytes:
    """Read a whole file, decompressed if its name ends in .gz; raise beyond `max_bytes`."""
    with _opened(path, max_bytes) as stream:
        return stream.read()


def read_idx(path: Traversable, *, item_shape: tuple[int, ...], max_items: int) -> Tensor:
    """Read an IDX file of unsigned bytes, whose items must have this shape."""
    header_bytes = 4 * (2 + len(item_shape))
    item_bytes = math.prod(item_shape)
    with _opened(path, header_bytes + max_items * item_bytes) as stream:
        header = stream.read(header_bytes)
        if len(header) < header_bytes:
            raise UnreadableFileError(path, "is truncated within its header")
        magic, num_items, *shape = struct.unpack(f">{2 + len(item_shape)}I", header)
        if magic != _IDX_UNSIGNED_BYTE << 8 | len(item_shape) + 1:
            kind = f"{len(item_shape) + 1}-dimensional IDX file of unsigned bytes"
            raise UnreadableFileError(path, f"is not a {kind}: it begins with 0x{magic:08x}")
        if tuple(shape) != item_shape:
            raise UnreadableFileError(
                path, f"contains items of shape {tuple(shape)}, not {item_shape}"
            )
        if not 0 < num_items <= max_items:
            reason = f"declares {num_items} items, not 1 to {max_items}"
            raise UnreadableFileError(path, reason)
        # One byte more, which shows a file that is longer than it declares.
        body = stream.read(num_items * item_bytes + 1)
    if len(body) != num_items * item_bytes:
        relation = "fewer" if len(body) < num_items * item_bytes else "more"
        raise UnreadableFileError(
            path, f"contains {relation} than the {num_items} items it declares"
        )
    return _bytes_tensor(body).view(num_items, *item_shape)


def read_archive(
    path: Path, names: Sequence[str], *, max_file_bytes: int, max_bytes: int
) -> Mapping[str, bytes]:
    """Read the named files of a tar archive into memory, without extracting to disk."""
    found: dict[str, bytes] = {}
    with _opened(path, max_bytes) as stream:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if name not in names or not member.isreg():
                    continue
                if name in found or member.size > max_file_bytes:
                    reason = "occurs twice" if name in found else f"has {member.size} bytes"
                    raise UnreadableFileError(path, f"{name} {reason}")
                content = archive.extractfile(member)
                assert content is not None, "a regular member has content"
                found[name] = content.read()
        # tarfile stops at the archive's end marker, before gzip's checksum. Reading to the end
        # makes gzip verify it.
        while stream.read(1 << 16):
            pass
    missing = [name for name in names if name not in found]
    if missing:
        raise UnreadableFileError(path, f"does not contain {', '.join(missing)}")
    return found


def cifar_records(data: bytes, path: object) -> tuple[Tensor, Tensor]:
    """Return the images [N, 3, 32, 32] and labels [N] of CIFAR-10's binary records."""
    if not data or len(data) % CIFAR_RECORD_BYTES:
        reason = f"has {len(data)} bytes, not a multiple of {CIFAR_RECORD_BYTES}"
        raise UnreadableFileError(path, reason)
    records = _bytes_tensor(data).view(-1, CIFAR_RECORD_BYTES)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].clone()


def _bytes_tensor(data: bytes) -> Tensor:
    # Of a copy, as a tensor over immutable bytes would make torch warn.
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
