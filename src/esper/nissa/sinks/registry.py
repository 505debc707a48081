"""The known sinks: those of Esper and those of installed packages."""

import zlib
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Final, NamedTuple, cast

from esper.leyline.errors import ConfigError, UnknownNameError
from esper.leyline.extras import require_packages
from esper.nissa.sinks.contract import SinkOpener

__all__ = ["ENTRY_POINT_GROUP", "SinkSpec", "check_sink", "opener_of", "parse_sink", "sink_names"]

ENTRY_POINT_GROUP: Final = "esper.sinks"
"""Each entry point names a function that takes a `SinkRequest` and returns a `Sink`."""


class _Builtin(NamedTuple):
    module: str
    """Has a function `open_sink`."""
    packages: tuple[str, ...] = ()
    """What it needs, of an extra."""
    needs_target: bool = False


_BUILTINS: Final[Mapping[str, _Builtin]] = {
    "jsonl": _Builtin("esper.nissa.sinks.jsonl_sink", needs_target=True),
    "tensorboard": _Builtin("esper.nissa.sinks.tensorboard_sink", ("tensorboard",)),
    "wandb": _Builtin("esper.nissa.sinks.wandb_sink", ("wandb",)),
}


class SinkSpec(NamedTuple):
    """A sink as a user names it: `NAME` or `NAME:TARGET`."""

    name: str
    target: str | None

    @property
    def label(self) -> str:
        """Return a file name for this sink, which differs from those of other targets."""
        return f"{self.name}-{zlib.crc32((self.target or '').encode()):08x}"


def parse_sink(text: str) -> SinkSpec:
    """Split `NAME:TARGET`; paths after the first colon may contain others."""
    name, _, target = text.partition(":")
    return SinkSpec(name, target or None)


def check_sink(text: str, source: str) -> SinkSpec:
    """Return a sink that can be opened; raise UsageError with a way on if it cannot.

    Args:
        text: `NAME` or `NAME:TARGET`.
        source: where it was given, for the message.
    """
    spec = parse_sink(text)
    builtin = _BUILTINS.get(spec.name)
    if builtin is None:
        _plugin(spec.name)
        return spec
    require_packages(f"{source} {spec.name}", *builtin.packages)
    if builtin.needs_target and spec.target is None:
        raise ConfigError(f"{source} {text}: expected a path, such as {spec.name}:events.jsonl")
    return spec


def opener_of(spec: SinkSpec) -> SinkOpener:
    """Load a sink's module and return its function."""
    builtin = _BUILTINS.get(spec.name)
    if builtin is None:
        return cast(SinkOpener, _plugin(spec.name).load())
    return cast(SinkOpener, import_module(builtin.module).open_sink)


def sink_names() -> set[str]:
    """Return the names of all sinks, those of installed packages included."""
    return {*_BUILTINS, *_installed_plugins()}


def _plugin(name: str) -> EntryPoint:
    plugins = _installed_plugins()
    if name not in plugins:
        raise UnknownNameError("sink", name, sink_names())
    return plugins[name]


def _installed_plugins() -> Mapping[str, EntryPoint]:
    return {plugin.name: plugin for plugin in entry_points(group=ENTRY_POINT_GROUP)}
