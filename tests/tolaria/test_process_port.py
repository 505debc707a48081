"""The driver's end of a worker process, facing a worker that does not keep to the protocol."""

import os
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.leyline.config import Job
from esper.leyline.errors import InterruptedRunError, WorkerLostError
from esper.leyline.workers import Answer, Build, Reply, Stacks, WorkerSpec
from esper.tolaria.fork_server import ForkServer
from esper.tolaria.process_port import ProcessPort
from esper.tolaria.stopping import StopFlag

WAIT_S = 20.0
NO_PID = 2**22 + 1
"""Beyond the largest process id of Linux."""
SPEC = WorkerSpec(index=3, job=Job(), env_ids=(0,), lanes=1)


class NoServer(ForkServer):
    """Starts nothing; the test is the worker."""

    def __init__(self) -> None:
        super().__init__("no:worker")

    def fork(self, descriptors: Sequence[int]) -> int:
        self.end = socket.socket(fileno=os.dup(descriptors[0]))
        return NO_PID

    def reap(self, pid: int) -> str:
        self.end.close()
        return "exited with code 0"


def answered_with(data: bytes) -> WorkerLostError:
    """Return how a port reports a worker that sends `data` instead of its first reply."""
    server = NoServer()
    port = ProcessPort(SPEC, server, StopFlag())
    pending = port.submit(Build(round=0))
    server.end.sendall(data)
    with pytest.raises(WorkerLostError) as raised:
        pending.result(WAIT_S)
    with pytest.raises(WorkerLostError):
        port.ready()
    port.close()
    return raised.value


def framed(message: bytes) -> bytes:
    return struct.pack("<Q", len(message)) + message


UNREADABLE = {
    "no MessagePack": b"\xc1",
    "another type": msgspec.msgpack.encode({"type": "Stop", "reason": "x"}),
    "nested too deeply": b"\x91" * 100_000,
    "an answer to another request": msgspec.msgpack.encode(Answer(seq=7, reply=Reply())),
}


@pytest.mark.parametrize("message", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_worker_that_sends_what_cannot_be_read_is_lost(message: bytes) -> None:
    assert "sent a message that" in answered_with(framed(message)).reason


def test_an_answer_without_a_request_loses_the_worker() -> None:
    first = framed(msgspec.msgpack.encode(Stacks(stacks={})))
    stray = [framed(msgspec.msgpack.encode(Answer(seq=seq, reply=Reply()))) for seq in (1, 2)]
    assert "sent a message that" in answered_with(first + b"".join(stray)).reason


def test_a_message_that_claims_to_be_larger_than_memory_loses_the_worker() -> None:
    assert answered_with(struct.pack("<Q", 2**62)).reason == "exited with code 0"


@given(message=st.binary(max_size=40))
@settings(deadline=None, max_examples=30)
def test_no_bytes_of_a_worker_leave_the_driver_waiting(message: bytes) -> None:
    assert answered_with(framed(message)).index == SPEC.index


def sleep_for_ever(descriptors: Sequence[int]) -> int:
    while True:
        time.sleep(1)


class PatientServer(ForkServer):
    """Waits much longer than the real one before it kills a worker that does not end."""

    def reap(self, pid: int) -> str:
        deadline_s = time.monotonic() + WAIT_S
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        return super().reap(pid)


def test_a_stop_does_not_wait_for_a_worker_that_hangs_while_it_starts() -> None:
    stop, server = StopFlag(), PatientServer(f"{__name__}:sleep_for_ever")
    port = ProcessPort(SPEC, server, stop)
    stop.set("received SIGINT")
    with pytest.raises(InterruptedRunError, match="SIGINT"):
        port.ready()
    port.close()
    server.close()
    assert not Path(f"/proc/{port.pid}").exists()
