"""Coverage-guided fuzzing of every reader of untrusted bytes, with atheris (libFuzzer).

`python -m tools.soak.guided READER FOLDER SECONDS` fuzzes one reader, and leaves the inputs that
reached new code in FOLDER/corpus.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.bench.rows import Row
from tools.soak.corpora import keep_new, read_corpus
from tools.soak.readers import INSTRUMENTED, MAX_BYTES, READERS, examples, open_reader

QUICK_S, FULL_S = 5, 600
"""Seconds per reader."""


def fuzz(reader: str, folder: Path, seconds: int) -> None:
    """Fuzz one reader in this process, which libFuzzer ends."""
    # Only the processes that fuzz have it, and only in these is the source instrumented.
    import atheris

    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        with atheris.instrument_imports(include=INSTRUMENTED):
            read = stack.enter_context(open_reader(reader, folder))
            seeds = [*read_corpus(reader), *examples(reader)]
        for number, example in enumerate(seeds):
            (corpus / str(number)).write_bytes(example)
        flags = [f"-max_total_time={seconds}", f"-max_len={MAX_BYTES}", "-rss_limit_mb=2048"]
        atheris.Setup([sys.argv[0], *flags, f"-artifact_prefix={folder}/", str(corpus)], read)
        atheris.Fuzz()


def fuzz_in_process(reader: str, folder: Path, seconds: int) -> int:
    """Fuzz one reader in a process of its own; return the number of inputs."""
    ended = subprocess.run(
        [sys.executable, "-m", "tools.soak.guided", reader, str(folder), str(seconds)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=3 * seconds + 300,
        check=False,
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )
    assert ended.returncode == 0, f"{reader}: {ended.stderr[-3000:]}"
    [done] = [line for line in ended.stderr.splitlines() if line.startswith("Done ")]
    return int(done.split()[1])


def rows(is_quick: bool) -> Iterator[Row]:
    """Fuzz every reader for a bounded time: row L17."""
    assert importlib.util.find_spec("atheris") is not None, "pip install '.[fuzz]' first"
    seconds = QUICK_S if is_quick else FULL_S
    for reader in READERS:
        with tempfile.TemporaryDirectory() as name:
            num_inputs = fuzz_in_process(reader, Path(name), seconds)
            if not is_quick:
                keep_new(reader, Path(name, "corpus"))
        yield Row(
            name=f"L17 guided fuzzing of {reader}",
            measured=0,
            target=0,
            unit="crashes",
            note=f"{num_inputs:,} inputs in {seconds} s",
        )


if __name__ == "__main__":
    fuzz(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
