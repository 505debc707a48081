"""Lost workers are replaced, brought to the same state, and compared."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.leyline import workers
from esper.leyline.engine_payloads import WorkerRestarted
from esper.leyline.errors import InterruptedRunError, RunFailedError, WorkerLostError
from esper.leyline.messages import EnvTestResult, Phase
from esper.leyline.workers import (
    Build,
    Command,
    Quarantine,
    Reply,
    Train,
    Validate,
)
from esper.tolaria.lanes import Lane
from esper.tolaria.replay import MAX_LOSSES, MAX_REPLAY_LOSSES, ReplayingPort

WAIT_S = 20.0


class CountingPort:
    """A worker whose replies depend on all commands of its round; ends where a test asks for it."""

    env_ids = (0, 2)
    lanes: tuple[Lane, ...] = ()

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.number = number
        self.done: list[Command] = []
        self.quarantined: set[int] = set()
        self.is_lost = False
        self.is_closed = False

    def env_ids_of(self, lane: Lane) -> tuple[int, ...]:
        return ()

    def submit(self, command: Command) -> "Future[Reply]":
        future: Future[Reply] = Future()
        if self.is_lost or self.world.is_fatal(self, command):
            self.is_lost = True
            future.set_exception(WorkerLostError(1, "was killed by SIGKILL", env_ids=(2,)))
        elif (error := self.world.error_for(command)) is not None:
            future.set_exception(error)
        else:
            future.set_result(self._reply(command))
        return future

    def _reply(self, command: Command) -> Reply:
        if isinstance(command, Build):
            self.done.clear()
        if isinstance(command, Quarantine):
            self.quarantined |= {failure.env_id for failure in command.failures}
            return Reply()
        self.done.append(command)
        bias = self.world.bias_of(self.number)
        return Reply(
            tests=tuple(
                EnvTestResult(
                    env_id=env_id, loss=bias, accuracy_pct=0.0, num_samples=len(self.done)
                )
                for env_id in self.env_ids
                if env_id not in self.quarantined
            )
        )

    def report_restarts_to(self, report: object) -> None: ...

    def end_if_silent(self, deadline_s: float) -> None: ...

    def close(self) -> None:
        self.is_closed = True


class World:
    """Starts workers and decides which of them end when."""

    def __init__(self) -> None:
        self.ports: list[CountingPort] = []
        self.restarts: list[WorkerRestarted] = []
        self.fatal: Callable[[CountingPort, Command], bool] = lambda port, command: False
        self.bias: Callable[[int], float] = lambda number: 0.0
        self.error: Exception | None = None

    def start(self) -> CountingPort:
        self.ports.append(CountingPort(self, len(self.ports)))
        return self.ports[-1]

    def is_fatal(self, port: CountingPort, command: Command) -> bool:
        return self.fatal(port, command)

    def bias_of(self, number: int) -> float:
        return self.bias(number)

    def error_for(self, command: Command) -> Exception | None:
        return self.error if isinstance(command, Validate) else None

    def port(self) -> ReplayingPort:
        port = ReplayingPort(self.start, index=1)
        port.report_restarts_to(self.restarts.append)
        return port


ROUND: tuple[Command, ...] = (
    Build(round=0),
    Train(step=0),
    workers.Test(step=0),
    Train(step=1),
    workers.Test(step=1),
)


def carried_out(port: ReplayingPort, commands: tuple[Command, ...] = ROUND) -> list[Reply]:
    return [port.submit(command).result(WAIT_S) for command in commands]


@pytest.mark.parametrize("fatal", range(len(ROUND)))
@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_worker_that_is_lost_at_any_command_is_replaced_without_a_trace_in_the_results(
    fatal: int, is_ahead: bool
) -> None:
    undisturbed = carried_out(World().port())
    world = World()
    world.fatal = lambda port, command: port.number == 0 and len(port.done) == fatal
    port = world.port()

    if is_ahead:
        futures = [port.submit(command) for command in ROUND]
        replies = [future.result(WAIT_S) for future in futures]
    else:
        replies = carried_out(port)

    assert replies == undisturbed
    assert len(world.ports) == 2
    assert world.ports[0].is_closed
    (restart,) = world.restarts
    assert (restart.worker, restart.env_ids) == (1, (0, 2))
    assert restart.reason == "was killed by SIGKILL"
    assert restart.num_commands_replayed == fatal


@settings(deadline=None, max_examples=50)
@given(losses=st.lists(st.integers(0, len(ROUND) - 1), max_size=4))
def test_losses_during_a_replay_leave_no_trace_either(losses: list[int]) -> None:
    """Each worker in turn is lost at its own command, unless it has never been answered before."""
    undisturbed = carried_out(World().port())
    world = World()
    answered = threading.Event()
    plan = dict(enumerate(losses))

    def fatal(port: CountingPort, command: Command) -> bool:
        return answered.is_set() and len(port.done) == plan.get(port.number, -1)

    world.fatal = fatal
    port = world.port()
    first = carried_out(port, ROUND[:-1])
    answered.set()
    last = port.submit(ROUND[-1]).result(WAIT_S)

    if losses.count(len(ROUND) - 1) < MAX_LOSSES:  # else an env is quarantined: see below
        assert [*first, last] == undisturbed


def test_commands_of_the_round_before_are_forgotten() -> None:
    world = World()
    port = world.port()
    carried_out(port)
    carried_out(port, (Build(round=1), Train(step=0)))
    world.fatal = lambda lost, command: lost.number == 0

    port.submit(workers.Test(step=0)).result(WAIT_S)

    assert world.ports[1].done == [Build(round=1), Train(step=0), workers.Test(step=0)]


def test_a_replacement_that_replies_differently_ends_the_run() -> None:
    world = World()
    world.bias = float
    world.fatal = lambda port, command: port.number == 0 and len(port.done) == 2
    port = world.port()
    carried_out(port, ROUND[:2])

    with pytest.raises(RunFailedError, match="other results than before"):
        port.submit(ROUND[2]).result(WAIT_S)
    assert world.restarts == []


def test_a_second_loss_at_the_same_command_quarantines_the_env_it_was_working_on() -> None:
    world = World()
    world.fatal = lambda port, command: command == Train(step=1) and 2 not in port.quarantined
    port = world.port()

    replies = carried_out(port)

    assert len(world.ports) == 3
    assert [test.env_id for test in replies[2].tests] == [0, 2]
    assert [test.env_id for test in replies[4].tests] == [0]
    sent = [entry.command for entry in port._log if isinstance(entry.command, Quarantine)]
    (failure,) = sent[0].failures
    assert (failure.env_id, failure.phase, failure.step) == (2, Phase.TRAIN, 1)
    assert "2 workers were lost" in failure.message


def test_a_command_that_worked_before_is_given_up_after_many_losses() -> None:
    world = World()
    port = world.port()
    carried_out(port, ROUND[:3])
    world.fatal = lambda lost, command: lost.number == 0 or command == Train(step=0)

    with pytest.raises(RunFailedError, match=f"{MAX_REPLAY_LOSSES} workers in a row were lost"):
        port.submit(Train(step=1)).result(WAIT_S)


def test_losses_between_which_a_worker_caught_up_are_not_in_a_row() -> None:
    commands = (Build(round=0), *(Train(step=step) for step in range(2 * MAX_REPLAY_LOSSES)))
    world = World()
    # At each step one worker is lost, and its first replacement at the start of the replay.
    world.fatal = lambda lost, command: (
        command == Train(step=lost.number // 2)
        if lost.number % 2 == 0
        else isinstance(command, Build)
    )

    assert carried_out(world.port(), commands) == carried_out(World().port(), commands)
    assert len(world.ports) == 4 * MAX_REPLAY_LOSSES + 1


def test_a_stop_during_the_replay_reaches_the_caller() -> None:
    world = World()
    port = world.port()
    carried_out(port, ROUND[:2])
    world.fatal = lambda lost, command: lost.number == 0
    world.error = InterruptedRunError("SIGTERM")

    with pytest.raises(InterruptedRunError, match="SIGTERM"):
        port.submit(Validate(step=0)).result(WAIT_S)


def test_a_replacement_that_cannot_be_started_ends_the_run_with_its_error() -> None:
    world = World()
    port = world.port()
    carried_out(port, ROUND[:2])
    world.fatal = lambda lost, command: True

    def refuse() -> CountingPort:
        raise RunFailedError("no memory for another worker")

    port._start = refuse
    with pytest.raises(RunFailedError, match="no memory for another worker"):
        port.submit(ROUND[2]).result(WAIT_S)


def test_workers_that_are_lost_while_they_start_do_not_blame_an_env() -> None:
    world = World()
    port = world.port()
    carried_out(port, ROUND[:2])
    world.fatal = lambda lost, command: lost.number == 0
    attempts = iter([True, True, True, False])

    def start() -> CountingPort:
        if next(attempts):
            raise WorkerLostError(1, "exited with code 1")
        return world.start()

    port._start = start

    assert carried_out(port, ROUND[2:]) == carried_out(World().port())[2:]
    assert not any(isinstance(entry.command, Quarantine) for entry in port._log)


def test_a_loss_after_closing_is_not_repaired() -> None:
    world = World()
    port = world.port()
    port.close()
    world.fatal = lambda lost, command: True
    port.submit(Build(round=0))
    assert len(world.ports) == 1
