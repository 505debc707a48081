"""Reading logs line by line: plain, gzip or zstd files, run directories, standard input."""

import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, Final, cast

from esper.leyline.errors import UnreadableFileError

__all__ = [
    "CHUNK_BYTES",
    "LOG_NAME",
    "MAX_LINE_BYTES",
    "STDIN",
    "find_logs",
    "is_compressed",
    "read_chunks",
    "read_lines",
    "run_directory_of",
    "split_lines",
]

CHUNK_BYTES: Final = 128 << 10
"""Small enough for a chunk, its lines and what is made of them to stay in a core's cache."""
MAX_LINE_BYTES: Final = 16 << 20
"""A longer line is cut here, which makes it a bad line instead of a memory problem."""
STDIN: Final = Path("-")
LOG_NAME: Final = "events.jsonl"

_LOG_NAMES: Final = (LOG_NAME, f"{LOG_NAME}.zst", f"{LOG_NAME}.gz")
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


def find_logs(paths: Iterable[Path]) -> list[Path]:
    """Return the logs that these files, run directories or directories of runs stand for."""
    return [log for path in paths for log in _logs_at(path)]


def _logs_at(path: Path) -> list[Path]:
    if path == STDIN or path.is_file():
        return [path]
    if not path.exists():
        raise UnreadableFileError(path, "no such file or directory")
    if not path.is_dir():  # a pipe or a device is read as it is
        return [path]
    logs = _log_in(path) or [
        log for run in sorted(path.iterdir()) if run.is_dir() for log in _log_in(run)
    ]
    if not logs:
        raise UnreadableFileError(path, f"no {LOG_NAME} here, nor one level below")
    return logs


def _log_in(directory: Path) -> list[Path]:
    return [directory / name for name in _LOG_NAMES if (directory / name).is_file()][:1]


def run_directory_of(log: Path) -> Path | None:
    """Return the run directory that a log belongs to, or None for a log on its own."""
    return log.parent if log.name in _LOG_NAMES else None


def is_compressed(path: Path) -> bool:
    """Tell whether a file starts like a gzip or zstd file."""
    try:
        with path.open("rb") as stream:
            return _is_magic(stream.read(4))
    except OSError as error:
        raise UnreadableFileError(path, f"cannot be read: {error.strerror}") from None


def _is_magic(head: bytes) -> bool:
    return head.startswith((_GZIP_MAGIC, _ZSTD_MAGIC))


@contextmanager
def _open_log(path: Path) -> Iterator[BinaryIO]:
    """Open a log for reading; what it is compressed with is seen from its first bytes."""
    with _open_raw(path) as raw:
        # Every buffered stream can be peeked into, a pipe too.
        head = cast(io.BufferedReader, raw).peek(4)[:4]
        if head.startswith(_GZIP_MAGIC):
            with gzip.GzipFile(fileobj=raw) as stream:
                yield cast(BinaryIO, stream)
        elif head.startswith(_ZSTD_MAGIC):
            with _open_zstd(raw) as stream:
                yield stream
        else:
            yield raw


def _open_raw(path: Path) -> AbstractContextManager[BinaryIO]:
    if path == STDIN:
        return nullcontext(sys.stdin.buffer)  # not ours to close
    try:
        return path.open("rb")
    except OSError as error:
        raise UnreadableFileError(path, f"cannot be read: {error.strerror}") from None


def _open_zstd(stream: BinaryIO) -> BinaryIO:
    # Python has zstd of its own from 3.14 on.
    if sys.version_info >= (3, 14):
        from compression import zstd  # most logs are plain
    else:
        from backports import zstd  # most logs are plain
    return cast(BinaryIO, zstd.ZstdFile(stream))


def read_chunks(path: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield pieces of whole lines; only the last line of all may lack its newline.

    Args:
        path: a plain or compressed log, or STDIN.
        start: offset of the first line to read; plain files only.
        end: offset just after the last one.
    """
    if path != STDIN and path.is_file() and not is_compressed(path):
        with _open_raw(path) as raw:
            yield from _read_plain(path, raw.fileno(), start, end)
    else:
        with _open_log(path) as stream:
            yield from _read_stream(path, stream)


def _read_plain(path: Path, fd: int, offset: int, end: int | None) -> Iterator[bytes]:
    """Read a file by offsets: what follows the last newline of a block is read once more."""
    size = CHUNK_BYTES
    while True:
        left = size if end is None else min(size, end - offset)
        try:
            block = os.pread(fd, left, offset)
        except OSError as error:
            raise UnreadableFileError(path, f"cannot be read: {error.strerror}") from None
        if not block:
            return
        cut = block.rfind(b"\n") + 1
        if cut:
            yield block[:cut]
            offset, size = offset + cut, CHUNK_BYTES
        elif len(block) == size < MAX_LINE_BYTES:
            size *= 2  # a line longer than a chunk
        else:
            yield block  # the last line, or as much of an endless one as is bearable
            offset = _after_newline(fd, offset + len(block))


def _after_newline(fd: int, offset: int) -> int:
    """Return where the next line starts, or the end of the file."""
    while block := os.pread(fd, CHUNK_BYTES, offset):
        place = block.find(b"\n")
        if place >= 0:
            return offset + place + 1
        offset += len(block)
    return offset


def _read_stream(path: Path, stream: BinaryIO) -> Iterator[bytes]:
    # Grows in place: bytes would be copied with every block of a long line, and the copies would
    # lie about in the heap until it is several times as large as the line.
    tail = bytearray()
    for block in _read_blocks(path, stream):
        cut = block.rfind(b"\n") + 1
        if cut:
            yield b"".join((tail, block[:cut]))
            tail = bytearray(block[cut:])
        elif len(tail) < MAX_LINE_BYTES:
            tail += block
    last = bytes(tail)
    tail.clear()
    if last:
        yield last


def _read_blocks(path: Path, stream: BinaryIO) -> Iterator[bytes]:
    while True:
        try:
            block = stream.read(CHUNK_BYTES)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UnreadableFileError(path, f"cannot be read: {reason}") from None
        except (EOFError, zlib.error) as error:
            raise UnreadableFileError(path, f"damaged gzip data: {error}") from None
        except Exception as error:
            # ZstdError cannot be named without importing zstd for logs that never need it.
            if type(error).__name__ != "ZstdError":
                raise
            raise UnreadableFileError(path, f"damaged zstd data: {error}") from None
        if not block:
            return
        yield block


def split_lines(chunk: bytes) -> list[bytes]:
    """Return the lines of a chunk without their newlines, blank ones included."""
    lines = chunk.split(b"\n")
    if not lines[-1]:
        lines.pop()  # what follows the last newline is no line
    return lines


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield every line without its newline; blank ones too, so that positions are line numbers."""
    for chunk in read_chunks(path):
        yield from split_lines(chunk)
