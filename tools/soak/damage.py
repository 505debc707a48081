"""Truncated and corrupted logs: no crash, and no event that was never written."""

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.builders.tiny_runs import short_run
from tests.builders.tiny_tasks import TINY
from tools.bench.rows import Row

from esper.leyline.errors import UnreadableFileError
from esper.nissa.analysis.validation import validate_run
from esper.nissa.storage.blocks import checksum_path
from esper.nissa.storage.files import FileSystem
from esper.nissa.storage.journal import EVENTS_FILE, open_journal
from esper.nissa.storage.run_directory import MANIFEST_FILE

LOG_BYTES = 64 * 1024
NUM_FLIPS = 10_000
QUICK_SAMPLES = 60
DAMAGE = frozenset({"crc", "seq", "torn", "schema", "type", "channel"})
"""Findings that report damage; a truncated log also lacks its end."""


class SmallLog:
    """A log of 64 KiB in its own folder, which can be restored."""

    def __init__(self, folder: Path) -> None:
        whole = short_run(folder / "whole", TINY, lanes=2, n_episodes=2)
        self.run_dir = folder / "damaged"
        self.run_dir.mkdir()
        shutil.copy(whole / MANIFEST_FILE, self.run_dir)
        self.path = self.run_dir / EVENTS_FILE
        lines = checksum_path(whole / EVENTS_FILE).read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if int(line.split()[1]) <= LOG_BYTES]
        self.checksums = b"".join(kept)
        self.data = (whole / EVENTS_FILE).read_bytes()[: int(kept[-1].split()[1])]
        self.lines = self.data.splitlines()

    def put(self, data: bytes, checksums: bytes | None) -> None:
        """Write the two files; None omits the second."""
        self.path.write_bytes(data)
        if checksums is None:
            checksum_path(self.path).unlink(missing_ok=True)
        else:
            checksum_path(self.path).write_bytes(checksums)

    def check(self) -> None:
        """Assert that the damage is reported and that only written events are read."""
        found = validate_run(self.run_dir)
        is_reported = bool(DAMAGE & found.num_findings.keys()) or found.num_uncovered_bytes > 0
        assert is_reported, "the damage is not reported"
        try:
            open_journal(self.path, files=FileSystem(), has_checksums=True).close()
        except UnreadableFileError:
            return
        read = self.path.read_bytes().splitlines()
        assert read == self.lines[: len(read)], "an event that was not written"


def check_cut(log: SmallLog, num_bytes: int) -> None:
    """Truncate the log after this many bytes."""
    log.put(log.data[:num_bytes], log.checksums)
    log.check()


def check_flip(log: SmallLog, bit: int) -> None:
    """Flip one bit of the log or, beyond its end, of the checksums."""
    both = bytearray(log.data + log.checksums)
    both[bit // 8] ^= 1 << bit % 8
    log.put(bytes(both[: len(log.data)]), bytes(both[len(log.data) :]))
    log.check()


def check_flip_without_checksums(log: SmallLog, bit: int) -> None:
    """Flip one bit of a log without checksums: readers must not crash."""
    changed = bytearray(log.data)
    changed[bit // 8] ^= 1 << bit % 8
    log.put(bytes(changed), None)
    validate_run(log.run_dir)


def rows(is_quick: bool) -> Iterator[Row]:
    """Truncate logs and flip bits: row L4."""
    rng = random.Random(4)
    with tempfile.TemporaryDirectory() as name:
        log = SmallLog(Path(name))
        lengths = range(len(log.data))
        cuts = rng.sample(lengths, QUICK_SAMPLES) if is_quick else lengths
        for num_bytes in cuts:
            check_cut(log, num_bytes)
        num_bits = 8 * len(log.data)
        bits = rng.sample(range(num_bits), QUICK_SAMPLES if is_quick else NUM_FLIPS)
        checksum_bits = range(num_bits, num_bits + 8 * len(log.checksums))
        bits += rng.sample(checksum_bits, QUICK_SAMPLES) if is_quick else checksum_bits
        for bit in bits:
            check_flip(log, bit)
            check_flip_without_checksums(log, bit % num_bits)
    num_blocks = len(log.checksums.splitlines())
    for what, number in (("truncations", len(cuts)), ("flipped bits", len(bits))):
        yield Row(
            name=f"L4 {what}, damage reported, no event invented",
            measured=number,
            target=number,
            unit=what,
            is_at_least=True,
            note=f"{len(log.data):,} bytes in {num_blocks} blocks",
        )
