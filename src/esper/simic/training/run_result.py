"""What a run leaves behind."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from esper.leyline.reports import BatchSummary
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.training.checkpoints.grown import GROWN_FILE, load_grown
from esper.simic.training.checkpoints.run_state import RunState

if TYPE_CHECKING:
    from esper.karn.view.snapshot import Verdict

__all__ = ["TrainedPolicy", "TrainingHistory", "TrainingResult"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingResult:
    """What a run leaves behind."""

    agent: PPOAgent | None
    """None for a controller that does not learn."""
    history: tuple[BatchSummary, ...]
    """The last 1,000 rounds at most."""
    state: RunState
    run_dir: Path
    traces_dir: Path | None
    """Where torch traces are, if they were asked for."""
    data_note: str | None
    """What the operator has to know about the data."""
    is_stop_requested: bool = False
    """Whether a stop was requested too late to interrupt this run."""


class TrainingHistory(list[BatchSummary]):
    """The summaries of a run's rounds, oldest first."""

    def __init__(self, result: TrainingResult) -> None:
        super().__init__(result.history)
        self.result = result
        """What else the run left behind: its directory, final state and notes."""


class TrainedPolicy(NamedTuple):
    """An agent and the summaries of its rounds, and what else its run has left behind."""

    agent: PPOAgent
    history: TrainingHistory

    @property
    def run_dir(self) -> Path:
        """Return the directory of the run."""
        return self.history.result.run_dir

    @property
    def grown(self) -> nn.Module | None:
        """Load the best network that the run has grown; None for a task without networks."""
        path = self.run_dir / GROWN_FILE
        return load_grown(path) if path.exists() else None

    @property
    def verdict(self) -> "Verdict":
        """Return what the dashboard says of the run: whether the policy learns, and why."""
        from esper.karn.view.view_feed import read_run  # a run that is not watched loads no view

        return read_run(self.run_dir).snapshot().verdict
