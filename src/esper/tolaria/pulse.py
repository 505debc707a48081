"""Heartbeats of a worker's threads, in memory that the driver can read while the worker is busy.

A worker that hangs in native code holds the interpreter lock and answers no message, and one that
was killed answers nothing any more. Both leave the time of their last heartbeat and the env they
were working on in a page of memory that they share with the driver.
"""

import mmap
import os
import struct
import tempfile
import time
from dataclasses import dataclass
from typing import Final

from esper.leyline.workers import Beat

__all__ = ["Channel", "Pulse"]

_TIME: Final = struct.Struct("<d")
_ENV: Final = struct.Struct("<q")
_CHANNEL_BYTES: Final = _TIME.size + _ENV.size
_NO_ENV: Final = -1
_IDLE: Final = 0.0
_SILENCE: Final = _TIME.pack(_IDLE) + _ENV.pack(_NO_ENV)


@dataclass(frozen=True, slots=True)
class Channel:
    """The heartbeats of one thread."""

    buffer: "mmap.mmap | bytearray"
    offset: int

    def beat(self, at_s: float | None) -> None:
        """Record the time of a heartbeat; None while the lane is idle."""
        # Without a lock: a worker that is killed while it holds one would leave it locked.
        _TIME.pack_into(self.buffer, self.offset, _IDLE if at_s is None else at_s)

    def enter_env(self, env_id: int | None) -> None:
        """Record the env that the lane works on from now on."""
        place = self.offset + _TIME.size
        _ENV.pack_into(self.buffer, place, _NO_ENV if env_id is None else env_id)

    def read(self) -> Beat:
        """Return the lane's signs of life; the monotonic clock is the same in all processes."""
        (at_s,) = _TIME.unpack_from(self.buffer, self.offset)
        (env_id,) = _ENV.unpack_from(self.buffer, self.offset + _TIME.size)
        return Beat(
            silent_s=0.0 if at_s == _IDLE else max(0.0, time.monotonic() - at_s),
            env_id=None if env_id == _NO_ENV else env_id,
        )


class Pulse:
    """The heartbeats of all lanes of a worker and of its feeder."""

    def __init__(self, buffer: "mmap.mmap | bytearray", num_lanes: int) -> None:
        self._buffer = buffer
        self.num_lanes = num_lanes

    @classmethod
    def create(cls, num_lanes: int) -> tuple["Pulse", int]:
        """Return a pulse without beats and a file descriptor to open it with elsewhere.

        The caller closes the descriptor.
        """
        # A file without a name: it disappears with the last process that has it open, however that
        # ends.
        with tempfile.TemporaryFile() as file:
            file.write(_SILENCE * (num_lanes + 1))
            file.flush()
            return cls.open(file.fileno(), num_lanes), os.dup(file.fileno())

    @classmethod
    def open(cls, descriptor: int, num_lanes: int) -> "Pulse":
        """Open the pulse behind a file descriptor, which may then be closed."""
        return cls(mmap.mmap(descriptor, (num_lanes + 1) * _CHANNEL_BYTES), num_lanes)

    @classmethod
    def local(cls, num_lanes: int) -> "Pulse":
        """Return a pulse in the memory of this process."""
        return cls(bytearray(_SILENCE * (num_lanes + 1)), num_lanes)

    def channel(self, index: int) -> Channel:
        """Return the heartbeats of one lane."""
        return Channel(self._buffer, index * _CHANNEL_BYTES)

    @property
    def feeder(self) -> Channel:
        """Return the heartbeats of the feeder; the lanes that wait for it are never silent."""
        return self.channel(self.num_lanes)

    def read(self) -> tuple[Beat, ...]:
        """Return the signs of life of all lanes and, last, of the feeder."""
        return tuple(self.channel(index).read() for index in range(self.num_lanes + 1))
