"""A run that stops and goes on is the run that never stopped."""

import threading
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.builders.fingerprints import digest_of
from tests.builders.tiny_runs import tiny_job, tiny_run
from tests.builders.tiny_tasks import TINY_LM
from tests.simic.training.disks import FailingDisk
from tests.simic.training.runs import last_checkpoint, lines_of, operational_events, weights_digest

from esper.karn.view.view_feed import read_run
from esper.leyline.config import Job, TrainingConfig
from esper.leyline.errors import (
    ConfigError,
    ExitCode,
    InterruptedRunError,
    RunFailedError,
    UnreadableFileError,
    UsageError,
)
from esper.leyline.telemetry import EventType
from esper.nissa.storage.journal import EVENTS_FILE
from esper.nissa.storage.run_directory import read_manifest
from esper.simic.training.assembly import trainer_assembly, worker_assembly
from esper.simic.training.checkpoints.checkpoint_store import CheckpointStore, read_checkpoint
from esper.simic.training.checkpoints.grown import GROWN_FILE
from esper.simic.training.checkpoints.resuming import (
    check_resumable,
    find_checkpoint,
    find_latest,
    load_run,
    resolve_job,
    run_directory_of,
)
from esper.simic.training.checkpoints.run_state import RunState
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.vectorized import run_job
from esper.tolaria.engine import WorkerEngine

ROUNDS = 3


class _StopAfter(TrainingWork):
    """Asks for a stop after a number of train batches, whichever env they are for."""

    stop: threading.Event
    countdown: Iterator[int]

    def train_batch(self, env: Any, batch_index: int, batch: Any) -> None:
        if next(self.countdown) == 0:
            self.stop.set()
        super().train_batch(env, batch_index, batch)


def interrupt(job: Job, monkeypatch: pytest.MonkeyPatch, *, after_batches: int, **how: Any) -> None:
    """Run a job until a number of batches has been trained."""
    stop = threading.Event()
    countdown = count(1 - after_batches)
    work = type("StopAfter", (_StopAfter,), {"stop": stop, "countdown": countdown})
    with monkeypatch.context() as patched:
        patched.setattr(worker_assembly, "TrainingWork", work)
        with pytest.raises(InterruptedRunError):
            run_job(job, shutdown_event=stop, **how)


def interrupted_run(
    telemetry_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    after_batches: int,
    command: str = "ppo",
    **settings: Any,
) -> Path:
    """Start a run, interrupt it, and return its directory."""
    job = tiny_job(telemetry_dir, **settings)
    interrupt(job, monkeypatch, after_batches=after_batches, command=command)
    (run_dir,) = telemetry_dir.iterdir()
    return run_dir


def resume(run_dir: Path, **training: Any) -> None:
    loaded = load_run(last_checkpoint(run_dir))
    job = msgspec.structs.replace(
        loaded.job, training=msgspec.structs.replace(loaded.job.training, **training)
    )
    assert run_job(job, resumed=loaded).run_dir == run_dir


