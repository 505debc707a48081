"""What a resume chooses and refuses; after a refusal, the run is unlocked and as it was."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.builders.tiny_runs import tiny_run
from tests.builders.tiny_tasks import TINY, TINY_LM
from tests.simic.training.runs import last_checkpoint

from esper.leyline.errors import ConfigError, ForeignFileError, UnreadableFileError, UsageError
from esper.nissa.storage.journal import EVENTS_FILE, claim_run
from esper.runtime.tasks import all_tasks
from esper.simic.training.checkpoints.checkpoint_store import (
    CHECKPOINT_VERSION,
    encode_checkpoint,
    read_checkpoint,
)
from esper.simic.training.checkpoints.resuming import (
    check_task_unchanged,
    find_checkpoint,
    find_latest,
    load_run,
    reopen_run,
    resolve_job,
)

FIRST, SECOND = "round-000001.pt", "round-000002.pt"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rounds."""
    return tiny_run(
        tmp_path_factory.mktemp("whole"), command="wait", n_envs=1, max_epochs=1
    ).run_dir


@pytest.fixture
def run_dir(whole: Path, tmp_path: Path) -> Path:
    """A copy of the run, alone in its parent directory."""
    return Path(shutil.copytree(whole, tmp_path / "runs" / whole.name))


def changed(path: Path, changes: Mapping[str, Any]) -> Path:
    """Replace fields of a checkpoint's header."""
    contents = read_checkpoint(path)
    del contents["version"]
    contents["header"] |= changes
    path.write_bytes(encode_checkpoint(contents))
    return path


def layers(run_dir: Path, reference: str, **training: Any) -> list[tuple[str, dict[str, Any]]]:
    run = {"resume_path": reference, "telemetry_dir": str(run_dir.parent)}
    return [("first", {"run": run}), ("second", {"training": training} if training else {})]


def reopen(run_dir: Path, name: str) -> Any:
    loaded = load_run(run_dir / "checkpoints" / name)
    run = msgspec.structs.replace(loaded.job.run, telemetry_dir=str(run_dir.parent))
    return reopen_run(loaded, msgspec.structs.replace(loaded.job, run=run))


def contents_of(run_dir: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run_dir)): path.read_bytes()
        for path in run_dir.rglob("*")
        if path.is_file()
    }


def assert_unlocked(run_dir: Path) -> None:
    claim_run(run_dir).close()


def test_keys_that_are_not_given_are_the_checkpoints(run_dir: Path) -> None:
    for reference in ("latest", str(run_dir), str(run_dir / "checkpoints" / SECOND)):
        job, loaded = resolve_job(layers(run_dir, reference))
        assert loaded is not None
        assert loaded.path == run_dir / "checkpoints" / SECOND
        assert job.training == loaded.job.training
        assert job.training.max_epochs == 1


def test_job_without_a_checkpoint_is_that_of_its_layers() -> None:
    job, loaded = resolve_job([("flags", {"training": {"seed": 7}})])
    assert (job.training.seed, loaded) == (7, None)


