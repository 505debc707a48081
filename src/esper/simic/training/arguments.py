"""Arguments of the public entry point: which were given, and their conversion to a config layer."""

import os
from collections.abc import Mapping
from enum import Enum
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from esper.leyline.config import DEFAULT_SERVER_ADDRESS, RunOptions, TrainingConfig
from esper.leyline.errors import InvalidValueError
from esper.leyline.jobs import Layer

__all__ = ["DEFAULTS", "NotGiven", "layer_from_arguments"]


class NotGiven:
    """Default of an argument that was not given: preset, task or configuration decide its value.

    An argument that is passed explicitly counts as given even if it equals the default.
    """

    __slots__ = ("configured", "source")

    def __init__(self, configured: object, source: str) -> None:
        self.configured = configured
        """The default in the configuration."""
        self.source = source
        """Where the value comes from, shown by `help`."""

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
"""Default of each argument, by configuration key."""


def layer_from_arguments(arguments: Mapping[str, object]) -> Layer:
    """Return the given arguments as tables of a job, without those that are not job keys."""
    return {
        table: {
            key: _plain(f"{table}.{key}", arguments[key])
            for key in struct.__struct_fields__
            if not isinstance(arguments[key], NotGiven)
        }
        for table, struct in (("training", TrainingConfig), ("run", RunOptions))
    }


def _plain(key: str, value: object) -> object:
    if key == "run.serve" and isinstance(value, bool):
        return DEFAULT_SERVER_ADDRESS if value else None
    try:
        return msgspec.to_builtins(value, enc_hook=os.fspath)
    except TypeError:
        raise InvalidValueError(key, value, "must be a plain value or a path") from None
