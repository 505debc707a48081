"""The checkpointer: what a checkpoint contains, when one is due, and how a run goes on from it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from esper.leyline.config import Job
from esper.leyline.errors import TelemetryLostError
from esper.leyline.payloads import CheckpointSaved
from esper.leyline.telemetry import SCHEMA_VERSION
from esper.nissa.hub import Hub
from esper.simic.training.checkpoint_store import (
    CheckpointStore,
    SavedCheckpoint,
    encode_checkpoint,
)
from esper.simic.training.grown import GrownWriter
from esper.simic.training.policy_controller import PolicyController
from esper.simic.training.run_state import RunState

__all__ = ["CheckpointHeader", "Checkpointer", "LoadedRun"]


class CheckpointHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint says of its run, beside the controller's tensors."""

    schema_version: int
    """Of the events of the log that it belongs to."""
    run_id: str
    command: str
    """Who decides."""
    job: Job
    state: RunState
    log_seq: int
    """The last event that was on disk when it was taken; -1 for none."""
    is_best: bool
    is_announced: bool
    """A CHECKPOINT_SAVED follows the event `log_seq`; not so where none was due."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedRun:
    """A checkpoint that a run goes on from."""

    path: Path
    header: CheckpointHeader
    controller: dict[str, Any] | None
    """The learning controller's part; None for one that does not learn."""
    num_bytes: int

    @property
    def job(self) -> Job:
        """Return what was being run."""
        return self.header.job

    @property
    def command(self) -> str:
        """Return who decides."""
        return self.header.command

    @property
    def state(self) -> RunState:
        """Return how far the run had come."""
        return self.header.state


@dataclass(frozen=True, kw_only=True, slots=True)
class _Held:
    """A checkpoint that is ready and not due."""

    data: bytes
    rounds_completed: int
    log_seq: int


@dataclass(eq=False, kw_only=True, slots=True)
class Checkpointer:
    """Saves a run's whole state between rounds, behind its log.

    Every random stream is derived from the seed and the round, so the counters are all there is to
    keep of them.
    """

    store: CheckpointStore
    job: Job
    run_id: str
    command: str
    hub: Hub
    controller: PolicyController | None
    every: int
    is_judged_by_loss: bool
    """Best means the lowest loss, as for language models, and not the highest accuracy."""
    resumed: LoadedRun | None
    grown: GrownWriter
    _held: _Held | None = None

    def is_due(self, rounds_completed: int, num_rounds: int) -> bool:
        """Tell whether this round ends with a checkpoint; the last one always does."""
        return rounds_completed % self.every == 0 or rounds_completed == num_rounds

    def save(self, state: RunState, *, is_best: bool) -> CheckpointSaved:
        """Bring the log to the disk, then the checkpoint that counts on it."""
        header = self._header(state, is_best=is_best, is_announced=True)
        self.hub.flush()
        saved = self.store.save(self._encoded(header), state.rounds_completed, is_best=is_best)
        self._held = None
        return _announcement(header, saved)

    def stage(self, state: RunState, *, is_best: bool) -> None:
        """Be ready to save a round that ends without a checkpoint, should the next one break.

        The best round is saved as such at once, due or not.
        """
        header = self._header(state, is_best=is_best, is_announced=False)
        data = self._encoded(header)
        if is_best:
            self.hub.flush()
            self.store.save_best(data)
        self._held = _Held(
            data=data, rounds_completed=state.rounds_completed, log_seq=header.log_seq
        )

    def commit_staged(self) -> None:
        """Save the last finished round, if it is not, provided that its log is on disk."""
        held, self._held = self._held, None
        if held is None:
            return
        try:
            self.hub.flush()
        except TelemetryLostError as error:
            if error.last_seq is None or error.last_seq < held.log_seq:
                raise
        self.store.save(held.data, held.rounds_completed, is_best=False)

    def announce_again(self) -> CheckpointSaved | None:
        """Return what was told of the checkpoint that this run goes on from, if anything was."""
        loaded = self.resumed
        assert loaded is not None, "this run was not resumed"
        if not loaded.header.is_announced:
            return None
        saved = SavedCheckpoint(path=loaded.path, num_bytes=loaded.num_bytes)
        return _announcement(loaded.header, saved)

    def _header(self, state: RunState, *, is_best: bool, is_announced: bool) -> CheckpointHeader:
        return CheckpointHeader(
            schema_version=SCHEMA_VERSION,
            run_id=self.run_id,
            command=self.command,
            job=_without_server(self.job),
            state=state,
            log_seq=self.hub.next_seq - 1,
            is_best=is_best,
            is_announced=is_announced,
        )

    def _encoded(self, header: CheckpointHeader) -> bytes:
        controller = {} if self.controller is None else self.controller.state_dict()
        return encode_checkpoint({"header": msgspec.to_builtins(header), **controller})


def _without_server(job: Job) -> Job:
    """Leave out what belongs to one execution alone, the server's token before all."""
    run = msgspec.structs.replace(job.run, serve=None, serve_token=None, resume_path=None)
    return msgspec.structs.replace(job, run=run)


def _announcement(header: CheckpointHeader, saved: SavedCheckpoint) -> CheckpointSaved:
    return CheckpointSaved(
        rounds_completed=header.state.rounds_completed,
        log_seq=header.log_seq,
        is_best=header.is_best,
        path=saved.path.name,
        num_bytes=saved.num_bytes,
    )
