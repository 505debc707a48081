"""Where the first weights of a policy come from, if they are those of another one."""

from pathlib import Path
from typing import Final

from esper.leyline.config import Job
from esper.leyline.errors import UsageError
from esper.simic.training.checkpoints.builtin import checkpoint_at
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.checkpoints.resuming import load_run
from esper.tamiyo.network import PolicySpec

__all__ = ["check_same_shape", "load_origin"]

POLICY_COMMAND: Final = "ppo"
_SHAPE: Final = {
    "num_slots": ("slots", "training.slots"),
    "added_blueprints": ("added blueprints", "training.blueprints"),
    "feature_dim": ("features", "training.feature_dim"),
    "hidden_dim": ("LSTM units", "training.lstm_hidden_dim"),
}
"""What the weights of a policy depend on, in words and with its key."""


def load_origin(job: Job, command: str) -> LoadedRun | None:
    """Return the checkpoint whose policy a new one begins with, if the job names one."""
    reference = job.training.init_from
    if reference is None or command != POLICY_COMMAND:
        return None
    loaded = load_run(checkpoint_at(reference, Path(job.run.telemetry_dir)))
    if loaded.controller is None:
        raise UsageError(
            f"--init-from {reference}: a checkpoint of {loaded.command!r}, which has no policy; "
            "name one of 'ppo'"
        )
    return loaded


def check_same_shape(origin: LoadedRun, theirs: PolicySpec, ours: PolicySpec) -> None:
    """Raise if the weights of a policy do not fit another one, with the way on."""
    for name, (words, key) in _SHAPE.items():
        before, now = getattr(theirs, name), getattr(ours, name)
        if before != now:
            raise UsageError(
                f"--init-from {origin.path}: its policy has {_text(before)} {words}, this run's "
                f"has {_text(now)}; set {key} as in that run, or begin with random weights"
            )


def _text(value: object) -> object:
    return (", ".join(value) or "no") if isinstance(value, tuple) else value
