"""What a port does with its worker's messages, silence and loss, however messages travel."""

import threading

import pytest

from esper.leyline.config import Job
from esper.leyline.errors import (
    ExitCode,
    InterruptedRunError,
    RunFailedError,
    UnreadableMessageError,
    UsageError,
    WorkerLostError,
)
from esper.leyline.workers import (
    Answer,
    Beat,
    Build,
    Reply,
    Request,
    Stacks,
    StacksRequest,
    Stop,
    WorkerError,
    WorkerMessage,
    WorkerRefused,
    WorkerSpec,
)
from esper.tolaria import remote_port
from esper.tolaria.remote_port import RemotePort
from esper.tolaria.stopping import StopFlag

WAIT_S = 20.0


class Double(RemotePort):
    """A port whose worker is the test."""

    def __init__(self, stop: StopFlag | None = None) -> None:
        super().__init__(
            WorkerSpec(index=3, job=Job(), env_ids=(4, 5), lanes=1), stop or StopFlag()
        )
        self.sent: list[Request | Stop | StacksRequest] = []
        self.silent_s = 0.0
        self.ended = threading.Event()

    def close(self) -> None: ...

    def receive(self, message: WorkerMessage) -> None:
        self._take(message)

    def _send(self, message: Request | Stop | StacksRequest) -> None:
        self.sent.append(message)
        if isinstance(message, StacksRequest):
            self._take(Stacks(stacks={"lane-0": "in train"}))

    def _silent_s(self) -> float:
        return self.silent_s

    def _beats(self) -> tuple[Beat, ...]:
        return (Beat(silent_s=self.silent_s, env_id=5),)

    def _end(self) -> None:
        self.ended.set()

    def _report_wait(self, waited_s: float) -> None: ...


def test_a_worker_that_never_starts_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_port, "START_TIMEOUT_S", 0.2)
    with pytest.raises(WorkerLostError, match=r"worker 3: did not start within 0 s; see whether"):
        Double().ready()


@pytest.mark.parametrize(
    ("code", "expected"), [(ExitCode.USAGE, UsageError), (ExitCode.FAILED, RunFailedError)]
)
def test_a_worker_that_refuses_to_start_is_believed(
    code: ExitCode, expected: type[Exception]
) -> None:
    port = Double()
    port.receive(WorkerRefused(message="no data", exit_code=code))
    with pytest.raises(expected, match="no data"):
        port.ready()


@pytest.mark.parametrize(
    ("is_interruption", "expected"), [(True, InterruptedRunError), (False, RunFailedError)]
)
def test_an_error_of_a_command_is_raised_where_its_reply_is_awaited(
    is_interruption: bool, expected: type[Exception]
) -> None:
    port = Double()
    pending, later = port.submit(Build(round=0)), port.submit(Build(round=1))
    error = WorkerError(
        error_type="E", message="broken", traceback="", is_interruption=is_interruption
    )
    port.receive(Answer(seq=0, reply=Reply(error=error)))
    port.receive(Answer(seq=1, reply=Reply()))
    with pytest.raises(expected, match="broken"):
        pending.result(WAIT_S)
    assert later.result(WAIT_S) == Reply()


def test_an_answer_that_is_not_due_is_unreadable() -> None:
    port = Double()
    port.submit(Build(round=0))
    port.submit(Build(round=1))
    with pytest.raises(UnreadableMessageError, match="request 1, which is not due"):
        port.receive(Answer(seq=1, reply=Reply()))


def test_a_stop_is_passed_on_once() -> None:
    stop = StopFlag()
    port = Double(stop)
    port.end_if_silent(60.0)
    stop.set("received SIGINT")
    port.end_if_silent(60.0)
    port.end_if_silent(60.0)
    assert port.sent == [Stop(reason="received SIGINT")]


def test_a_silent_worker_is_ended_and_its_commands_fail_with_its_stacks_and_env() -> None:
    port = Double()
    pending = port.submit(Build(round=0))
    port.silent_s = 61.0
    port.end_if_silent(60.0)
    with pytest.raises(WorkerLostError) as lost:
        pending.result(WAIT_S)
    assert lost.value.reason == "no heartbeat for 61 s"
    assert (lost.value.stacks, lost.value.env_ids) == ("lane-0:\nin train", (5,))
    assert port.ended.wait(WAIT_S)
    # Whatever it still says is of no use, and nothing more is sent to it.
    port.receive(Answer(seq=0, reply=Reply()))
    with pytest.raises(WorkerLostError):
        port.submit(Build(round=1)).result(WAIT_S)
    assert [type(message) for message in port.sent] == [Request, StacksRequest]