def test_key_that_differs_is_refused_and_more_rounds_are_not(run_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.seed was 42 and is now 7"):
        resolve_job(layers(run_dir, "latest", seed=7))
    with pytest.raises(ConfigError, match=r"training\.n_episodes was 2 and is now 1"):
        resolve_job(layers(run_dir, "latest", n_episodes=1))
    job, _ = resolve_job(layers(run_dir, "latest", n_episodes=3))
    assert job.training.n_episodes == 3


def test_latest_is_of_the_task_that_is_given(run_dir: Path) -> None:
    assert resolve_job(layers(run_dir, "latest", task=TINY))[1] is not None
    with pytest.raises(UsageError, match="no checkpoint of a run of task 'tiny_lm'"):
        resolve_job(layers(run_dir, "latest", task=TINY_LM))


def test_directory_without_checkpoints_has_no_latest(run_dir: Path, tmp_path: Path) -> None:
    for path in (run_dir / "checkpoints").iterdir():
        path.unlink()
    for directory in (run_dir.parent, tmp_path / "missing", run_dir / EVENTS_FILE):
        with pytest.raises(UsageError, match="contains no checkpoint of a run; pass"):
            find_latest(directory, None)
    with pytest.raises(UnreadableFileError, match="the run has no checkpoint"):
        find_checkpoint(str(run_dir))


def test_run_without_a_manifest_is_passed_over(run_dir: Path) -> None:
    newer = run_dir.parent / "99990101T000000Z_ffffffff"
    shutil.copytree(run_dir, newer)
    (newer / "run.json").unlink()
    assert find_latest(run_dir.parent, None).parent.parent == run_dir


def test_only_a_controller_that_learns_has_a_state(run_dir: Path) -> None:
    path = run_dir / "checkpoints" / SECOND
    assert load_run(path).controller is None
    assert load_run(path).num_bytes == path.stat().st_size
    contents = read_checkpoint(path)
    del contents["version"]
    path.write_bytes(encode_checkpoint({**contents, "agent": {}}))
    assert load_run(path).controller == {"version": CHECKPOINT_VERSION, "agent": {}}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"baseline_loss": 2.5},
            r"--resume: baseline_loss of task 'tiny' was 1\.1 and is now 2\.5",
        ),
        ({"host": all_tasks()["digits"].host}, r"--resume: host\.\w+ of task 'tiny' was"),
        ({"host": all_tasks()["bytes_lm"].host}, "--resume: host of task 'tiny' was CnnHostSpec"),
    ],
)
def test_task_that_became_another_is_refused(
    changes: dict[str, Any], told: str, run_dir: Path
) -> None:
    header = load_run(run_dir / "checkpoints" / SECOND).header
    task = all_tasks()[TINY]
    check_task_unchanged(header, task)
    after = msgspec.structs.replace(task, **changes)
    with pytest.raises(ConfigError, match=told):
        check_task_unchanged(header, after)
    check_task_unchanged(msgspec.structs.replace(header, task=None), after)


def test_reopened_run_is_cut_at_its_checkpoint_and_stays_locked(run_dir: Path) -> None:
    num_events = (run_dir / EVENTS_FILE).read_bytes().count(b"\n")
    opened = reopen(run_dir, FIRST)
    num_kept = opened.event.log_seq + 1
    assert (run_dir / EVENTS_FILE).read_bytes().count(b"\n") == num_kept
    assert opened.event.num_events_redone == num_events - num_kept
    assert (opened.run_dir, opened.event.path, opened.event.rounds_completed) == (run_dir, FIRST, 1)
    assert find_checkpoint(str(run_dir)).name == FIRST
    with pytest.raises(UsageError, match="another process is writing this log"):
        claim_run(run_dir)
    opened.claim.close()


def test_checkpoint_from_elsewhere_is_taken_into_the_run(run_dir: Path, tmp_path: Path) -> None:
    first = run_dir / "checkpoints" / FIRST
    first.rename(tmp_path / "elsewhere.pt")
    loaded = load_run(tmp_path / "elsewhere.pt")
    run = msgspec.structs.replace(loaded.job.run, telemetry_dir=str(run_dir.parent))
    opened = reopen_run(loaded, msgspec.structs.replace(loaded.job, run=run))
    assert opened.claim is not None
    opened.claim.close()
    assert first.read_bytes() == (tmp_path / "elsewhere.pt").read_bytes()


def test_refused_checkpoint_changes_nothing(run_dir: Path) -> None:
    checkpoint = changed(run_dir / "checkpoints" / FIRST, {"log_seq": 0})
    before = contents_of(run_dir)
    with pytest.raises(UnreadableFileError, match="was saved after 1 rounds, but its event 0 is"):
        reopen(run_dir, checkpoint.name)
    assert contents_of(run_dir) == before
    assert_unlocked(run_dir)


def test_linked_checkpoints_are_refused(run_dir: Path, tmp_path: Path) -> None:
    (run_dir / "checkpoints").rename(tmp_path / "elsewhere")
    (run_dir / "checkpoints").symlink_to(tmp_path / "elsewhere")
    before = contents_of(tmp_path)
    with pytest.raises(ForeignFileError, match="checkpoints: is a symbolic link"):
        reopen(run_dir, FIRST)
    assert contents_of(tmp_path) == before
    assert_unlocked(run_dir)


def test_log_that_cannot_be_cut_keeps_its_later_checkpoints(run_dir: Path) -> None:
    blocking = run_dir / "events.crc.tmp"
    (blocking / "full").mkdir(parents=True)
    before = contents_of(run_dir)
    with pytest.raises(UnreadableFileError) as caught:
        reopen(run_dir, FIRST)
    assert str(caught.value) == f"{blocking}: the run cannot be rewound: Is a directory"
    assert contents_of(run_dir) | before == contents_of(run_dir)
    assert last_checkpoint(run_dir).name == SECOND
    assert_unlocked(run_dir)
