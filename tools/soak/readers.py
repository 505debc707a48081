"""Every reader of untrusted bytes, and an example for each: what the guided fuzzing starts from.

Nothing of Esper is imported at the top: a fuzzer instruments it while it is loaded.
"""

import contextlib
import io
import random
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

READERS = ("checkpoint", "header", "toml", "json", "idx", "tar", "line", "frames")
INSTRUMENTED = ["esper", "websockets", "uvicorn.protocols"]
MAX_BYTES = 4096

HEADER_CHANGES = (
    b'{"log_seq":3,"run_id":"x"}',
    b'{"state":{"rounds_completed":2},"is_best":true}',
    b'{"job":{"training":{"n_envs":2,"telemetry":{"level":"debug"}},"run":{"lanes":3}}}',
    b'{"command":"wait","schema_version":1,"is_announced":false}',
    b'{"task":{"name":"digits","host":{"num_blocks":3},"defaults":{"n_envs":1}}}',
    b'{"task":null,"job":{"training":{"task":"digits","reward":{"rent_weight":0.5}}}}',
)

Read = Callable[[bytes], object]


@contextlib.contextmanager
def open_reader(reader: str, folder: Path) -> Iterator[Read]:
    """Provide what reads bytes, and raises for anything but a refusal in one sentence."""
    with contextlib.ExitStack() as stack:
        read = _reader(reader, folder, stack)
        from esper.leyline.errors import EsperError

        def one_input(data: bytes) -> None:
            with contextlib.suppress(EsperError, UnicodeDecodeError):
                read(data)

        yield one_input


def _reader(reader: str, folder: Path, stack: contextlib.ExitStack) -> Read:
    match reader:
        case "toml" | "json":
            return _configuration(is_toml=reader == "toml")
        case "line":
            return _line()
        case "frames":
            from tools.soak.frame_fuzz import frame_target

            return stack.enter_context(frame_target()).try_input
        case "header":
            return _header(folder)
        case _:
            return _file(reader, folder / "input")


def _configuration(*, is_toml: bool) -> Read:
    from esper.leyline.jobs import layer_from_text, merge_job

    def configuration(data: bytes) -> object:
        return merge_job(("fuzz", layer_from_text(data.decode(), source="fuzz", is_toml=is_toml)))

    return configuration


def _line() -> Read:
    from esper.leyline.telemetry import decode_event
    from esper.nissa.reading.rendering import render_line

    def line(data: bytes) -> object:
        return render_line(data), decode_event(data)

    return line


def _file(reader: str, path: Path) -> Read:
    from esper.runtime.formats import read_archive, read_idx
    from esper.simic.training.checkpoints.resuming import load_run

    def through_file(data: bytes) -> object:
        path.write_bytes(data)
        if reader == "checkpoint":
            return load_run(path)
        if reader == "idx":
            return read_idx(path, item_shape=(8, 8), max_items=100)
        return read_archive(path, ["data"], max_file_bytes=1 << 16, max_bytes=1 << 20)

    return through_file


def _header(folder: Path) -> Read:
    """Return what resumes, up to its first change, a checkpoint whose header JSON changes."""
    import msgspec
    from tests.builders.fingerprints import latest_checkpoint

    from esper.nissa.storage.journal import EVENTS_FILE, plan_cut
    from esper.simic.training.checkpoints.checkpoint_store import (
        encode_checkpoint,
        read_checkpoint,
    )
    from esper.simic.training.checkpoints.log_agreement import check_agreement
    from esper.simic.training.checkpoints.resuming import resolve_job, run_directory_of
    from esper.simic.training.run_opening import command_for

    run_dir = _tiny_run(folder / "runs")
    checkpoint = latest_checkpoint(run_dir)
    assert checkpoint is not None
    whole = read_checkpoint(checkpoint)["header"]
    path = run_dir / "checkpoints" / "fuzzed.pt"
    layer = {"run": {"resume_path": str(path), "telemetry_dir": str(run_dir.parent)}}

    def header(data: bytes) -> None:
        try:
            changes = msgspec.json.decode(data)
        except msgspec.DecodeError:
            return
        path.write_bytes(encode_checkpoint({"header": _merged(whole, changes)}))
        job, loaded = resolve_job([("fuzz", layer)])
        assert loaded is not None
        command_for(job, None, loaded)
        log = run_directory_of(loaded, run_dir.parent) / EVENTS_FILE
        check_agreement(path, loaded.header, log, plan_cut(log, loaded.header.log_seq))

    return header


def _merged(before: object, changes: object) -> object:
    """Return JSON with another merged into it, so that short inputs reach deep into it."""
    if not isinstance(before, dict) or not isinstance(changes, dict):
        return changes
    changed = {name: _merged(before.get(name), value) for name, value in changes.items()}
    return before | changed


def _tiny_run(folder: Path) -> Path:
    from tests.builders.tiny_runs import short_run

    return short_run(folder, n_envs=1, n_episodes=1, max_epochs=1)


def examples(reader: str) -> Iterator[bytes]:
    """Yield inputs that a reader accepts."""
    from tools.soak.damage import SmallLog
    from tools.soak.frame_fuzz import SEEDS
    from tools.soak.fuzz import _checkpoint_bytes, _idx_bytes

    match reader:
        case "checkpoint":
            yield _checkpoint_bytes(random.Random(0))
        case "header":
            yield from HEADER_CHANGES
        case "idx":
            yield _idx_bytes(random.Random(0))
        case "toml":
            yield b'[training]\ntask = "digits"\nn_envs = 2\n[run]\nlanes = 2\n'
        case "json":
            yield b'{"training": {"task": "digits", "reward": {"rent_weight": 0.3}}}'
        case "tar":
            yield _archive_bytes()
        case "frames":
            yield from SEEDS
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
