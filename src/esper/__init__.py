"""Esper trains neural networks that grow while they train."""

from esper.version import __distribution__, __version__

# `typing` and `pathlib` take 30 ms to load, in which the commands could not handle a signal.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from esper.kasmina.grown_network import GrownNetwork
    from esper.kasmina.hosts import StagedHost

__all__ = ["__distribution__", "__version__", "host", "load_grown", "register_blueprint"]


def load_grown(path: "Path | str") -> "GrownNetwork":
    """Load a network that Esper has grown: an ordinary module in evaluation mode.

    It takes inputs as the data set stores them, such as pixels from 0 to 255: its submodule
    `preprocess` scales them, `model` maps scaled inputs to logits. All parameters can be trained.
    """
    # torch takes seconds to load, and most of what imports this package does without it.
    from esper.simic.training.checkpoints import grown

    return grown.load_grown(path)


def host(model: "nn.Module", *, after: "Sequence[str]", sample: "Tensor") -> "StagedHost":
    """Cut a copy of a network behind the named submodules; each cut is a slot for seeds."""
    # Imported here for the same reason as above.
    from esper.kasmina.hosts import make_host

    return make_host(model, after=after, sample=sample)


def register_blueprint(
    name: str,
    build: "Callable[[int], nn.Module]",
    *,
    topology: str = "cnn",
    channels: int = 8,
) -> None:
    """Register a kind of seed; a run offers it if its `training.blueprints` name it.

    Args:
        name: lower-case letters, digits and underscores.
        build: returns a new seed for some number of channels, such as a class of modules.
        topology: `cnn` or `transformer`; register it twice for both.
        channels: the number of channels that a seed is built and checked with.
    """
    # Imported here for the same reason as above.
    from esper.kasmina import blueprints
    from esper.leyline.actions import Topology

    blueprints.register_blueprint(name, build, topology=Topology(topology), channels=channels)
