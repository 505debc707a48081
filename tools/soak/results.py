"""The figures of the soaks: kept in `results.json`, told in `docs/reliability.md`."""

from pathlib import Path

import msgspec
from tools.bench.rows import Row

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tools" / "soak" / "results.json"
DOCUMENT = ROOT / "docs" / "reliability.md"

PROMISES = {
    "L1": "A run that is killed (SIGKILL) at any moment, in the middle of a batch, an update, a "
    "checkpoint or an append, and then resumed is the run that was never killed: policy, "
    "optimizer, normalisers, counters and event log have the same SHA-256. At most one round is "
    "done again.",
    "L2": "The number of lanes and the order in which they get to work change no bit, with "
    "dropout and augmentation on.",
    "L3": "After a crash between any two file operations, in the middle of one, or with "
    "everything lost that was not forced to the disk, log and checkpoints open as a state that "
    "the run has been in, and no checkpoint is ahead of its log.",
    "L4": "A log of up to 64 KiB that was cut at any byte, or has a bit flipped (10,000 drawn, and "
    "every one of the checksums), is read without a "
    "crash and without an event that nobody wrote, and the damage is told.",
    "L5": "One SIGINT or SIGTERM at any moment ends a run: exit code 130, a valid checkpoint, a "
    "complete log, no temporary file, no port, no process left. Resumed, it is the same run.",
    "L6": "What breaks in one env (numbers, exceptions, allocations) is named in one event and "
    "leaves the other envs bit-identical to the end of that round; nothing that is not finite "
    "reaches the rollout buffer. A disk that fails is told in one sentence and loses nothing that "
    "was saved; a thread that hangs ends the run with its stack.",
    "L7": "Seeds never come into a state that the lifecycle does not know, and leave nothing "
    "behind.",
    "L8": "Whatever is fed to decoders, readers and the websocket, nothing is executed, memory "
    "stays bounded, and the answer is one sentence.",
    "L9": "The server under attack and load lets nobody in, and what it costs the run is bounded.",
    "L10": "A long run holds as much memory, as many threads and as many files at its end as "
    "after its first third.",
}
"""What each row holds."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure beside its target."""

    name: str
    measured: float
    target: float
    unit: str
    is_at_least: bool
    is_met: bool
    note: str


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What one row came to."""

    date: str
    """UTC."""
    command: str
    is_quick: bool
    took_s: float
    machine: str
    figures: list[Figure]


Results = dict[str, Result]


def figure_of(row: Row) -> Figure:
    """Return a row as it is kept."""
    return Figure(
        name=row.name,
        measured=round(row.measured, 4),
        target=row.target,
        unit=row.unit,
        is_at_least=row.is_at_least,
        is_met=row.is_met,
        note=row.note,
    )


def read_results(path: Path = RESULTS) -> Results:
    """Return the latest figures of every row."""
    return msgspec.json.decode(path.read_bytes(), type=Results) if path.exists() else {}


def keep(results: Results, new: Results) -> Results:
    """Return the figures to keep; a quick one never takes the place of a full one."""
    taken = {
        name: result
        for name, result in new.items()
        if name not in results or results[name].is_quick or not result.is_quick
    }
    both = results | taken
    return {name: both[name] for name in PROMISES if name in both}


def write_results(results: Results) -> None:
    """Write the figures, and the document that tells them."""
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
    DOCUMENT.write_text(document_of(results), encoding="utf-8")


def document_of(results: Results) -> str:
    """Return the document."""
    parts = [
        "# Reliability",
        "Written by `python -m tools.soak` from `tools/soak/results.json`; do not edit. "
        "`make soak` runs everything in its long form, `tests/reliability` holds a quick form of "
        "each in the normal suite (L7: `tests/tools/test_soak.py`).",
    ]
    for name, promise in PROMISES.items():
        parts.append(f"## {name}\n\n{promise}")
        parts.append(_told(results[name]) if name in results else "Not run yet.")
    return "\n\n".join(parts) + "\n"


def _told(result: Result) -> str:
    rows = "\n".join(
        f"| {figure.name} | {number_text(figure.measured)} {figure.unit} "
        f"| {'≥' if figure.is_at_least else '≤'} {number_text(figure.target)} "
        f"| {'yes' if figure.is_met else '**no**'} | {figure.note} |"
        for figure in result.figures
    )
    form = "quick form" if result.is_quick else "long form"
    return (
        f"| figure | measured | target | met | on |\n|---|---|---|---|---|\n{rows}\n\n"
        f"`{result.command}`, {form}, {result.date}, {result.took_s:,.0f} s, {result.machine}."
    )


def number_text(value: float) -> str:
    """Return a figure as people write it: counts in full, measurements to a few digits."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}"
