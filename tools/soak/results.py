"""The figures of the soak tests: stored in `results.json`, rendered as `docs/reliability.md`."""

from pathlib import Path

import msgspec
from tools.bench.rows import Row
from tools.markdown import table

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tools" / "soak" / "results.json"
DOCUMENT = ROOT / "docs" / "reliability.md"

PROMISES = {
    "L1": "A run that is killed with SIGKILL at any moment (during a batch, an update, a "
    "checkpoint or a write to the log) and then resumed gives the same result as an uninterrupted "
    "run: policy, optimizer, normalisers, counters and event log have the same SHA-256. At most "
    "one round is repeated.",
    "L2": "The number of lanes and the order of their work do not change a single bit of the "
    "result, with dropout and augmentation enabled.",
    "L3": "After a crash between any two file operations, during one, or with the loss of all data "
    "that was not yet synced to disk, the log and the checkpoints are readable and represent a "
    "state that the run was in, and no checkpoint is ahead of the log.",
    "L4": "A log of up to 64 KiB that is truncated at any byte, or has any bit flipped (10,000 "
    "random bits, and every bit of the checksums), is read without a crash, without events that "
    "were never written, and with the damage reported.",
    "L5": "One SIGINT or SIGTERM at any moment ends a run with exit code 130, a valid checkpoint "
    "and a complete log, and leaves no temporary file, open port or process. When resumed, it "
    "gives the same result as an uninterrupted run.",
    "L6": "A fault in one env (non-finite numbers, exceptions, failed allocations) is reported in "
    "one event, and the other envs stay bit-identical to the end of that round; no non-finite "
    "number reaches the rollout buffer. A disk failure is reported in one sentence, and saved data "
    "are not lost. A thread that hangs ends the run, with its stack trace.",
    "L7": "Seeds never enter an illegal state, and removed seeds leave no modules, parameters or "
    "optimizer state behind.",
    "L8": "No input to decoders, readers or the websocket executes code or exhausts memory; "
    "invalid input is rejected with a one-sentence message.",
    "L9": "Under attack and load the server admits no unauthorized client, and the cost for the "
    "run is bounded.",
    "L10": "At its end a long run uses no more memory, threads and open files than after its first "
    "third.",
    "L11": "From the first instruction of either command on, one SIGINT, SIGTERM or SIGHUP ends it "
    "with exit code 130 and without a traceback. A second signal within 200 ms counts as the "
    "first, a later one ends the process at once. Before that instruction, while the interpreter "
    "starts (10 ms, more on a busy machine), Python's defaults apply: SIGTERM and SIGHUP end the "
    "process (a shell reports 143 and 129), SIGINT too, or with Python's own KeyboardInterrupt. "
    "SIGHUP is ignored below `nohup`.",
    "L12": "A run completes with a valid log, and reading commands end with their proper exit "
    "code, whatever surrounds them: standard streams closed, full or without a reader, no HOME, a "
    "user that the system does not know, any locale or terminal size, `python -O` and `-OO`. A "
    "standard output that fails stops no run and no dashboard, and never changes the exit code of "
    "a completed run; a reading command, whose output is its purpose, then exits with 1. Control "
    "characters from logs, names and messages are escaped before they reach a terminal.",
    "L13": "Visitors of the live server that send and connect as fast as they can (scans, "
    "selections, pings, pipelined and unread requests, replays, held connections) slow "
    "a run in wall time no more than processes without a connection that are as busy, "
    "and the memory of the run and its server is bounded. The server is a process of "
    "its own with a lower priority; its death does not end the run. With the same "
    "limits as a thread of the run, it would slow the run as little: progress beside "
    "the worst of eight kinds of visitors was 1.46 of that beside busy loops, and "
    "memory grew by 40 MiB (`python -m tools.soak.shared_server`, three repetitions, "
    "two cores of an AMD EPYC). So the limits protect the run's speed; the process of "
    "its own keeps away from it what no limit does: a server that crashes or is killed, "
    "file descriptors, and native code that holds the interpreter lock. Not promised: "
    "the speed at which the server answers others meanwhile.",
    "L14": "A log, checksum file or operational log that somebody else truncates, appends to, "
    "replaces, removes or links while a run writes it is noticed at the next commit and ends the "
    "run with exit code 3 and one sentence. Resume writes only to regular files with one name in "
    "the run's directory, and refuses links with exit code 2 before it changes anything.",
    "L15": "After a crash at any moment of a run or of its resume, the latest checkpoint can be "
    "resumed from its log, even if directory entries that were not synced are lost and unsynced "
    "names and data reach the disk in any order.",
    "L16": "Of two processes that resume the same run, one wins and the other says so; the lock on "
    "the log is held from before the first change until the run ends.",
    "L17": "Coverage-guided fuzzing finds no input that crashes a reader: checkpoints, the resume "
    "of a checkpoint with a changed header, configuration files, IDX and tar files, log lines, "
    "websocket frames. The inputs that reached new code are kept in `tools/soak/corpora`, and the "
    "test suite reads them again.",
    "L18": "A worker process that is killed with SIGKILL at any moment, even while it repeats a "
    "round in place of one that was killed before, is replaced, and the finished run is "
    "bit-identical to an undisturbed one. Two losses at one command that was never answered, which "
    "quarantine an env, are not part of this test.",
    "L19": "The same for Ray actors.",
    "L20": "The tests of journal, blocks, recovery, resuming, access rules and PPO update notice "
    "small defects in them: operators, constants and conditions changed, calls, errors and return "
    "values removed. "
    "Annotations, docstrings, texts of errors and flags of data classes are left alone.",
    "L21": "One SIGINT or SIGTERM at any moment ends a run on worker processes or on a local Ray "
    "with exit code 130, a valid log and no traceback, and leaves neither a process nor a file "
    "outside its directory.",
}
"""The property that each row tests."""

