"""What a run leaves behind."""

from dataclasses import dataclass
from pathlib import Path

from esper.leyline.reports import BatchSummary
from esper.simic.agent.ppo_agent import PPOAgent
from esper.simic.training.checkpoints.run_state import RunState

__all__ = ["TrainingHistory", "TrainingResult"]


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
