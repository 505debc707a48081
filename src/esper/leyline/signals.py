"""What a host's training looks like from outside, step by step."""

from typing import Final

import msgspec

__all__ = ["HISTORY_LENGTH", "TrainingSignals"]

HISTORY_LENGTH: Final = 5
"""How many past validation results the policy sees."""


class TrainingSignals(msgspec.Struct, frozen=True, kw_only=True):
    """One env's signals after a validation pass. Positive deltas are improvements."""

    step: int
    train_loss: float
    train_accuracy_pct: float
    val_loss: float
    val_accuracy_pct: float
    loss_delta: float | None
    """Previous minus current validation loss; None on the first step."""
    accuracy_delta_pp: float | None
    """Current minus previous validation accuracy; None on the first step."""
    plateau_steps: int
    """Steps in a row without a noticeable gain in accuracy."""
    stable_steps: int
    is_stabilized: bool
    """Latched once the host has been stable for long enough."""
    best_val_accuracy_pct: float
    loss_history: tuple[float, ...]
    """The last HISTORY_LENGTH validation losses, oldest first; shorter early on."""
    accuracy_history: tuple[float, ...]
