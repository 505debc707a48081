"""The configuration of runs as columns: one per key, for the view `runs`."""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin

import msgspec

from esper.leyline.config import RunOptions, TrainingConfig
from esper.leyline.untyped_json import compact_json
from esper.nissa.reading.run_lookup import manifest_of, run_directory_of

__all__ = ["RunConfig", "config_columns", "read_run_configs"]

_SQL_TYPES: Final = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE"}


class RunConfig(NamedTuple):
    """One run's configuration as JSON: the keys that `config_columns` selects."""

    run_id: str
    config: str


def read_run_configs(logs: Iterable[Path]) -> list[RunConfig]:
    """Read the manifests beside these logs; a log without one has no configuration."""
    found: dict[str, RunConfig] = {}
    for log in logs:
        directory = run_directory_of(log)
        manifest = None if directory is None else manifest_of(directory)
        if manifest is not None:
            job = msgspec.to_builtins(manifest.job)
            text = compact_json({**job["training"], **job["run"]}).decode()
            # A run that was copied counts once, as do its events in a join.
            found[manifest.run_id] = RunConfig(manifest.run_id, text)
    return list(found.values())


def config_columns(taken: Collection[str]) -> dict[str, str]:
    """Return an expression for each key that is not among `taken`, by the column's name.

    A column is named as the key without `training.` or `run.`, which no two keys share.
    """
    return {
        name: source
        for struct in (RunOptions, TrainingConfig)
        for name, source in _columns(struct, "")
        if name not in taken
    }


def _columns(struct: type[msgspec.Struct], path: str) -> Iterator[tuple[str, str]]:
    for field in msgspec.structs.fields(struct):
        name = f"{path}{field.name}"
        kinds = set(_plain_kinds(field.type))
        nested = next((kind for kind in kinds if _is_struct(kind)), None)
        if nested is not None:
            yield from _columns(nested, f"{name}.")
        elif any(get_origin(kind) in (dict, tuple) for kind in kinds):
            yield name, f"nullif(config->'$.{name}', 'null')"
        else:
            kind = next((_SQL_TYPES[kind] for kind in kinds if kind in _SQL_TYPES), "VARCHAR")
            yield name, f"CAST(config->>'$.{name}' AS {kind})"


def _is_struct(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _plain_kinds(kind: Any) -> Iterator[Any]:
    """Yield the types that a field may have, without their constraints."""
    if get_origin(kind) is Annotated:
        yield from _plain_kinds(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for item in get_args(kind):
            yield from _plain_kinds(item)
    else:
        yield kind