def grown_digest(run_dir: Path) -> str:
    return digest_of(torch.load(run_dir / GROWN_FILE, weights_only=True))


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run."""
    return tiny_run(tmp_path_factory.mktemp("whole"), n_episodes=ROUNDS).run_dir


# 2 envs of 4 batches in each of 4 steps: a round trains 32.
def untimed_state(run_dir: Path) -> RunState:
    """Return what the last checkpoint knows of its run, except how long rounds took."""
    state = load_run(last_checkpoint(run_dir)).state
    history = tuple(msgspec.structs.replace(reported, duration_s=0.0) for reported in state.history)
    return msgspec.structs.replace(state, duration_s=0.0, history=history)


@pytest.mark.parametrize("after_batches", [1, 33, 95])
def test_interrupted_and_resumed_run_equals_the_uninterrupted_one(
    after_batches: int, whole_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = interrupted_run(tmp_path, monkeypatch, after_batches=after_batches, n_episodes=ROUNDS)

    resume(run_dir)

    assert lines_of(run_dir) == lines_of(whole_run)
    assert weights_digest(last_checkpoint(run_dir)) == weights_digest(last_checkpoint(whole_run))
    assert grown_digest(run_dir) == grown_digest(whole_run)
    assert untimed_state(run_dir) == untimed_state(whole_run)


@pytest.mark.parametrize("command", ["heuristic", "random", "wait", "periodic"])
def test_controller_that_does_not_learn_is_resumed_too(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tiny_run(tmp_path / "whole", command=command).run_dir
    run_dir = interrupted_run(tmp_path / "cut", monkeypatch, after_batches=44, command=command)

    resume(run_dir)

    assert lines_of(run_dir) == lines_of(whole)


def test_language_model_with_dropout_is_resumed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tiny_run(tmp_path / "whole", task=TINY_LM).run_dir
    run_dir = interrupted_run(tmp_path / "cut", monkeypatch, after_batches=44, task=TINY_LM)

    resume(run_dir)

    assert lines_of(run_dir) == lines_of(whole)
    assert weights_digest(last_checkpoint(run_dir)) == weights_digest(last_checkpoint(whole))


def test_run_interrupted_twice_equals_the_uninterrupted_one(
    whole_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = interrupted_run(tmp_path, monkeypatch, after_batches=44, n_episodes=ROUNDS)
    loaded = load_run(last_checkpoint(run_dir))
    interrupt(loaded.job, monkeypatch, after_batches=44, resumed=loaded)

    resume(run_dir)

    assert lines_of(run_dir) == lines_of(whole_run)


def test_resumed_run_may_be_given_more_rounds(whole_run: Path, tmp_path: Path) -> None:
    run_dir = tiny_run(tmp_path, n_episodes=1, total_train_steps=ROUNDS).run_dir

    resume(run_dir, n_episodes=ROUNDS)

    longer = tiny_run(tmp_path / "at_once", n_episodes=ROUNDS, total_train_steps=ROUNDS).run_dir
    # The first line has the number of rounds that was requested at first.
    assert lines_of(run_dir)[1:] == lines_of(longer)[1:]
    assert weights_digest(last_checkpoint(run_dir)) == weights_digest(last_checkpoint(longer))


def test_readers_of_a_run_directory_see_the_rounds_in_force(tmp_path: Path) -> None:
    run_dir = tiny_run(tmp_path, n_episodes=1).run_dir

    resume(run_dir, n_episodes=ROUNDS)

    assert read_manifest(run_dir).job.training.n_episodes == ROUNDS
    view = read_run(run_dir).snapshot()
    assert (view.progress.num_rounds, view.progress.fraction) == (ROUNDS, 1.0)
    assert view.run is not None
    assert (view.run.facts.num_rounds, view.run.facts.resumed_from_round) == (ROUNDS, 1)
    # Going back to the first checkpoint without asking for more rounds has as many as at first.
    first = load_run(run_dir / "checkpoints" / "round-000001.pt")
    run_job(first.job, resumed=first)
    assert read_manifest(run_dir).job.training.n_episodes == 1


def test_finished_run_that_is_resumed_ends_at_once_with_the_same_log(
    whole_run: Path, tmp_path: Path
) -> None:
    run_dir = tiny_run(tmp_path).run_dir
    before = lines_of(run_dir)

    resume(run_dir)

    assert lines_of(run_dir) == before


def test_interruption_saves_the_last_finished_round_even_when_no_checkpoint_was_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = {"checkpoint_every": 10, "fsync": "never"}
    whole = tiny_run(tmp_path / "whole", n_episodes=ROUNDS, run=rare).run_dir
    run_dir = interrupted_run(
        tmp_path / "cut", monkeypatch, after_batches=76, n_episodes=ROUNDS, run=rare
    )
    assert load_run(last_checkpoint(run_dir)).state.rounds_completed == 2

    resume(run_dir)

    assert lines_of(run_dir) == lines_of(whole)
    assert weights_digest(last_checkpoint(run_dir)) == weights_digest(last_checkpoint(whole))


def test_run_that_met_a_full_disk_goes_on_from_the_checkpoint_before(
    whole_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Four calls per file: the second round's checkpoint fails after its first write.
    disk = FailingDisk(fail_at=13)
    with monkeypatch.context() as patched:
        patched.setattr(trainer_assembly, "CheckpointStore", partial(CheckpointStore, files=disk))
        with pytest.raises(RunFailedError, match="the previous checkpoint is intact"):
            tiny_run(tmp_path, n_episodes=ROUNDS)
    (run_dir,) = tmp_path.iterdir()
    assert b'"status":"failed"' in lines_of(run_dir)[-1]
    assert load_run(last_checkpoint(run_dir)).state.rounds_completed < ROUNDS

    resume(run_dir)

    assert lines_of(run_dir) == lines_of(whole_run)


def test_run_resumed_amid_an_escalation_stays_escalated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A learning rate that breaks the policy raises alarms at the end of the first round.
    wild = {"lr": 0.5, "target_kl": None, "n_episodes": 2}
    whole = tiny_run(tmp_path / "whole", **wild).run_dir
    run_dir = interrupted_run(tmp_path / "cut", monkeypatch, after_batches=44, **wild)
    assert load_run(last_checkpoint(run_dir)).state.escalation.steps_left > 0

    resume(run_dir)

    assert lines_of(run_dir) == lines_of(whole)


def test_the_checkpoint_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tiny_run(tmp_path, n_episodes=1).run_dir
    checkpoint, read, load = last_checkpoint(run_dir), list[object](), torch.load

    def noted(file: object, **options: Any) -> Any:
        read.append(file)
        return load(file, **options)

    monkeypatch.setattr(torch, "load", noted)
    layer = {"training": {"n_episodes": 2}, "run": {"resume_path": str(checkpoint)}}
    job, loaded = resolve_job([("test", layer)])
    monkeypatch.setattr(WorkerEngine, "snapshot", no_snapshot)
    run_job(job, resumed=loaded)

    assert len(read) == 1


async def no_snapshot(*_: object) -> None:
    """Copy no network, which would be decoded by the same function."""


def test_resumed_run_says_so_in_the_operational_log_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = interrupted_run(tmp_path, monkeypatch, after_batches=44)
    loaded = load_run(last_checkpoint(run_dir))
    num_events = len(lines_of(run_dir))

    resume(run_dir)

    (event,) = operational_events(run_dir)
    assert event["event_type"] == EventType.CHECKPOINT_LOADED
    assert event["data"] == {
        "rounds_completed": 1,
        "log_seq": loaded.header.log_seq,
        "num_events_redone": num_events - loaded.header.log_seq - 1,
        "path": "round-000001.pt",
        "num_rounds": loaded.job.training.n_episodes,
    }


@pytest.mark.parametrize("name", ["round-000001.pt", "best.pt"])
def test_going_back_to_an_earlier_checkpoint_redoes_the_later_ones(
    name: str, whole_run: Path, tmp_path: Path
) -> None:
    run_dir = tiny_run(tmp_path, n_episodes=ROUNDS).run_dir
    loaded = load_run(run_dir / "checkpoints" / name)

    run_job(loaded.job, resumed=loaded)

    assert lines_of(run_dir) == lines_of(whole_run)
    names = {path.name for path in (run_dir / "checkpoints").glob("r*.pt")}
    assert {"round-000001.pt", "round-000002.pt", "round-000003.pt"} <= names


def test_copy_of_a_checkpoint_finds_its_run_by_the_run_id(tmp_path: Path) -> None:
    copy = tmp_path / "copy.pt"
    run = {"save_path": str(copy)}
    run_dir = tiny_run(tmp_path / "runs", run=run).run_dir
    before = lines_of(run_dir)
    loaded = load_run(copy)

    assert copy.read_bytes() == last_checkpoint(run_dir).read_bytes()
    assert run_job(loaded.job, resumed=loaded).run_dir == run_dir
    assert lines_of(run_dir) == before


def test_copy_whose_run_is_nowhere_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / "copy.pt"
    tiny_run(tmp_path / "runs", run={"save_path": str(copy)}, n_episodes=1)

    with pytest.raises(UsageError, match="--telemetry-dir") as caught:
        run_directory_of(load_run(copy), tmp_path / "elsewhere")

    assert caught.value.exit_code is ExitCode.USAGE


def test_checkpoint_lying_in_another_runs_directory_does_not_touch_that_run(
    tmp_path: Path,
) -> None:
    first = tiny_run(tmp_path, n_episodes=1).run_dir
    second = tiny_run(tmp_path, n_episodes=1, seed=7).run_dir
    stray = second / "checkpoints" / "round-000009.pt"
    stray.write_bytes(last_checkpoint(first).read_bytes())

    assert run_directory_of(load_run(stray), tmp_path) == first


def test_latest_is_the_newest_checkpoint_of_the_newest_run_of_the_task(tmp_path: Path) -> None:
    older = tiny_run(tmp_path, n_episodes=1).run_dir
    other = tiny_run(tmp_path, n_episodes=1, task=TINY_LM).run_dir
    older.rename(tmp_path / f"20200101T000000Z_{older.name.split('_')[1]}")
    other.rename(tmp_path / f"20210101T000000Z_{other.name.split('_')[1]}")
    (tmp_path / "99999999T000000Z_notarun").mkdir()

    assert find_latest(tmp_path, "tiny").parent.parent.name.startswith("2020")
    assert find_latest(tmp_path, None).parent.parent.name.startswith("2021")
    assert find_latest(tmp_path, "tiny").name == "round-000001.pt"
    with pytest.raises(UsageError, match="'digits'"):
        find_latest(tmp_path, "digits")


def test_run_stands_for_its_newest_checkpoint(tmp_path: Path) -> None:
    run_dir = tiny_run(tmp_path, n_episodes=2).run_dir
    newest = run_dir / "checkpoints" / "round-000002.pt"
    run_id = read_manifest(run_dir).run_id

    for reference in (str(newest), str(run_dir), f"{tmp_path}/latest", f"{tmp_path}/{run_id[:5]}"):
        assert find_checkpoint(reference) == newest
    assert find_checkpoint(run_id, tmp_path) == newest
    for path in (run_dir / "checkpoints").iterdir():
        path.unlink()
    with pytest.raises(UnreadableFileError, match="the run has no checkpoint"):
        find_checkpoint(run_id, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 7}, "training.seed was 42 and is now 7"),
        ({"n_episodes": 5}, "training.n_episodes was 100 and is now 5"),
        ({"task": "fashion_mnist"}, "training.task was 'digits' and is now 'fashion_mnist'"),
        ({"slots": ("r0c0",)}, "training.slots was"),
    ],
)
def test_configuration_that_may_not_differ_is_refused_with_both_values(
    change: dict[str, Any], message: str
) -> None:
    stored = TrainingConfig()

    with pytest.raises(ConfigError, match=message) as caught:
        check_resumable(stored, msgspec.structs.replace(stored, **change))

    assert caught.value.exit_code is ExitCode.USAGE


def test_nested_setting_that_differs_is_named_by_its_path() -> None:
    stored = TrainingConfig()
    governor = msgspec.structs.replace(stored.governor, sensitivity=5.0)

    with pytest.raises(ConfigError, match=r"training\.governor\.sensitivity was 6\.0"):
        check_resumable(stored, msgspec.structs.replace(stored, governor=governor))


def test_more_rounds_and_the_same_configuration_are_accepted() -> None:
    stored = TrainingConfig()

    check_resumable(stored, stored)
    check_resumable(stored, msgspec.structs.replace(stored, n_episodes=101))


def files_of(directory: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(directory.rglob("*")) if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def test_refused_resume_leaves_every_file_as_it_was(tmp_path: Path) -> None:
    run_dir = tiny_run(tmp_path, n_episodes=2).run_dir
    before = files_of(tmp_path)
    loaded = load_run(run_dir / "checkpoints" / "round-000001.pt")
    training = msgspec.structs.replace(loaded.job.training, seed=7)

    with pytest.raises(ConfigError):
        run_job(msgspec.structs.replace(loaded.job, training=training), resumed=loaded)
    with pytest.raises(UsageError, match=r"'ppo'.*'wait'"):
        run_job(loaded.job, command="wait", resumed=loaded)

    assert files_of(tmp_path) == before


def test_resume_beside_a_damaged_log_leaves_every_file_as_it_was(tmp_path: Path) -> None:
    run_dir = tiny_run(tmp_path, n_episodes=2).run_dir
    log = run_dir / EVENTS_FILE
    log.write_bytes(log.read_bytes().replace(b"TRAINING_STARTED", b"TRAINING_STORTED", 1))
    before = files_of(tmp_path)
    loaded = load_run(run_dir / "checkpoints" / "round-000001.pt")

    with pytest.raises(UnreadableFileError, match=EVENTS_FILE):
        run_job(loaded.job, resumed=loaded)

    assert files_of(tmp_path) == before


def test_checkpoint_whose_log_is_too_short_is_refused(tmp_path: Path) -> None:
    run_dir = tiny_run(tmp_path, n_episodes=1).run_dir
    log = run_dir / EVENTS_FILE
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:5]))

    with pytest.raises(UnreadableFileError, match="ends with event"):
        resume(run_dir)


@pytest.mark.parametrize("part", ["header", "header.log_seq", "header.state", "header.job"])
def test_checkpoint_that_lacks_a_part_is_refused(part: str, tmp_path: Path) -> None:
    run_dir = tiny_run(tmp_path, n_episodes=1, command="wait").run_dir
    stored = read_checkpoint(last_checkpoint(run_dir))
    *way, name = part.split(".")
    node = stored
    for key in way:
        node = node[key]
    del node[name]
    path = tmp_path / "broken.pt"
    torch.save(stored, path)

    with pytest.raises(UnreadableFileError, match="not a checkpoint of a run"):
        load_run(path)


def test_checkpoint_of_another_event_schema_is_refused_with_both_versions(tmp_path: Path) -> None:
    run_dir = tiny_run(tmp_path, n_episodes=1, command="wait").run_dir
    stored = read_checkpoint(last_checkpoint(run_dir))
    stored["header"]["schema_version"] = 99
    path = tmp_path / "future.pt"
    torch.save(stored, path)

    with pytest.raises(UnreadableFileError, match="schema version 99, this Esper writes 2"):
        load_run(path)


def test_checkpoint_never_holds_the_servers_token(tmp_path: Path) -> None:
    secret = "a-token-of-the-server"
    run = {"serve_token": secret}
    run_dir = tiny_run(tmp_path, n_episodes=1, command="wait", run=run).run_dir

    for path in (run_dir / "checkpoints").iterdir():
        assert secret.encode() not in path.read_bytes()


@pytest.mark.parametrize("every", [1, 10])
def test_best_checkpoint_is_that_of_the_round_with_the_highest_accuracy(
    every: int, tmp_path: Path
) -> None:
    result = tiny_run(tmp_path, n_episodes=4, run={"checkpoint_every": every})
    means = [summary.mean_accuracy_pct or 0.0 for summary in result.history]

    best = load_run(result.run_dir / "checkpoints" / "best.pt").state

    assert best.rounds_completed == 1 + means.index(max(means))


def test_language_models_are_ranked_by_loss(tmp_path: Path) -> None:
    result = tiny_run(tmp_path, n_episodes=4, task=TINY_LM)
    losses = [
        sum(record.final_loss or 0.0 for record in summary.episodes) for summary in result.history
    ]

    best = load_run(result.run_dir / "checkpoints" / "best.pt").state

    assert best.rounds_completed == 1 + losses.index(min(losses))
