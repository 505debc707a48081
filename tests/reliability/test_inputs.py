"""Inputs that no one would write by hand are refused in one sentence and bounded memory."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.builders.fingerprints import latest_checkpoint
from tests.builders.tiny_runs import short_run
from tests.builders.tiny_tasks import TINY
from tools.soak.children import Child, resume_flags

from esper.leyline.errors import UnreadableFileError
from esper.runtime.formats import read_archive
from esper.simic.training.checkpoints.checkpoint_store import encode_checkpoint, read_checkpoint

WAIT_S = 100
MAX_MEMORY_BYTES = 320 << 20
HUGE_BYTES = 400 << 20
LIMITED = (
    "import resource, sys\n"
    f"resource.setrlimit(resource.RLIMIT_AS, ({MAX_MEMORY_BYTES}, {MAX_MEMORY_BYTES}))\n"
    "from esper.scripts import commands\n"
    "name = sys.argv.pop(1)\n"
    "sys.exit(getattr(commands, name)())\n"
)


def run_limited(
    command: str, *arguments: str | bytes | Path
) -> "subprocess.CompletedProcess[bytes]":
    """Run a command in 320 MiB of address space."""
    return subprocess.run(
        [sys.executable, "-c", LIMITED, command, *arguments],
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )


def assert_refused(ended: "subprocess.CompletedProcess[bytes]", *codes: int) -> None:
    assert ended.returncode in codes, ended.stderr.decode(errors="replace")
    assert b"Traceback" not in ended.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return short_run(tmp_path_factory.mktemp("run"), TINY)


@pytest.fixture
def run_dir(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "runs" / whole.name)
    return tmp_path / "runs" / whole.name


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/full"])
def test_endless_configuration_is_refused(path: str) -> None:
    ended = run_limited("train", "config", "show", "--config", path)
    assert_refused(ended, 2)
    assert b"not a configuration: over 1048576 bytes" in ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--set", "training.lr=" + "9" * 5_000],
        ["--set", "training.n_envs=" + "9" * 5_000],
        ["--envs", "9" * 5_000],
        ["--group", b"\xff\xfe"],
        ["--telemetry-dir", b"\xff\xfe"],
        ["--data-dir", b"/\xff"],
        ["--resume", b"\xff.pt"],
        ["--config", b"\xff.toml"],
        ["--task", b"\xff"],
        ["--set", b"\xff=\xff"],
        ["--set", 'run.telemetry_dir="a\\u0000b"'],
        ["--set", 'run.serve_token="@a\\u0000b"'],
        ["--serve", "9" * 5_000],
    ],
    ids=lambda it: repr(it)[:40],
)
def test_odd_values_are_refused_in_one_sentence(arguments: list[str | bytes]) -> None:
    ended = run_limited("train", "config", "show", *arguments)
    assert_refused(ended, 0, 2)
    assert ended.returncode == 2 or "--resume" in arguments


@pytest.mark.parametrize("command", ["count", "validate", "tail", "runs", "report", "serve"])
def test_name_that_no_file_can_have_is_refused_in_one_sentence(command: str) -> None:
    ended = run_limited("telemetry", command, "x" * 5_000)
    assert_refused(ended, 2)
    assert ended.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [["--address", b"\xff:0"], ["--address", "127.0.0.1:0", "--token", b"\xff"]],
    ids=["address", "token"],
)
def test_server_with_an_odd_address_or_token_is_refused(
    arguments: list[str | bytes], run_dir: Path
) -> None:
    ended = run_limited("telemetry", "serve", run_dir, *arguments)
    assert_refused(ended, 2)
    assert ended.stderr.count(b"\n") == 1


def test_query_prints_its_rows_and_nothing_else(run_dir: Path) -> None:
    command = [sys.executable, "-c", "from esper.scripts.commands import telemetry as t; exit(t())"]
    arguments = ["query", run_dir, "select count(*) as n from runs"]
    ended = subprocess.run(
        [*command, *arguments], capture_output=True, timeout=WAIT_S, check=False, text=True
    )
    assert (ended.returncode, ended.stdout.split(), ended.stderr) == (0, ["n", "1"], "")


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_integer_of_5000_digits_in_a_file_is_refused(suffix: str, tmp_path: Path) -> None:
    digits = "9" * 5_000
    text = (
        f"[training]\nn_envs = {digits}\n"
        if suffix == ".toml"
        else (f'{{"training": {{"n_envs": {digits}}}}}')
    )
    path = tmp_path / f"config{suffix}"
    path.write_text(text)
    assert_refused(run_limited("train", "config", "show", "--config", path), 2)


def test_seeds_of_5000_digits_are_refused() -> None:
    for text in ("9" * 5_000, "1-" + "9" * 5_000, "0-99999999999"):
        assert_refused(run_limited("train", "compare", "--seeds", text), 2)


@pytest.mark.parametrize("command", ["count", "validate", "tail", "diff", "report"])
def test_name_that_is_not_utf8_is_read_like_any_other(
    command: str, run_dir: Path, tmp_path: Path
) -> None:
    odd = os.path.join(os.fsencode(tmp_path), b"\xff\xfe")
    os.rename(run_dir, odd)
    rest: list[str | bytes | Path] = {
        "diff": [odd],
        "report": ["-o", tmp_path / "report.html"],
        "count": ["--json"],
    }.get(command, [])
    assert_refused(run_limited("telemetry", command, odd, *rest), 0)


@pytest.mark.parametrize("command", ["count", "validate", "tail"])
@pytest.mark.parametrize("name", ["events.jsonl", "events.crc"])
def test_line_larger_than_memory_is_read_in_bounded_memory(
    name: str, command: str, run_dir: Path
) -> None:
    os.truncate(run_dir / name, HUGE_BYTES)  # a hole: takes no space, reads as zeros
    rest = ("--type", "RUN_FINISHED") if command == "tail" else ()
    assert_refused(run_limited("telemetry", command, run_dir, *rest), 0, 1, 2)


def test_sink_is_continued_behind_a_huge_torn_line(run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    command = ("telemetry", "export", run_dir, "--to", f"jsonl:{out}")
    assert_refused(run_limited(*command), 0)
    whole = out.read_bytes()
    os.truncate(out, HUGE_BYTES)
    assert_refused(run_limited(*command, "--continue"), 0)
    assert out.read_bytes() == whole


def test_resume_beside_a_huge_checksum_file(run_dir: Path, tmp_path: Path) -> None:
    os.truncate(run_dir / "events.crc", HUGE_BYTES)
    ended = Child(resume_flags(tmp_path / "runs"), tmp_path / "output.txt").wait()
    assert ended.code == 0, ended.output
    assert (run_dir / "events.crc").stat().st_size < HUGE_BYTES


@pytest.mark.parametrize("run_id", ["**", "../..", "[", "\x1b[2J", "a/b"])
def test_run_id_of_a_checkpoint_is_no_pattern(run_id: str, run_dir: Path, tmp_path: Path) -> None:
    checkpoint = latest_checkpoint(run_dir)
    assert checkpoint is not None
    contents = read_checkpoint(checkpoint)
    del contents["version"]
    contents["header"]["run_id"] = run_id
    foreign = tmp_path / "foreign.pt"
    foreign.write_bytes(encode_checkpoint(contents))
    flags = ["ppo", "--resume", str(foreign), "--telemetry-dir", str(tmp_path / "runs")]
    # Quiet, as the choice of an engine is announced before the run's directory is looked for.
    ended = Child([*flags, "--quiet"], tmp_path / "output.txt").wait()
    assert (ended.code, ended.output.count("\n")) == (2, 1), ended.output
    assert "the directory of its run" in ended.output
    assert "\x1b" not in ended.output


def test_checkpoint_of_more_rounds_than_can_be_counted_is_refused(
    run_dir: Path, tmp_path: Path
) -> None:
    checkpoint = latest_checkpoint(run_dir)
    assert checkpoint is not None
    contents = read_checkpoint(checkpoint)
    del contents["version"]
    contents["header"]["state"]["rounds_completed"] = 10**100
    checkpoint.write_bytes(encode_checkpoint(contents))
    flags = [*resume_flags(tmp_path / "runs"), "--quiet"]
    ended = Child(flags, tmp_path / "output.txt").wait()
    assert (ended.code, ended.output.count("\n")) == (2, 1), ended.output
    assert "but its event" in ended.output


def chained_headers(path: Path, number: int) -> None:
    """Write an archive of headers that each announce another header."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1
    with path.open("wb") as file:
        for _ in range(number):
            file.write(header.tobuf(tarfile.GNU_FORMAT) + b"x" + bytes(511))


