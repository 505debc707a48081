"""Downloading one file: size-limited, verified, resumable, cancellable and atomic."""

import contextlib
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from esper.leyline.errors import DownloadError
from esper.leyline.platforms import lock_file
from esper.runtime.sources import CancelCheck, ProgressCallback

__all__ = ["Checksum", "RemoteFile", "download"]

CONNECT_LIMIT_S: Final = 5.0
"""Timeout for the connection and for each read of the response."""
MAX_ATTEMPTS: Final = 4
CHUNK_BYTES: Final = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Checksum:
    """A digest as published with the file."""

    algorithm: str
    """A name that hashlib knows, such as sha256."""
    hexdigest: str

    def matches(self, path: Path) -> bool:
        """Return whether the file has this digest."""
        if not path.is_file():  # reading a pipe might never end
            return False
        with path.open("rb") as stream:
            # Publishers of old data sets give MD5 only, which suffices to detect corruption.
            digest = hashlib.new(self.algorithm, usedforsecurity=False)
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
        return digest.hexdigest() == self.hexdigest.lower()


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteFile:
    """A file that can be downloaded."""

    url: str
    checksum: Checksum
    max_bytes: int
    """Maximum size; a larger response is rejected."""

    @property
    def name(self) -> str:
        """Return the file name in the URL."""
        return self.url.rpartition("/")[2]


def download(
    remote: RemoteFile,
    target: Path,
    *,
    on_progress: ProgressCallback,
    check_cancelled: CancelCheck,
    limit_s: float = CONNECT_LIMIT_S,
) -> None:
    """Download `remote` to `target`, which appears only when it is complete and verified.

    Received bytes are stored in `<target>.part`, and the next attempt, in this run or a later one,
    resumes from there.
    """
    # Beside the target, so that the final rename stays on one file system.
    part = target.with_name(target.name + ".part")
    # The lock belongs to the open file and ends with it, however the process ends.
    with _opened(part, remote) as stream, _locked(stream, remote):
        for _ in range(MAX_ATTEMPTS):
            num_before = _size_of(stream)
            try:
                _fetch_rest(remote, stream, limit_s, on_progress, check_cancelled)
            except (OSError, http.client.HTTPException) as error:
                reason = _reason_of(error)
                if _size_of(stream) <= num_before:  # no progress: a retry would not help
                    break
                continue
            if remote.checksum.matches(part):
                os.fsync(stream.fileno())
                part.replace(target)
                _sync_directory(target.parent)
                return
            reason = f"does not have the published {remote.checksum.algorithm} checksum"
            stream.truncate(0)  # the corrupted part is unknown, so discard everything
            # A file received in one piece differs on the server itself. A resumed one may be
            # assembled from two versions, so it is worth another attempt.
            if num_before == 0:
                break
    raise DownloadError(remote.url, reason)


def _opened(part: Path, remote: RemoteFile) -> IO[bytes]:
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        return part.open("ab")
    except OSError as error:
        reason = f"cannot be written to {part.parent}: {error.strerror}"
        raise DownloadError(remote.url, reason) from None


@contextlib.contextmanager
def _locked(stream: IO[bytes], remote: RemoteFile) -> Iterator[None]:
    """Lock the partial file, so that two runs never write to it at the same time."""
    try:
        lock_file(stream.fileno())
    except BlockingIOError:
        reason = "another process is downloading this file; try again when it has finished"
        raise DownloadError(remote.url, reason) from None
    yield


def _size_of(stream: IO[bytes]) -> int:
    return os.fstat(stream.fileno()).st_size


def _reason_of(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return f"cannot be reached: {error.reason}"
    if isinstance(error, TimeoutError):
        return "the server stopped sending"
    if isinstance(error, http.client.IncompleteRead):
        return f"the connection was closed {error.expected} bytes before the end"
    return f"the transfer failed: {error or type(error).__name__}"


def _fetch_rest(
    remote: RemoteFile,
    stream: IO[bytes],
    limit_s: float,
    on_progress: ProgressCallback,
    check_cancelled: CancelCheck,
) -> None:
    """Append the missing bytes; raise if the response ends before its Content-Length."""
    check_cancelled()
    num_bytes = _size_of(stream)
    request = urllib.request.Request(remote.url)
    if num_bytes:
        request.add_header("Range", f"bytes={num_bytes}-")
    try:
        response = urllib.request.urlopen(request, timeout=limit_s)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing is missing, or the file is wrong: the checksum decides
        raise
    with response:
        # The server ignores ranges and sends the whole file.
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            stream.truncate(0)
            num_bytes = 0
        rest = response.length
        total = None if rest is None else num_bytes + rest
        while chunk := response.read1(CHUNK_BYTES):
            num_bytes += len(chunk)
            if num_bytes > remote.max_bytes:
                stream.truncate(0)
                raise DownloadError(remote.url, f"is larger than {remote.max_bytes} bytes")
            stream.write(chunk)
            stream.flush()
            on_progress(remote.name, num_bytes, total)
            check_cancelled()
    if total is not None and num_bytes < total:
        raise http.client.IncompleteRead(b"", total - num_bytes)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
