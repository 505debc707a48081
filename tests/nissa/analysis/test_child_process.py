"""Requests to a real child: results, errors, output of its own, death, and its end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from esper.leyline.errors import ContractError, RunFailedError, UsageError
from esper.nissa.analysis.child_process import ChildProcess

_MODULE = """
import msgspec
from esper.nissa.analysis.child_process import serve
from esper.leyline import errors

class Number(msgspec.Struct):
    value: int
    error: str = ""

def answer(line):
    number = msgspec.json.decode(line, type=Number)
    print("this is noise")
    if number.error:
        raise getattr(errors, number.error)("no: %d" % number.value)
    return Number(number.value + 1)

if __name__ == "__main__":
    serve(answer)
"""


class Number(msgspec.Struct):
    value: int
    error: str = ""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChildProcess]:
    (tmp_path / "adding_child.py").write_text(_MODULE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    process = ChildProcess("adding_child")
    yield process
    process.kill()


def ask(child: ChildProcess, request: Number) -> Number | None:
    child.send(request)
    return child.receive(Number)


def test_child_answers_one_request_after_another_despite_its_own_output(
    child: ChildProcess,
) -> None:
    assert [ask(child, Number(value)) for value in (1, 5)] == [Number(2), Number(6)]


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ("UsageError", UsageError),
        ("ConfigError", UsageError),
        ("ContractError", ContractError),
        ("RunFailedError", RunFailedError),
    ],
)
def test_error_of_the_child_is_raised_here_and_the_child_goes_on(
    child: ChildProcess, raised: str, expected: type[Exception]
) -> None:
    with pytest.raises(expected, match="no: 3"):
        ask(child, Number(3, raised))
    assert ask(child, Number(3)) == Number(4)


def test_killed_child_has_no_reply_but_an_exit_code(child: ChildProcess) -> None:
    assert ask(child, Number(1)) == Number(2)
    os.kill(child.pid, signal.SIGKILL)
    assert ask(child, Number(1)) is None
    assert child.exit_code() == -signal.SIGKILL


@pytest.mark.usefixtures("child")
def test_child_ends_when_its_stdin_is_closed() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "adding_child"],
        input=msgspec.json.encode(Number(1)) + b"\n",
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr.count(b"Traceback")) == (0, 0)
