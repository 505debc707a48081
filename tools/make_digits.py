"""Build the digits that ship with Esper from the csv.gz in which scikit-learn carries them.

Usage: python -m tools.make_digits DIGITS_CSV_GZ

The rows are shuffled once, here, with a fixed seed: the first 1,000 train, the next 397 validate,
the last 400 test, and each part has every writer and every class in it.
"""

import gzip
import random
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

ASSETS = Path(__file__).resolve().parents[1] / "src" / "esper" / "runtime" / "assets"
SHUFFLE_SEED = 1998  # the year in which the digits were published
NUM_PIXELS = 64


def main(argv: Sequence[str] | None = None) -> int:
    """Write the two IDX files and return an exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) not in (1, 2):
        print(__doc__, file=sys.stderr)
        return 2
    directory = Path(arguments[1]) if len(arguments) == 2 else ASSETS
    rows = read_rows(Path(arguments[0]))
    random.Random(SHUFFLE_SEED).shuffle(rows)
    images = bytes(pixel for row in rows for pixel in row[:NUM_PIXELS])
    labels = bytes(row[NUM_PIXELS] for row in rows)
    write_idx(directory / "digits-images-idx3-ubyte.gz", (len(rows), 8, 8), images)
    write_idx(directory / "digits-labels-idx1-ubyte.gz", (len(rows),), labels)
    print(f"{len(rows)} digits in {directory}")
    return 0


def read_rows(path: Path) -> list[list[int]]:
    """Read rows of 64 pixels from 0 to 16 and a label."""
    with gzip.open(path, "rt", encoding="ascii") as lines:
        return [[int(float(cell)) for cell in line.split(",")] for line in lines]


def write_idx(path: Path, shape: tuple[int, ...], data: bytes) -> None:
    """Write a gzipped IDX file of unsigned bytes, equal bytes for equal data."""
    header = struct.pack(f">{len(shape) + 1}I", 8 << 8 | len(shape), *shape)
    path.write_bytes(gzip.compress(header + data, mtime=0))


if __name__ == "__main__":
    sys.exit(main())
