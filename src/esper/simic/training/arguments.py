"""Arguments of the public entry point: which were given, and the layer of a job they make."""

import os
from collections.abc import Mapping
from enum import Enum
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from esper.leyline.config import RunOptions, TrainingConfig
from esper.leyline.errors import InvalidValueError
from esper.leyline.jobs import Layer

__all__ = ["DEFAULTS", "NotGiven", "layer_from_arguments"]


class NotGiven:
    """The default of an argument: not given, so that preset, task and configuration decide.

    An argument that equals the configuration's default is still one that was given.
    """

    __slots__ = ("configured", "source")

    def __init__(self, configured: object, source: str) -> None:
        self.configured = configured
        """The configuration's own default."""
        self.source = source
        """Where the value comes from, for `help`."""

    def __repr__(self) -> str:
        value = self.configured
        if isinstance(value, msgspec.Struct):
            return f"<{self.source} {type(value).__name__}()>"
        return f"<{self.source} {value.value if isinstance(value, Enum) else value!r}>"


def _defaults(table: msgspec.Struct, source: str) -> dict[str, NotGiven]:
    return {key: NotGiven(value, source) for key, value in msgspec.structs.asdict(table).items()}


DEFAULTS: Final[Any] = SimpleNamespace(
    **_defaults(TrainingConfig(), "task's, else"),
    **_defaults(RunOptions(), "default"),
)
"""By key of the configuration, the default of the argument that stands for it."""


def layer_from_arguments(arguments: Mapping[str, object]) -> Layer:
    """Return the given arguments as tables of a job; those that are no keys of one are left out."""
    return {
        table: {
            key: _plain(f"{table}.{key}", arguments[key])
            for key in struct.__struct_fields__
            if not isinstance(arguments[key], NotGiven)
        }
        for table, struct in (("training", TrainingConfig), ("run", RunOptions))
    }


def _plain(key: str, value: object) -> object:
    try:
        return msgspec.to_builtins(value, enc_hook=os.fspath)
    except TypeError:
        raise InvalidValueError(key, value, "must be a plain value or a path") from None