NOT_PROMISED = (
    "Who can write to the directory of a run as you can, can destroy it; such changes are noticed, "
    "not prevented.",
    "A run keeps its last three checkpoints and the best one; a disk that loses synced data can "
    "lose more than one round.",
    "In the interpreter's own start-up, before the first line of a command, Python's default "
    "reaction to signals applies.",
    "A signal that a debugger, `nohup` (SIGHUP) or SIGSTOP holds back is not seen.",
    "Checksums detect damage; they are no signature against somebody who recomputes them.",
    "Bytes that are overwritten in place, with no change of a file's size, are noticed by "
    "`validate` and by a resume, not while the run writes.",
    "An output that takes nothing and does not fail (a terminal stopped with Ctrl-S, a suspended "
    "reader of a pipe) holds up what is printed, and with it the end of the run.",
    "The server speaks plain HTTP: who can read the network between it and a client can read the "
    "token and the run.",
)
"""What users might expect and do not get."""


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
    """The result of one row."""

    date: str
    """UTC."""
    command: str
    is_quick: bool
    took_s: float
    machine: str
    figures: list[Figure]


Results = dict[str, Result]


def figure_of(row: Row) -> Figure:
    """Return a row in its stored form."""
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
    """Merge the figures; a quick result never replaces a full one."""
    taken = {
        name: result
        for name, result in new.items()
        if name not in results or results[name].is_quick or not result.is_quick
    }
    both = results | taken
    return {name: both[name] for name in PROMISES if name in both}


def write_results(results: Results) -> None:
    """Write the figures and the document."""
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
    DOCUMENT.write_text(document_of(results), encoding="utf-8")


def document_of(results: Results) -> str:
    """Return the document."""
    parts = [
        "# Reliability",
        "Written by `python -m tools.soak` from `tools/soak/results.json`; do not edit. "
        "`make soak` runs the long form of every test; `tests/reliability` contains a quick form "
        "of each for the normal test suite (L7: `tests/tools/test_soak.py`; L18, L19: "
        "`tests/simic/training/test_worker_process.py`, `test_ray_worker.py`; L20: "
        "`tests/tools/test_mutants.py`; L21: `test_worker_processes.py` and `test_ray_worker.py`).",
    ]
    for name, promise in PROMISES.items():
        parts.append(f"## {name}\n\n{promise}")
        parts.append(_result_text(results[name]) if name in results else "Not run yet.")
    parts.append("## What is not promised")
    parts.append("\n".join(f"- {sentence}" for sentence in NOT_PROMISED))
    return "\n\n".join(parts) + "\n"


def _result_text(result: Result) -> str:
    rows = [
        (
            figure.name,
            f"{number_text(figure.measured)} {figure.unit}",
            f"{'≥' if figure.is_at_least else '≤'} {number_text(figure.target)}",
            "yes" if figure.is_met else "**no**",
            figure.note,
        )
        for figure in result.figures
    ]
    form = "quick form" if result.is_quick else "long form"
    return (
        f"{table(('figure', 'measured', 'target', 'met', 'on'), rows)}\n\n"
        f"`{result.command}`, {form}, {result.date}, {result.took_s:,.0f} s, {result.machine}."
    )


def number_text(value: float) -> str:
    """Format a figure: counts in full, measurements with three significant digits."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}"
