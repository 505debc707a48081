"""`esper-telemetry report` and `serve` from the command line."""

import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.karn.runs import write_run
from tests.karn.story import Story

from esper.leyline.config import DEFAULT_SERVER_ADDRESS
from esper.scripts.telemetry import main


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", Story(num_rounds=1, num_steps=4).lines())


def test_report_writes_the_page_and_says_where(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.html"
    assert main(["report", str(run_dir), "-o", str(output)]) == 0
    assert capsys.readouterr().out == f"wrote {output}\n"
    assert output.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_report_of_nothing_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "out.html")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_serve_names_the_default_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    assert DEFAULT_SERVER_ADDRESS in capsys.readouterr().out


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:99999"])
def test_serve_refuses_a_bad_address(
    run_dir: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(run_dir), "--address", address]) == 2
    assert "expected HOST:PORT" in capsys.readouterr().err


def test_serve_on_a_taken_address_is_one_sentence(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(run_dir), "--address", f"127.0.0.1:{port}"]) == 2
    error = capsys.readouterr().err
    assert f"cannot serve on 127.0.0.1:{port}" in error
    assert error.count("\n") == 1


def test_serve_to_others_needs_a_token(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(run_dir), "--address", "0.0.0.0:0"]) == 2
    assert "token" in capsys.readouterr().err


def test_serve_prints_its_address_and_ends_quietly_when_interrupted(run_dir: Path) -> None:
    command = [sys.executable, "-m", "esper.scripts.telemetry", "serve", str(run_dir)]
    with subprocess.Popen(
        [*command, "--address", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().split()[2]
        with urllib.request.urlopen(address, timeout=20) as response:
            page = response.read().decode()
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=20)
        errors = process.stderr.read()
    assert "<title>Esper</title>" in page
    assert (code, errors.strip()) == (130, "")
