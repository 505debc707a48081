"""Extras: the packages that some features need, and the command that installs them."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from esper.leyline.errors import MissingExtraError

__all__ = ["EXTRAS", "require_packages"]

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "query": ("duckdb",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mcp": ("mcp",),
    "search": ("optuna",),
    "ray": ("ray",),
    "export": ("safetensors", "onnx", "onnxscript"),
}
"""The packages of each extra, as in pyproject.toml; they are imported by the same names."""


def require_packages(feature: str, *packages: str, alternative: str | None = None) -> None:
    """Raise an error with the install command unless all packages are installed.

    Args:
        feature: what needs them, as the user named it.
        packages: of `EXTRAS`.
        alternative: what can be done instead of installing them.
    """
    for package in packages:
        if find_spec(package) is None:
            (extra,) = (name for name, members in EXTRAS.items() if package in members)
            raise MissingExtraError(feature, package, extra, alternative)
