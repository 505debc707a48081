"""Opening the directory of a run: a new one, or a resumed run's at its checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from esper.leyline.config import Job
from esper.leyline.errors import UsageError
from esper.leyline.manifest import PolicyOrigin
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.sinks.delivery import rewind_positions
from esper.nissa.storage.run_directory import (
    build_manifest,
    create_run_directory,
    read_manifest,
)
from esper.runtime.tasks import registered_task
from esper.simic.training.assembly.machine import compile_mode_for, machine_kind
from esper.simic.training.assembly.run_setup import RunSetup
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.checkpoints.resuming import (
    OpenedRun,
    check_resumable,
    check_task_unchanged,
    reopen_run,
)
from esper.simic.training.host_cost import host_flop_per_sample

__all__ = ["POLICY_COMMAND", "command_for", "open_hub", "open_run_directory"]

POLICY_COMMAND: Final = "ppo"


def command_for(job: Job, asked: str | None, resumed: LoadedRun | None) -> str:
    """Return who decides; a resumed run may not become another one."""
    if resumed is None:
        return asked or POLICY_COMMAND
    check_resumable(resumed.job.training, job.training)
    check_task_unchanged(resumed.header, registered_task(job.training.task).spec)
    if asked not in (None, resumed.command):
        raise UsageError(
            f"--resume: the run was of {resumed.command!r} and {asked!r} was asked for; "
            "another controller is another run"
        )
    return resumed.command


def open_run_directory(setup: RunSetup) -> OpenedRun:
    """Create the run's directory, or take a resumed run's back to its checkpoint."""
    if setup.resumed is not None:
        return reopen_run(setup.resumed, setup.job)
    manifest = build_manifest(
        setup.job,
        command=setup.command,
        machine_kind=machine_kind(
            (setup.device, *setup.worker.devices),
            compile_mode_for(setup.job.training.compile_mode, setup.device),
        ),
        data_source=setup.worker.dataset.origin.value,
        contexts=setup.task.contexts,
    )
    manifest = msgspec.structs.replace(
        manifest,
        policy_origin=_origin_of(setup.begun_from),
        host_flop_per_sample=host_flop_per_sample(setup.worker),
    )
    return OpenedRun(create_run_directory(Path(setup.job.run.telemetry_dir), manifest))


def _origin_of(begun_from: LoadedRun | None) -> PolicyOrigin | None:
    if begun_from is None:
        return None
    return PolicyOrigin(
        run_id=begun_from.header.run_id,
        task=begun_from.job.training.task,
        rounds_completed=begun_from.state.rounds_completed,
    )


@contextmanager
def open_hub(opened: OpenedRun, job: Job) -> Iterator[TelemetryHub]:
    """Open the hub that writes a run's log; sinks go on from where the log does."""
    with TelemetryHub(
        opened.run_dir,
        run_id=read_manifest(opened.run_dir).run_id,
        group=job.training.group_id,
        config=job.training.telemetry,
        fsync=job.run.fsync,
        fsync_interval_s=job.run.fsync_interval_ms / 1000,
        claim=opened.claim,
    ) as hub:
        rewind_positions(opened.run_dir, hub.next_seq)
        yield hub
