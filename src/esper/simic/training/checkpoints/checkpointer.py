"""The checkpointer: what a checkpoint contains, when it is saved, and how a run resumes from it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from esper.leyline.config import Job
from esper.leyline.errors import TelemetryLostError
from esper.leyline.messages import StepEvidence
from esper.leyline.payloads import CheckpointSaved
from esper.leyline.reports import BatchSummary
from esper.leyline.tasks import TaskSpec
from esper.leyline.telemetry import SCHEMA_VERSION
from esper.nissa.bus.hub import Hub
from esper.simic.training.checkpoints.checkpoint_store import (
    CheckpointStore,
    SavedCheckpoint,
    encode_checkpoint,
)
from esper.simic.training.checkpoints.grown import GrownWriter
from esper.simic.training.checkpoints.run_state import BestEnv, RunState, best_env_of
from esper.simic.training.policy_controller import PolicyController

__all__ = ["CheckpointHeader", "Checkpointer", "LoadedRun", "decisive_part"]


class CheckpointHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run state in a checkpoint, stored next to the controller's tensors."""

    schema_version: int
    """Schema version of the events in the run's log."""
    run_id: str
    command: str
    """Name of the controller."""
    job: Job
    state: RunState
    log_seq: int
    """Sequence number of the last event before the checkpoint; -1 for none."""
    is_best: bool
    is_announced: bool
    """Whether a CHECKPOINT_SAVED follows event `log_seq`; False for a checkpoint not yet due."""
    task: TaskSpec | None = None
    """The task as it was when the run began; None in checkpoints of older versions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedRun:
    """A checkpoint that a run resumes from."""

    path: Path
    header: CheckpointHeader
    controller: dict[str, Any] | None
    """State of a learning controller; None for one that does not learn."""
    num_bytes: int

    @property
    def job(self) -> Job:
        """Return the job of the run."""
        return self.header.job

    @property
    def command(self) -> str:
        """Return the name of the controller."""
        return self.header.command

    @property
    def state(self) -> RunState:
        """Return the run's progress at the checkpoint."""
        return self.header.state


@dataclass(frozen=True, kw_only=True, slots=True)
class _Staged:
    """An encoded checkpoint that is not due yet."""

    data: bytes
    rounds_completed: int
    log_seq: int


@dataclass(eq=False, kw_only=True, slots=True)
class Checkpointer:
    """Saves a run's whole state between rounds, after its log has been flushed to disk.

    Every random stream is derived from the seed and the round, so the round counter is all the
    random state that a checkpoint needs.
    """

    store: CheckpointStore
    job: Job
    task: TaskSpec
    run_id: str
    command: str
    hub: Hub
    controller: PolicyController | None
    every: int
    is_judged_by_loss: bool
    """Rank rounds and networks by lowest loss (language models) instead of highest accuracy."""
    resumed: LoadedRun | None
    grown: GrownWriter
    _staged: _Staged | None = None

    def is_due(self, rounds_completed: int, num_rounds: int) -> bool:
        """Return whether this round ends with a checkpoint; the last one always does."""
        return rounds_completed % self.every == 0 or rounds_completed == num_rounds

    def is_best(self, summary: BatchSummary, state: RunState) -> bool:
        """Return whether a round is better than all rounds before it."""
        return state.is_best(summary, by_loss=self.is_judged_by_loss)

    def best_env_of(self, evidence: StepEvidence) -> BestEnv | None:
        """Return the env with the best network, if any has a finite score."""
        return best_env_of(evidence, by_loss=self.is_judged_by_loss)

    def save_grown(self, network: dict[str, Any], best: BestEnv) -> None:
        """Replace the run's saved network by a better one."""
        self.grown.save(network, best.round, best.env_id)

    def save(self, state: RunState, *, is_best: bool) -> CheckpointSaved:
        """Flush the log to disk, then write the checkpoint that refers to it."""
        # Taken before the flush: the checkpoint refers to the last event emitted so far, and the
        # flush puts at least that on disk.
        header = self._header(state, is_best=is_best, is_announced=True)
        self.hub.flush()
        saved = self.store.save(self._encoded(header), state.rounds_completed, is_best=is_best)
        self._staged = None
        return _announcement(header, saved)

    def stage(self, state: RunState, *, is_best: bool) -> None:
        """Stage a round that ends without a checkpoint, to be saved if the next round fails.

        The best round is written immediately, whether a checkpoint is due or not.
        """
        header = self._header(state, is_best=is_best, is_announced=False)
        data = self._encoded(header)
        if is_best:
            self.hub.flush()
            self.store.save_best(data)
        self._staged = _Staged(
            data=data, rounds_completed=state.rounds_completed, log_seq=header.log_seq
        )

    def commit_staged(self) -> None:
        """Write the staged checkpoint, if any, provided that its log is on disk."""
        staged, self._staged = self._staged, None
        if staged is None:
            return
        try:
            self.hub.flush()
        except TelemetryLostError as error:
            # The disk failed later than the event that the checkpoint refers to, so it may still be
            # written.
            if error.last_seq is None or error.last_seq < staged.log_seq:
                raise
        self.store.save(staged.data, staged.rounds_completed, is_best=False)

    def announce_again(self) -> CheckpointSaved | None:
        """Return the CHECKPOINT_SAVED event of the resumed checkpoint, or None if it had none."""
        loaded = self.resumed
        assert loaded is not None, "this run was not resumed"
        # Written when the run ended, without an event; announcing it now would add one to the log.
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
            task=decisive_part(self.task),
        )

    def _encoded(self, header: CheckpointHeader) -> bytes:
        controller = {} if self.controller is None else self.controller.state_dict()
        return encode_checkpoint({"header": msgspec.to_builtins(header), **controller})


def decisive_part(task: TaskSpec) -> TaskSpec:
    """Return a task without its description and its defaults, which the job has taken already."""
    return msgspec.structs.replace(task, summary="", defaults={})


def _without_server(job: Job) -> Job:
    """Remove the settings of this execution only, above all the server's token."""
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
