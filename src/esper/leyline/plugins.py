"""Extensions in installed packages, which are found by their entry points."""

from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import TypeAlias

from esper.leyline.errors import EsperError, PluginError

__all__ = ["FindPlugins", "call_plugins", "installed_plugins"]

FindPlugins: TypeAlias = Callable[[], Iterable[EntryPoint]]


def installed_plugins(group: str) -> Iterable[EntryPoint]:
    """Return a group's entry points of installed packages."""
    return entry_points(group=group)


def call_plugins(kind: str, plugins: Iterable[EntryPoint]) -> None:
    """Call the function behind each entry point, which registers what the package offers.

    Args:
        kind: what is registered, for the error message.
        plugins: the entry points.
    """
    for plugin in plugins:
        try:
            plugin.load()()
        except EsperError:
            raise
        except Exception as error:  # a plug-in may raise anything
            reason = f"{plugin.value} failed: {error!r}; repair or uninstall the package"
            raise PluginError(kind, plugin.name, reason) from error
