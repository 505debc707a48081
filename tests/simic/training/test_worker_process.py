"""Runs whose envs live in processes of their own: the same bits, and lost workers replaced."""

import io
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.builders.tiny_runs import tiny_job, tiny_run
from tests.simic.training.runs import last_checkpoint, operational_events
from tests.simic.training.small_runs import read_events
from tests.simic.training.worker_runs import digits_job, facts_of, note_worker_pids, run_facts

from esper.leyline.config import EngineKind
from esper.leyline.errors import ConfigError, InterruptedRunError
from esper.leyline.payloads import EnvFailed, EpisodeOutcome
from esper.leyline.telemetry import EventType
from esper.leyline.workers import (
    Apply,
    Build,
    Command,
    Request,
    Train,
    WorkerIdentity,
    WorkerReady,
    WorkerSpec,
    decode_from_worker,
    encode,
)
from esper.runtime.batches import SharedBatchIterator
from esper.simic.training import vectorized
from esper.simic.training.assembly import engines
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.worker_setup import prepare_worker
from esper.simic.training.checkpoints.resuming import load_run
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.parallel_env_state import ParallelEnvState
from esper.simic.training.vectorized import run_job
from esper.simic.training.worker_process import serve
from esper.tolaria.fork_server import ForkServer
from esper.tolaria.process_port import ProcessPort
from esper.tolaria.pulse import Pulse
from esper.tolaria.stopping import StopFlag
from esper.tolaria.wire import Wire

Facts = tuple[list[bytes], str, bytes]


