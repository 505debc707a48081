"""Fuzzes readers and the websocket: no code execution, bounded memory, one-line errors."""

import contextlib
import gzip
import io
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from tools.bench.memory import peak_kib
from tools.bench.rows import Row
from tools.soak.damage import SmallLog
from tools.soak.frames import RawClient
from tools.soak.serving import served_hub

from esper.leyline.errors import EsperError
from esper.leyline.jobs import layer_from_text, merge_job
from esper.leyline.telemetry import decode_event
from esper.nissa.analysis.normalizing import normal_form
from esper.nissa.bus.event_filter import parse_subscription
from esper.nissa.reading.foreign import read_foreign
from esper.nissa.storage.blocks import parse_commit_record
from esper.nissa.storage.journal import EVENTS_FILE
from esper.nissa.storage.run_directory import MANIFEST_FILE, read_manifest
from esper.runtime.formats import read_idx
from esper.runtime.tasks import all_tasks
from esper.scripts.telemetry import main as telemetry_main
from esper.simic.training.checkpoints.checkpoint_store import encode_checkpoint, read_checkpoint

QUICK_INPUTS, FULL_INPUTS = 3_000, 100_000
MAX_GROWTH_KIB = 48 << 10
_COUNT = """
from esper.scripts.telemetry import main
main(["count", "{path}"])
"""
TOKENS = (
    b"null",
    b"-1",
    b"1e999",
    b"NaN",
    b'""',
    b"[" * 2_000,
    b"{" * 50,
    b"\x00",
    b"\xff",
    b"9" * 40,
    b'"event_type":',
    b"\n",
    b"=",
)
READER_COMMANDS = ("count", "validate", "report")


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return a mutation of valid bytes."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 1:
                del changed[place : place + rng.randint(1, 16)]
            case 2:
                changed[place:place] = rng.choice(TOKENS)
            case 3:
                changed[place:place] = changed[: rng.randint(0, 64)]
            case _:
                del changed[place:]
    return bytes(changed)


class Target(NamedTuple):
    """A reader of untrusted bytes, a valid example, and its share of the attempts."""

    name: str
    example: Callable[[random.Random], bytes]
    read: Callable[[bytes], object]
    share: float


class Executed:
    """Its pickle calls `print` when loaded; readers must not load it."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("a checkpoint was executed",)


def _config(text: bytes) -> None:
    layer = layer_from_text(text.decode(), source="fuzz", is_toml=True)
    merge_job(("fuzz", layer), tasks=all_tasks())


def _checkpoint_bytes(_: random.Random) -> bytes:
    return encode_checkpoint({"header": {"log_seq": 3}, "agent": {"weights": torch.ones(4)}})


def _idx_bytes(_: random.Random) -> bytes:
    return bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (2, 8, 8)) + bytes(128)


def targets(folder: Path, log: SmallLog) -> list[Target]:
    """Return every reader of untrusted bytes."""
    manifest = (log.run_dir / MANIFEST_FILE).read_bytes()
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)

    def through_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
        def reading(data: bytes) -> object:
            (scratch / name).write_bytes(data)
            return read(scratch / name)

        return reading

    def line(rng: random.Random) -> bytes:
        return rng.choice(log.lines)

    def record(rng: random.Random) -> bytes:
        return rng.choice(log.checksums.splitlines(keepends=True))

    subscription = b'{"since":3,"types":["SEED_PRUNED"],"envs":[1],"batch":true}'
    toml = b'[training]\ntask = "digits"\nn_envs = 2\n[run]\nlanes = 2\n'
    idx = through_file("x.idx", lambda path: read_idx(path, item_shape=(8, 8), max_items=100))
    return [
        Target("event", line, decode_event, 0.3),
        Target("normal form", line, normal_form, 0.15),
        Target("foreign line", line, read_foreign, 0.15),
        Target("commit record", record, parse_commit_record, 0.1),
        Target("subscription", lambda _: subscription, parse_subscription, 0.1),
        Target("configuration", lambda _: toml, _config, 0.1),
        Target(
            "manifest",
            lambda _: manifest,
            through_file(MANIFEST_FILE, lambda path: read_manifest(path.parent)),
            0.04,
        ),
        Target("checkpoint", _checkpoint_bytes, through_file("x.pt", read_checkpoint), 0.03),
        Target("images", _idx_bytes, idx, 0.03),
    ]


def try_target(target: Target, rng: random.Random, num_times: int) -> None:
    """Read mutated bytes; only user-facing errors are allowed."""
    for _ in range(num_times):
        data = mutated(target.example(rng), rng)
        with contextlib.suppress(EsperError, UnicodeDecodeError):
            target.read(data)


def try_readers(log: SmallLog, rng: random.Random, num_times: int) -> None:
    """Run the commands on mutated runs: an exit code and at most one line of error output."""
    for _ in range(num_times):
        log.put(mutated(log.data, rng), mutated(log.checksums, rng))
        command = rng.choice(READER_COMMANDS)
        rest = ["-o", str(log.run_dir / "report.html")] if command == "report" else []
        complaints = io.StringIO()
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(complaints),
        ):
            code = telemetry_main([command, str(log.run_dir / EVENTS_FILE), *rest])
        assert code in (0, 1, 2), f"{command}: exit code {code}: {complaints.getvalue()}"
        assert "Traceback" not in complaints.getvalue()


def try_websocket(folder: Path, rng: random.Random, num_times: int) -> None:
    """Send random bytes instead of frames; the server must stay available."""
    with served_hub(folder / "served") as served:
        for _ in range(num_times):
            with RawClient(served.port) as client:
                assert client.request() == 101
                client.send(rng.randbytes(rng.randint(1, 200)))
        with RawClient(served.port) as client:
            assert client.request() == 101


def check_nothing_is_executed(folder: Path) -> None:
    """Read a checkpoint whose pickle would execute code."""
    path = folder / "evil.pt"
    torch.save({"version": 1, "header": Executed()}, path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(EsperError):
        read_checkpoint(path)
    assert printed.getvalue() == "", "a checkpoint was executed"


def check_bomb(folder: Path, num_bytes: int) -> None:
    """Count a compressed log of zeros with this unpacked size; memory must stay bounded."""
    path = folder / "bomb.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=9) as stream:
        for _ in range(num_bytes >> 20):
            stream.write(bytes(1 << 20))
    empty = folder / "empty.jsonl"
    empty.touch()
    growth_kib = peak_kib(_COUNT.format(path=path)) - peak_kib(_COUNT.format(path=empty))
    assert growth_kib < MAX_GROWTH_KIB, f"the bomb went off: {growth_kib / 1024:.0f} MiB"


def rows(is_quick: bool) -> Iterator[Row]:
    """Fuzz every reader: row L8."""
    rng = random.Random(8)
    num_inputs = QUICK_INPUTS if is_quick else FULL_INPUTS
    num_readers, num_frames = (20, 50) if is_quick else (2_000, 5_000)
    num_done = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = SmallLog(folder)
        for target in targets(folder, log):
            num_times = int(num_inputs * target.share)
            try_target(target, rng, num_times)
            num_done += num_times
        try_readers(log, rng, num_readers)
        try_websocket(folder, rng, num_frames)
        check_nothing_is_executed(folder)
        check_bomb(folder, (64 if is_quick else 1024) << 20)
    yield Row(
        name="L8 fuzzed inputs without a traceback",
        measured=num_done + num_readers + num_frames,
        target=num_inputs,
        unit="inputs",
        is_at_least=True,
        note=f"nine decoders, {num_readers} runs read by commands, {num_frames} websockets, "
        "a decompression bomb",
    )
