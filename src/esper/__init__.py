"""Esper trains neural networks that grow while they train."""

from esper.version import __version__

# `typing` and `pathlib` take 30 ms to load, in which the commands could not handle a signal.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from esper.kasmina.hosts import StagedHost

__all__ = ["__distribution__", "__version__", "host", "load_grown"]

__distribution__ = "esper-grow"
"""What pip installs; the name `esper` belongs to another project there."""


def load_grown(path: "Path | str") -> "nn.Module":
    """Load a network that Esper has grown, ready to use: an ordinary module in evaluation mode."""
    # torch takes seconds to load, and most of what imports this package does without it.
    from esper.simic.training.checkpoints import grown

    return grown.load_grown(path)


def host(model: "nn.Module", *, after: "Sequence[str]", sample: "Tensor") -> "StagedHost":
    """Cut a copy of a network behind the named submodules; each cut is a slot for seeds."""
    # Imported here for the same reason as above.
    from esper.kasmina.hosts import make_host

    return make_host(model, after=after, sample=sample)