@pytest.fixture(scope="module")
def on_threads(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return facts_of(digits_job(tmp_path_factory.mktemp("threads"), engine="threads", lanes=2))


@pytest.mark.parametrize(("workers", "lanes"), [(1, 1), (3, 2), (8, 1)])
def test_processes_give_the_same_events_weights_and_network_as_threads(
    workers: int, lanes: int | None, on_threads: Facts, tmp_path: Path
) -> None:
    job = digits_job(tmp_path, engine="processes", workers=workers, lanes=lanes)
    assert facts_of(job) == on_threads


class Killer:
    """Kills workers with SIGKILL when they are sent a command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, is_fatal: Callable[[int, Command], bool]):
        self.num_killed = 0
        submit = ProcessPort.submit

        def killing(port: ProcessPort, command: Command) -> Any:
            future = submit(port, command)
            if is_fatal(self.num_killed, command):
                self.num_killed += 1
                os.kill(port.pid, signal.SIGKILL)
            return future

        monkeypatch.setattr(ProcessPort, "submit", killing)


@pytest.mark.parametrize("step", [0, 2])
def test_a_worker_that_is_killed_in_the_middle_of_a_round_leaves_no_trace_in_the_result(
    step: int, on_threads: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer = Killer(
        monkeypatch, lambda killed, command: killed == 0 and command == Train(step=step)
    )
    job = digits_job(tmp_path, engine="processes", workers=2)

    run_dir = run_job(job).run_dir

    assert killer.num_killed == 1
    assert run_facts(run_dir) == on_threads
    (event,) = operational_events(run_dir)
    assert event["event_type"] == EventType.WORKER_RESTARTED
    assert event["data"]["reason"] == "was killed by SIGKILL"


def test_a_worker_that_is_suspended_between_two_commands_is_replaced(
    on_threads: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, suspended = ProcessPort.submit, list[int]()

    def suspending(port: ProcessPort, command: Command) -> Any:
        is_decision = isinstance(command, Apply) and command.decision.step == 1
        if is_decision and not suspended:
            suspended.append(port.pid)
            os.kill(port.pid, signal.SIGSTOP)  # it waits for this decision: its lanes are idle
        return submit(port, command)

    monkeypatch.setattr(ProcessPort, "submit", suspending)
    job = digits_job(tmp_path, engine="processes", workers=2, lane_deadline_s=5.0)

    run_dir = run_job(job).run_dir

    assert run_facts(run_dir) == on_threads
    (event,) = operational_events(run_dir)
    assert event["data"]["reason"].startswith("no heartbeat for")


def test_workers_killed_while_they_repeat_a_round_leave_no_trace_either(
    on_threads: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fatal = {0: Train(step=2), 1: Train(step=0), 2: Train(step=1)}
    killer = Killer(monkeypatch, lambda killed, command: fatal.get(killed) == command)

    result = facts_of(digits_job(tmp_path, engine="processes", workers=2))

    assert killer.num_killed == 3
    assert result == on_threads


def test_a_run_interrupted_on_one_engine_is_resumed_on_another(
    on_threads: Facts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, rounds, submit = threading.Event(), count(), ProcessPort.submit

    def stopping(port: ProcessPort, command: Command) -> Any:
        if command == Train(step=1) and next(rounds) == 2:  # the second round's, of two workers
            stop.set()
        return submit(port, command)

    monkeypatch.setattr(ProcessPort, "submit", stopping)
    with pytest.raises(InterruptedRunError):
        run_job(digits_job(tmp_path, engine="processes", workers=2), shutdown_event=stop)
    (run_dir,) = tmp_path.iterdir()
    loaded = load_run(last_checkpoint(run_dir))
    assert loaded.state.rounds_completed == 1

    options = msgspec.structs.replace(loaded.job.run, engine=EngineKind.THREADS)
    run_job(msgspec.structs.replace(loaded.job, run=options), resumed=loaded)

    assert run_facts(run_dir) == on_threads


@pytest.mark.parametrize("field", ["data", "machine_kind", "task", "esper", "protocol", "python"])
def test_workers_that_would_compute_other_results_are_refused_with_both_values(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = engines.worker_identity

    def other(setup: Any) -> WorkerIdentity:
        return msgspec.structs.replace(actual(setup), **{field: "0123"})

    monkeypatch.setattr(engines, "worker_identity", other)
    named = field.replace("_", " ")
    with pytest.raises(ConfigError, match=f"its {named} is '.+', the driver's is '0123'"):
        run_job(digits_job(tmp_path, engine="processes", workers=2))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_a_task_of_this_process_only_is_refused_elsewhere_and_runs_on_threads(
    engine: str, tmp_path: Path
) -> None:
    job = tiny_job(tmp_path, run={"engine": engine})
    with pytest.raises(
        ConfigError, match=f"'{engine}': task 'tiny' was registered in this process only; install"
    ):
        run_job(job)
    assert list(tmp_path.iterdir()) == []
    assert tiny_run(tmp_path).history


@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_replaced_parts_that_workers_need_are_refused_elsewhere_and_work_on_threads(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Own(SharedBatchIterator):
        pass

    with monkeypatch.context() as patched:
        patched.setattr(vectorized, "SharedBatchIterator", Own)
        with pytest.raises(ConfigError, match=f"'{engine}': batch_iterator was replaced"):
            run_job(digits_job(tmp_path, engine=engine))
        assert run_job(digits_job(tmp_path)).history
    monkeypatch.setattr(vectorized.torch_amp, "autocast", lambda *_, **__: None)
    with pytest.raises(ConfigError, match=f"'{engine}': autocast was replaced"):
        run_job(digits_job(tmp_path, engine=engine))


def serve_fatal_env(descriptors: Sequence[int]) -> int:
    """Run a worker that dies whenever its env 2 begins to train for step 1 of the first round."""
    begin_train = TrainingWork.begin_train

    def fatal(work: TrainingWork, env: ParallelEnvState, step: int) -> None:
        if (env.env_idx, env.round_index, step) == (2, 0, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        begin_train(work, env, step)

    TrainingWork.begin_train = fatal  # type: ignore[method-assign]
    return serve(descriptors)


def test_an_env_that_ends_its_worker_twice_is_quarantined_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ForkServer(f"{__name__}:serve_fatal_env")
    monkeypatch.setattr(engines, "_FORK_SERVER", server)

    run_dir = run_job(digits_job(tmp_path, engine="processes", workers=2)).run_dir

    server.close()
    events = read_events(run_dir / "events.jsonl")
    (failed,) = (event for event in events if event.event_type is EventType.ENV_FAILED)
    assert isinstance(failed.data, EnvFailed)
    assert (failed.env_id, failed.data.phase, failed.data.error_type) == (
        *(2, "train"),
        "WorkerLostError",
    )
    assert "2 workers were lost while they worked on it" in failed.data.message
    # The env beside it on the same worker, and those of the other worker, reach their end.
    outcomes = [event for event in events if isinstance(event.data, EpisodeOutcome)]
    num_steps = [event.data.num_steps for event in outcomes]
    assert sorted(num_steps) == [1, *[4] * 7]
    (restarted,) = operational_events(run_dir)
    assert restarted["event_type"] == EventType.WORKER_RESTARTED


class BrokenEnvError(Exception):
    """What envs of a test fail with."""


def break_envs(patch: Callable[[Any, str, Any], object]) -> None:
    """Let envs fail in every phase, several in one step, and one while others are behind."""
    build, begin = TrainingWork.build, TrainingWork.begin_train
    validate = TrainingWork.validate

    def fail_at(place: tuple[str, int, int, int]) -> None:
        if place in {
            ("build", 1, 2, 0),
            ("train", 0, 3, 1),
            ("validate", 0, 0, 2),
            ("validate", 0, 2, 2),
            ("train", 1, 1, 2),
            ("validate", 1, 3, 3),
        }:
            raise BrokenEnvError(str(place))

    def failing_build(work: TrainingWork, round_index: int, env_id: int) -> Any:
        fail_at(("build", round_index, env_id, 0))
        return build(work, round_index, env_id)

    def failing_begin(work: TrainingWork, env: ParallelEnvState, step: int) -> None:
        fail_at(("train", env.round_index, env.env_idx, step))
        begin(work, env, step)

    def failing_validate(work: TrainingWork, env: ParallelEnvState, step: int, beat: Any) -> Any:
        fail_at(("validate", env.round_index, env.env_idx, step))
        return validate(work, env, step, beat)

    patch(TrainingWork, "build", failing_build)
    patch(TrainingWork, "begin_train", failing_begin)
    patch(TrainingWork, "validate", failing_validate)


def serve_breaking_envs(descriptors: Sequence[int]) -> int:
    """Run a worker whose envs fail as those of `break_envs`."""
    break_envs(setattr)
    return serve(descriptors)


@pytest.mark.parametrize("workers", [2, 4])
def test_envs_that_fail_do_so_in_the_same_events_wherever_they_live(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ForkServer(f"{__name__}:serve_breaking_envs")
    monkeypatch.setattr(engines, "_FORK_SERVER", server)
    found = facts_of(digits_job(tmp_path / "p", engine="processes", workers=workers))
    server.close()

    break_envs(monkeypatch.setattr)
    run_dir = run_job(digits_job(tmp_path / "t", engine="threads", lanes=2)).run_dir

    events = read_events(run_dir / "events.jsonl")
    assert sum(event.event_type is EventType.ENV_FAILED for event in events) == 6
    assert found == run_facts(run_dir)


JUNK = [b"", b"\xc1", b"\x91" * 100_000, msgspec.msgpack.encode({"type": "Train", "step": 0})]


@pytest.mark.parametrize("is_started", [False, True], ids=["as its specification", "later"])
def test_a_worker_that_receives_junk_ends_with_one_line(
    is_started: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = digits_job(tmp_path)
    spec = encode(WorkerSpec(index=0, job=job, env_ids=(0,), lanes=1))
    out_of_turn = encode(Request(seq=5, command=Build(round=0)))
    server = ForkServer(engines.WORKER_TARGET)
    for junk in [*JUNK, out_of_turn]:
        (_, pulse), (ours, theirs) = Pulse.create(1), socket.socketpair()
        ours.settimeout(60)
        with theirs:
            pid = server.fork([theirs.fileno(), pulse])
        os.close(pulse)
        wire = Wire(ours)
        if is_started:
            wire.send(spec)
            assert isinstance(decode_from_worker(wire.receive() or b""), WorkerReady)
        wire.send(junk)
        assert wire.receive() is None
        wire.close()
        assert server.reap(pid) == "exited with code 1"
    server.close()

    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == len(JUNK) + 1
    assert all("ends: it received a message that" in line for line in lines)


@pytest.mark.parametrize("is_quiet", [False, True])
def test_the_console_begins_with_the_engine_and_why_it_was_chosen(
    is_quiet: bool, tmp_path: Path
) -> None:
    watch = io.StringIO()
    run_job(digits_job(tmp_path, engine="threads", lanes=2, quiet=is_quiet), watch=watch)
    opening = "engine: threads, 2 lanes (as requested)"
    assert (watch.getvalue().splitlines()[:1] == [opening]) == (not is_quiet)
    (run_dir,) = tmp_path.iterdir()
    assert b"as requested" not in (run_dir / "events.jsonl").read_bytes()


def test_a_trace_on_processes_says_what_it_covers(tmp_path: Path) -> None:
    job = digits_job(tmp_path, engine="processes", workers=2, profiler={"torch": True})
    setup = prepare_worker(job, StopFlag(), parts=RunParts())
    assert str(engines.choose_engine(setup)) == (
        "processes, 2 workers (as requested; --torch-profiler traces control only, not the workers)"
    )


def test_workers_end_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = note_worker_pids(monkeypatch)
    run_job(digits_job(tmp_path, engine="processes", workers=2))

    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
