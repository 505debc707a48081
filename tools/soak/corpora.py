"""`python -m tools.soak.corpora READER FOLDER`: keep the inputs of a folder that reach new code.

A corpus is a text file with one input per line, in base64. Guided fuzzing starts from it, and the
test suite reads every input of it again.
"""

import base64
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from tools.soak.readers import INSTRUMENTED, Read, open_reader

CORPORA = Path(__file__).resolve().parent / "corpora"
MAX_CORPUS_BYTES = 8 << 10
"""Per reader, so that all of them together stay small."""

Arc = tuple[str, int, int]


def read_corpus(reader: str) -> list[bytes]:
    """Return the inputs that are kept for a reader."""
    path = CORPORA / f"{reader}.txt"
    return [base64.b64decode(line) for line in path.read_text().split()] if path.exists() else []


def write_corpus(reader: str, inputs: Iterable[bytes]) -> None:
    """Replace the inputs that are kept for a reader."""
    lines = sorted(base64.b64encode(data).decode() for data in inputs)
    (CORPORA / f"{reader}.txt").write_text("".join(f"{line}\n" for line in lines))


class ArcTracer:
    """Notes which line of the instrumented packages follows which."""

    def __init__(self) -> None:
        self.arcs: set[Arc] = set()
        self._before: dict[FrameType, int] = {}
        self._marks = tuple(f"/{name.replace('.', '/')}/" for name in INSTRUMENTED)

    def reached_by(self, read: Read, data: bytes) -> frozenset[Arc]:
        """Return the arcs of one input."""
        self.arcs, self._before = set(), {}
        sys.settrace(self._call)
        try:
            read(data)
        finally:
            sys.settrace(None)
        return frozenset(self.arcs)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        return self._line if any(mark in name for mark in self._marks) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            before = self._before.get(frame, 0)
            self.arcs.add((frame.f_code.co_filename, before, frame.f_lineno))
            self._before[frame] = frame.f_lineno
        return self._line


def minimized(read: Read, inputs: Iterable[bytes]) -> list[bytes]:
    """Return a few small inputs that reach together what all of them reach."""
    tracer = ArcTracer()
    reached: set[Arc] = set()
    kept: list[bytes] = []
    # What only the first input of a process reaches, such as imports, is no reason to keep it.
    tracer.reached_by(read, b"")
    for data in sorted(sorted(set(inputs)), key=len):
        arcs = tracer.reached_by(read, data)
        is_small = sum(map(len, kept)) + len(data) <= MAX_CORPUS_BYTES
        if is_small and not arcs <= reached:
            reached |= arcs
            kept.append(data)
    return kept


def keep_new(reader: str, folder: Path) -> int:
    """Add the inputs of a folder to a reader's corpus, minimized; return its new length."""
    found = [path.read_bytes() for path in folder.iterdir() if path.is_file()]
    with tempfile.TemporaryDirectory() as name, open_reader(reader, Path(name)) as read:
        kept = minimized(read, [*read_corpus(reader), *found])
    write_corpus(reader, kept)
    return len(kept)


if __name__ == "__main__":
    print(keep_new(sys.argv[1], Path(sys.argv[2])))
