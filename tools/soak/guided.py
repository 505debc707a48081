"""Coverage-guided fuzzing of every reader of untrusted bytes, with atheris (libFuzzer)."""

import contextlib
import importlib.util
import io
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.bench.rows import Row

QUICK_S, FULL_S = 5, 600
"""Seconds per reader."""
READERS = ("checkpoint", "toml", "json", "idx", "tar", "line")
MAX_BYTES = 4096


def fuzz(reader: str, folder: Path, seconds: int) -> None:
    """Fuzz one reader in this process, which libFuzzer ends."""
    # Only the processes that fuzz have it, and only in these is the source instrumented.
    import atheris

    with atheris.instrument_imports(include=["esper"]):
        read = _reader(reader, folder)
        from esper.leyline.errors import EsperError

    def one_input(data: bytes) -> None:
        with contextlib.suppress(EsperError, UnicodeDecodeError):
            read(data)

    corpus = folder / "corpus"
    corpus.mkdir()
    for number, example in enumerate(_examples(reader)):
        (corpus / str(number)).write_bytes(example)
    flags = [f"-max_total_time={seconds}", f"-max_len={MAX_BYTES}", "-rss_limit_mb=2048"]
    atheris.Setup([sys.argv[0], *flags, f"-artifact_prefix={folder}/", str(corpus)], one_input)
    atheris.Fuzz()


def _reader(reader: str, folder: Path) -> Callable[[bytes], object]:
    # Imported here because the source must be instrumented when it is loaded.
    from esper.leyline.jobs import layer_from_text, merge_job
    from esper.leyline.telemetry import decode_event
    from esper.nissa.reading.rendering import render_line

    scratch = folder / "input"

    def through_file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
        def reading(data: bytes) -> object:
            scratch.write_bytes(data)
            return read(scratch)

        return reading

    def configuration(data: bytes) -> object:
        layer = layer_from_text(data.decode(), source="fuzz", is_toml=reader == "toml")
        return merge_job(("fuzz", layer))

    def line(data: bytes) -> object:
        return render_line(data), decode_event(data)

    if reader in ("toml", "json"):
        return configuration
    if reader == "line":
        return line
    # Imported here because these load torch.
    from esper.runtime.formats import read_archive, read_idx
    from esper.simic.training.checkpoints.resuming import load_run

    def archive(path: Path) -> object:
        return read_archive(path, ["data"], max_file_bytes=1 << 16, max_bytes=1 << 20)

    def images(path: Path) -> object:
        return read_idx(path, item_shape=(8, 8), max_items=100)

    return through_file({"checkpoint": load_run, "idx": images, "tar": archive}[reader])


def _examples(reader: str) -> Iterator[bytes]:
    # Imported here because this module is imported before torch may be loaded.
    from tools.soak.damage import SmallLog
    from tools.soak.fuzz import _checkpoint_bytes, _idx_bytes

    match reader:
        case "checkpoint":
            yield _checkpoint_bytes(random.Random(0))
        case "idx":
            yield _idx_bytes(random.Random(0))
        case "toml":
            yield b'[training]\ntask = "digits"\nn_envs = 2\n[run]\nlanes = 2\n'
        case "json":
            yield b'{"training": {"task": "digits", "reward": {"rent_weight": 0.3}}}'
        case "tar":
            yield _archive_bytes()
        case _:
            with tempfile.TemporaryDirectory() as name:
                yield from SmallLog(Path(name)).lines[::10]


def _archive_bytes() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("folder/data")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"abc"))
    return buffer.getvalue()


def fuzz_in_process(reader: str, seconds: int) -> int:
    """Fuzz one reader in a process of its own; return the number of inputs."""
    with tempfile.TemporaryDirectory() as name:
        ended = subprocess.run(
            [sys.executable, "-m", "tools.soak.guided", reader, name, str(seconds)],
            capture_output=True,
            text=True,
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
        num_inputs = fuzz_in_process(reader, seconds)
        yield Row(
            name=f"L17 guided fuzzing of {reader}",
            measured=0,
            target=0,
            unit="crashes",
            note=f"{num_inputs:,} inputs in {seconds} s",
        )


if __name__ == "__main__":
    fuzz(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
