"""Payloads, logs and disks for the tests of the bus."""

import errno
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from esper.leyline.payloads import CheckpointLoaded, EpochCompleted, ObservationStats, SeedPruned
from esper.leyline.telemetry import (
    Draft,
    Event,
    EventScope,
    build_event,
    decode_event,
    encode_event,
)
from esper.nissa.storage.block_facts import parse_facts
from esper.nissa.storage.blocks import Block, CommitRecord, checksum_path
from esper.nissa.storage.files import FileSystem
from esper.nissa.storage.journal import apply_cut, claim_run, plan_cut

RUN_ID = "0123abcd"


def pruned(tag: str = "r0c0", *, age_steps: int = 7) -> SeedPruned:
    """Make a small payload that a test can distinguish from others."""
    return SeedPruned(
        slot_id=tag,
        seed_id="s",
        blueprint="norm",
        reason="test",
        initiator="policy",
        age_steps=age_steps,
        contribution_pp=None,
        improvement_pp=0.5,
        blending_delta_pp=-1.25,
    )


def epoch(loss: float = 1.5) -> EpochCompleted:
    """Make the payload of a step."""
    return EpochCompleted(
        train_loss=loss,
        train_accuracy_pct=50.0,
        val_loss=loss,
        val_accuracy_pct=50.0,
        host_gradient_norm=None,
        network_gradient_norm=None,
        seeds=(),
    )


def checkpoint_loaded() -> CheckpointLoaded:
    """Make an operational payload."""
    return CheckpointLoaded(rounds_completed=1, log_seq=2, num_events_redone=3, path="c")


def observation_stats() -> ObservationStats:
    """Make a payload that only the debug level lets through."""
    return ObservationStats(
        host_mean=0.0,
        host_std=1.0,
        context_mean=0.0,
        context_std=1.0,
        slots_mean=0.0,
        slots_std=1.0,
        outlier_fraction=0.0,
        near_clip_fraction=0.0,
        clip_fraction=0.0,
        nan_count=0,
        inf_count=0,
        normalization_drift=0.0,
    )


def line(seq: int, env_id: int | None = None) -> bytes:
    """Make one line of a log, newline included."""
    draft = Draft(pruned(f"r0c{seq}"), EventScope(env_id=env_id))
    return encode_event(build_event(draft, seq=seq, ts=1.0, run_id=RUN_ID, group="g")) + b"\n"


def block(first_seq: int, num_events: int) -> Block:
    """Make a block of consecutive events."""
    lines = [line(seq) for seq in range(first_seq, first_seq + num_events)]
    return Block(first_seq, num_events, b"".join(lines))


def records_of(blocks: Iterable[Block]) -> Iterator[CommitRecord]:
    """Yield the records of a log's blocks as the journal writes them."""
    start = 0
    for item in blocks:
        record = CommitRecord.of(item, start, parse_facts(item))
        yield record
        start = record.end


def write_blocks(log: Path, blocks: Iterable[Block]) -> None:
    """Write blocks as a log with its checksum file."""
    blocks = list(blocks)
    log.write_bytes(b"".join(item.data for item in blocks))
    checksum_path(log).write_bytes(b"".join(record.line() for record in records_of(blocks)))


def read_events(path: Path) -> list[Event]:
    """Decode every line of a log."""
    return [decode_event(text) for text in path.read_bytes().splitlines()]


def seqs(events: Iterable[Event]) -> list[int]:
    """Return the seqs of some events."""
    return [event.seq for event in events]


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Poll until a condition holds; fail if it does not hold in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.001)


class FailingFiles(FileSystem):
    """A disk that works until a test makes it fail."""

    def __init__(self) -> None:
        self.write_error: int | None = None
        self.fsync_error: int | None = None
        self.bytes_left: int | None = None
        """Before the disk is full; None is endless."""

    def write(self, descriptor: int, data: bytes) -> None:
        if self.write_error is not None:
            raise OSError(self.write_error, "injected")
        if self.bytes_left is None:
            super().write(descriptor, data)
            return
        super().write(descriptor, data[: self.bytes_left])
        self.bytes_left -= min(len(data), self.bytes_left)
        if self.bytes_left == 0:
            raise OSError(errno.ENOSPC, "no space left on device")

    def fsync(self, descriptor: int) -> None:
        if self.fsync_error is not None:
            raise OSError(self.fsync_error, "injected")
        super().fsync(descriptor)


def cut_back(run_dir: Path, last_seq: int, *, files: FileSystem | None = None) -> int:
    """Truncate a run's log after an event, as resuming does; return the number of events cut."""
    claim = claim_run(run_dir, files=files)
    try:
        cut = plan_cut(claim.path, last_seq)
        apply_cut(claim, cut)
    finally:
        claim.close()
    return cut.num_events_cut
