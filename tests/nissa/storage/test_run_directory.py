"""Run directories and what their manifest says."""

import errno
import getpass
import os
import random
import re
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.nissa.making import FailingFiles

from esper.leyline.config import Job, ProfilerConfig, RunOptions, TrainingConfig
from esper.leyline.errors import UnreadableFileError, UsageError
from esper.nissa.storage.run_directory import (
    build_manifest,
    create_run_directory,
    new_run_id,
    put_on_record,
    read_manifest,
    traces_directory,
)


def test_manifest_survives_the_disk(tmp_path: Path) -> None:
    manifest = build_manifest(Job(), command="ppo", machine_kind="kind", data_source="package")

    run_dir = create_run_directory(tmp_path / "runs", manifest)

    assert read_manifest(run_dir) == manifest
    assert re.fullmatch(r"\d{8}T\d{6}Z_[0-9a-f]{8}", run_dir.name)
    assert run_dir.name.endswith(manifest.run_id)
    assert (run_dir / "checkpoints").is_dir()
    assert sorted(path.name for path in run_dir.iterdir()) == ["checkpoints", "run.json"]


def test_manifest_names_no_host_user_token_or_absolute_path(tmp_path: Path) -> None:
    secret = str(tmp_path / "private")
    run = RunOptions(
        telemetry_dir=f"{secret}/runs",
        data_dir=f"{secret}/data",
        save_path=f"{secret}/model.pt",
        resume_path=f"{secret}/old.pt",
        serve="box.example:8765",
        serve_token="sesame",
        profiler=ProfilerConfig(torch_dir=f"{secret}/traces"),
    )
    manifest = build_manifest(Job(run=run), command="ppo", machine_kind="kind")
    text = (create_run_directory(tmp_path, manifest) / "run.json").read_text()

    for private in (str(tmp_path), "sesame", "box.example", os.getcwd(), str(Path.home()) + "/"):
        assert private not in text
    words = set(re.findall(r"[\w.-]+", text))
    assert words.isdisjoint({socket.gethostname(), getpass.getuser()})
    assert {"model.pt", "traces"} <= words


def test_run_id_leaves_seeded_streams_alone() -> None:
    state = random.getstate()
    assert new_run_id() != new_run_id()
    assert random.getstate() == state


def test_full_disk_is_reported_with_path_and_errno(tmp_path: Path) -> None:
    files = FailingFiles()
    files.write_error = errno.ENOSPC
    manifest = build_manifest(Job(), command="ppo", machine_kind="kind")
    with pytest.raises(UsageError, match=r"injected; choose another location with --telemetry-dir"):
        create_run_directory(tmp_path, manifest, files=files)


def resumed_job(num_rounds: int, **labels: Any) -> Job:
    return Job(
        training=TrainingConfig(n_episodes=num_rounds, lr=0.5), run=RunOptions(lanes=7, **labels)
    )


def test_rounds_name_and_tags_are_put_on_record_and_nothing_else(tmp_path: Path) -> None:
    first = Job(run=RunOptions(name="first", tags={"a": "1", "b": "2"}))
    manifest = build_manifest(first, command="ppo", machine_kind="kind")
    run_dir = create_run_directory(tmp_path, manifest)

    put_on_record(run_dir, resumed_job(123))
    assert read_manifest(run_dir).job == msgspec.structs.replace(
        manifest.job, training=TrainingConfig(n_episodes=123)
    )
    put_on_record(run_dir, resumed_job(123, name="second", tags={"b": "3", "c": "4"}))
    labels = read_manifest(run_dir).job.run
    assert (labels.name, labels.tags) == ("second", {"a": "1", "b": "3", "c": "4"})
    assert labels.lanes is None


def test_manifest_stays_as_it_was_when_the_disk_is_full(tmp_path: Path) -> None:
    manifest = build_manifest(Job(), command="ppo", machine_kind="kind")
    run_dir = create_run_directory(tmp_path, manifest)
    files = FailingFiles()
    files.write_error = errno.ENOSPC

    with pytest.raises(
        UsageError, match=r"cannot record the new number of rounds \(123\), name or tags: injected"
    ):
        put_on_record(run_dir, resumed_job(123), files=files)

    assert read_manifest(run_dir) == manifest


def test_traces_are_with_the_run_unless_another_place_is_given(tmp_path: Path) -> None:
    assert traces_directory(tmp_path, ProfilerConfig()) is None
    within = traces_directory(tmp_path, ProfilerConfig(torch=True))
    assert within == tmp_path / "profiler_traces"
    elsewhere = traces_directory(tmp_path, ProfilerConfig(torch=True, torch_dir="/elsewhere"))
    assert elsewhere == Path("/elsewhere")


@pytest.mark.parametrize("text", [None, "", "[]", '{"run_id":"x"}', "\ud800"])
def test_manifest_that_is_not_one_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "run.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UnreadableFileError, match=r"run\.json"):
        read_manifest(tmp_path)