def test_archive_of_chained_headers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cifar.tar"
    chained_headers(path, 5_000)
    with pytest.raises(UnreadableFileError, match="chained too deeply"):
        read_archive(path, ["x"], max_file_bytes=10, max_bytes=1 << 30)


def test_pipe_in_the_data_directory_is_refused(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    for name in ("train-images-idx3-ubyte", "text.txt", "cifar-10-binary.tar.gz"):
        os.mkfifo(data_dir / name)
    for task in ("fashion_growth", "tinystories", "cifar_baseline"):
        flags = ["wait", "--task", task, "--data", "real", "--data-dir", str(data_dir)]
        ended = Child([*flags, "--telemetry-dir", str(tmp_path)], tmp_path / "output.txt").wait()
        assert (ended.code, ended.output.count("\n")) == (2, 1), ended.output


def test_checkpoint_that_is_a_pipe_or_endless_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    for path in (tmp_path / "pipe.pt", Path("/dev/zero")):
        ended = Child(["ppo", "--resume", str(path)], tmp_path / "output.txt").wait()
        assert (ended.code, ended.output.count("\n")) == (2, 1), ended.output


@pytest.mark.parametrize("name", ["operational.jsonl", "run.json"])
def test_report_does_not_wait_for_a_pipe_among_the_files_of_a_run(
    name: str, run_dir: Path, tmp_path: Path
) -> None:
    (run_dir / name).unlink(missing_ok=True)
    os.mkfifo(run_dir / name)
    command = [sys.executable, "-m", "esper.scripts.telemetry", "report", run_dir]
    ended = subprocess.run(
        [*command, "-o", tmp_path / "report.html"],
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert_refused(ended, 2)
    assert b"not a regular file" in ended.stderr
