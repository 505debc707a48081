"""The keeper: what a checkpoint contains, when one is due, and how a run goes on from it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from esper.leyline.config import Job
from esper.leyline.payloads import CheckpointSaved
from esper.nissa.hub import Hub
from esper.simic.training.checkpoints import CheckpointStore, SavedCheckpoint
from esper.simic.training.policy_controller import PolicyController
from esper.simic.training.run_state import RunState

__all__ = ["Keeper", "LoadedRun"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedRun:
    """A checkpoint that a run goes on from."""

    path: Path
    job: Job
    state: RunState
    controller: dict[str, Any] | None
    """The learning controller's part; None for one that does not learn."""
    log_seq: int
    """The last event that was on disk when it was taken; -1 for none."""
    is_best: bool
    num_bytes: int


@dataclass(eq=False, kw_only=True, slots=True)
class Keeper:
    """Saves a run's whole state between rounds, behind its log.

    Every random stream is derived from the seed and the round, so the counters are all there is to
    keep of them.
    """

    store: CheckpointStore
    job: Job
    hub: Hub
    controller: PolicyController | None
    every: int
    is_judged_by_loss: bool
    """Best means the lowest loss, as for language models, and not the highest accuracy."""
    resumed: LoadedRun | None = None

    def is_due(self, rounds_completed: int, num_rounds: int) -> bool:
        """Tell whether this round ends with a checkpoint; the last one always does."""
        return rounds_completed % self.every == 0 or rounds_completed == num_rounds

    def save(self, state: RunState, *, is_best: bool) -> CheckpointSaved:
        """Bring the log to the disk, then the checkpoint that counts on it."""
        log_seq = self.hub.next_seq - 1
        self.hub.flush()
        saved = self.store.save(
            self._contents(state, log_seq, is_best=is_best),
            state.rounds_completed,
            is_best=is_best,
        )
        return _announcement(state, saved, log_seq, is_best=is_best)

    def announce_again(self) -> CheckpointSaved:
        """Return what was told of the checkpoint that this run goes on from."""
        loaded = self.resumed
        assert loaded is not None, "this run was not resumed"
        saved = SavedCheckpoint(path=loaded.path, num_bytes=loaded.num_bytes)
        return _announcement(loaded.state, saved, loaded.log_seq, is_best=loaded.is_best)

    def _contents(self, state: RunState, log_seq: int, *, is_best: bool) -> dict[str, Any]:
        return {
            "job": msgspec.to_builtins(self.job),
            "state": msgspec.to_builtins(state),
            "log_seq": log_seq,
            "is_best": is_best,
            **({} if self.controller is None else self.controller.state_dict()),
        }


def _announcement(
    state: RunState, saved: SavedCheckpoint, log_seq: int, *, is_best: bool
) -> CheckpointSaved:
    return CheckpointSaved(
        rounds_completed=state.rounds_completed,
        log_seq=log_seq,
        is_best=is_best,
        path=saved.path.name,
        num_bytes=saved.num_bytes,
    )
