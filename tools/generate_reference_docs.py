"""Writes the reference pages from the code: configuration, commands, events, SQL views."""

import ast
import inspect
import sys
import tempfile
from argparse import SUPPRESS, Action, ArgumentParser, _SubParsersAction
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from itertools import zip_longest
from pathlib import Path
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from esper.leyline.config import RunOptions, TrainingConfig
from esper.leyline.ranges import range_of
from esper.leyline.telemetry import EVENT_SPECS, Channel, EventSpec
from esper.leyline.untyped_json import compact_json
from esper.nissa.reading.query import query_logs
from esper.nissa.reading.sql_views import VIEWS
from esper.scripts import telemetry, train
from esper.scripts.job_flags import ALL_FLAGS
from tools.markdown import table

DOCS = Path(__file__).resolve().parents[1] / "docs"
GENERATED = "Generated from the code by `make docs`.\n"


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


def configuration_page() -> str:
    """Return the page of the configuration's keys."""
    parts = [
        "# Configuration",
        GENERATED,
        "`training.` keys determine the result of a run, `run.` keys only how it is executed. "
        "Set one with its flag, with `--set training.lr=0.001`, or in a TOML or JSON file with "
        "`--config FILE`; in Python they are the parameters of `train_ppo_vectorized`, without "
        "the prefix. A task or preset may change a default; `esper-train config show` prints "
        "what is in effect.\n",
    ]
    for prefix, struct in (("training", TrainingConfig), ("run", RunOptions)):
        parts += [f"## `{prefix}`\n", *_config_tables(struct, prefix)]
    return "\n".join(parts)


def _config_tables(struct: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    rows, nested = [], []
    docs = field_docs(struct)
    for field in msgspec.structs.fields(struct):
        inner = _struct_in(field.type)
        if inner is not None:
            nested.append((f"{prefix}.{field.name}", inner))
            continue
        key = f"{prefix}.{field.name}"
        rows.append(
            [
                f"`{key}`",
                _code(_type_text(struct, field.name)),
                _code(_default_text(field)),
                _cell(_meaning(field, docs[field.name] or _FLAG_HELP.get(key, ""))),
            ]
        )
    yield table(["key", "type", "default", "meaning"], rows) + "\n"
    for name, inner in nested:
        yield f"### `{name}`\n"
        yield f"{_summary(inner)}\n"
        yield from _config_tables(inner, name)


_FLAG_HELP: Final = {flag.key: flag.help for flag in ALL_FLAGS}


def _meaning(field: msgspec.structs.FieldInfo, text: str) -> str:
    """Return a key's meaning as sentences: what it is, its choices and its range."""
    choices = [item.value for kind in _kinds(field.type) for item in _members(kind)]
    sentences = (text, f"one of {', '.join(choices)}" if choices else "", range_of(field.type))
    whole = (f"{part[0].upper()}{part[1:]}".rstrip(".") + "." for part in sentences if part)
    return " ".join(whole)


def _kinds(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) or (kind,)


def _members(kind: Any) -> tuple[StrEnum, ...]:
    is_enum = isinstance(kind, type) and issubclass(kind, StrEnum)
    return tuple(kind) if is_enum else ()


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    if get_origin(kind) in (Union, UnionType):
        return next((found for part in get_args(kind) if (found := _struct_in(part))), None)
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return kind if is_struct else None


def _default_text(field: msgspec.structs.FieldInfo) -> str:
    value = field.default
    if field.default_factory is not msgspec.NODEFAULT:
        value = field.default_factory()
    return "" if value is msgspec.NODEFAULT else compact_json(msgspec.to_builtins(value)).decode()


def events_page() -> str:
    """Return the page of the events and their fields."""
    parts = [
        "# Events",
        GENERATED,
        "Every line of `events.jsonl` is one event: `event_type`, `seq` (from 0, without gaps), "
        "`ts` (seconds since 1970, UTC), `run_id`, `group`, `round`, `step`, `env_id`, "
        "`episode_id` (counted from 0; null where they do not apply), `severity` and `data`, "
        "whose fields are listed here. `float | null` is null where a number was not measured or "
        "is not finite. Fields marked *varies* differ between two equal runs. "
        "`telemetry/schema/events.schema.json` is the JSON Schema.\n",
    ]
    for channel, title in (
        (Channel.RUN, "Events of the run"),
        (Channel.OPERATIONAL, "Operational events (`operational.jsonl`)"),
    ):
        parts.append(f"## {title}\n")
        for spec in EVENT_SPECS.values():
            if spec.channel is channel:
                parts += _event_section(spec)
    return "\n".join(parts)


def _event_section(spec: EventSpec) -> Iterator[str]:
    yield f"### {spec.event_type.value}\n"
    level = spec.level.name.lower()
    yield f"{_summary(spec.payload)} Level {level}, severity {spec.severity.value}.\n"
    docs = field_docs(spec.payload)
    rows = [
        [f"`{field.name}`", _code(_type_text(spec.payload, field.name)), _cell(docs[field.name])]
        for field in msgspec.structs.fields(spec.payload)
    ]
    if rows:
        yield table(["field", "type", "meaning"], rows) + "\n"


def views_page() -> str:
    """Return the page of the views of `esper-telemetry query`."""
    parts = [
        "# SQL views",
        GENERATED,
        '`esper-telemetry query RUN "select * from funnel"` runs one DuckDB statement over these '
        "views; RUN may be a directory of runs. Times are UTC; rounds, steps and envs count from "
        "0. The columns of a payload field are described in [Events](reference_events.md), those "
        "of the configuration in [Configuration](reference_configuration.md).\n",
    ]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "events.jsonl"
        log.touch()
        for view in VIEWS.values():
            found = query_logs([log], f'SELECT * FROM (DESCRIBE "{view.name}")')
            columns = ", ".join(f"`{row[0]}` {str(row[1]).lower()}" for row in found.rows)
            events = ", ".join(item.value for item in view.types)
            source = f"\n\nOf the events {events}." if events else ""
            question = f"{view.question[0].upper()}{view.question[1:]}"
            parts += [f"## `{view.name}`\n", f"{question}{source}\n", f"{columns}.\n"]
    return "\n".join(parts)


def commands_page() -> str:
    """Return the page of the commands and their flags."""
    parts = ["# Commands", GENERATED]
    for build in (train.build_parser, telemetry.build_parser):
        parser = build()
        parts += [f"## `{parser.prog}`\n", f"{parser.description}\n", *_commands_of(parser)]
    return "\n".join(parts)


def _commands_of(parser: ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            helps = {item.dest: item.help for item in action._choices_actions}
            for name, command in action.choices.items():
                yield f"### `{command.prog}`\n"
                text = command.description or helps.get(name) or ""
                yield f"{_cell(text[:1].upper() + text[1:]).rstrip('.')}.\n"
                yield from _flag_tables(command)
                yield from _commands_of(command)


def _flag_tables(parser: ArgumentParser) -> Iterator[str]:
    rows = [
        [_code(_flag_text(action)), _cell(action.help or "")]
        for action in parser._actions
        if action.help is not SUPPRESS
        and "--help" not in action.option_strings
        and not isinstance(action, _SubParsersAction)
    ]
    if rows:
        yield table(["argument", "meaning"], rows) + "\n"


def _flag_text(action: Action) -> str:
    choices = "" if action.choices is None else "{" + ",".join(map(str, action.choices)) + "}"
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    takes = action.nargs != 0
    value = (metavar or choices or action.dest.upper()) if takes else ""
    name = ", ".join(action.option_strings)
    return f"{name} {value}".strip()


@cache
def field_docs(struct: type[msgspec.Struct]) -> Mapping[str, str]:
    """Return the docstring of each field of a struct; empty for fields without one."""
    docs = dict.fromkeys((field.name for field in msgspec.structs.fields(struct)), "")
    for owner in reversed(struct.__mro__):
        for field, text in _documented(owner):
            if field in docs:
                docs[field] = text
    return docs


def _documented(owner: type) -> Iterator[tuple[str, str]]:
    body = _body_of(owner)
    for statement, following in zip_longest(body, body[1:]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = " ".join(str(following.value.value).split())
            yield statement.target.id, text


def _body_of(owner: type) -> list[ast.stmt]:
    if not owner.__module__.startswith("esper."):
        return []
    return _classes_of(owner.__module__).get(owner.__name__, [])


@cache
def _classes_of(module: str) -> Mapping[str, list[ast.stmt]]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}


def _type_text(struct: type[msgspec.Struct], name: str) -> str:
    """Return a field's type as it is written, with what it means in JSON."""
    for owner in struct.__mro__:
        for statement in _body_of(owner):
            if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == name:
                return _plain_type(ast.unparse(statement.annotation))
    raise AssertionError(f"{struct.__name__} has no field {name}")


def _plain_type(text: str) -> str:
    names = {
        "Measured": "float | null",
        "PositiveInt": "int",
        "NonNegativeInt": "int",
        "PositiveFloat": "float",
        "NonNegativeFloat": "float",
        "PositiveFraction": "float",
        "Fraction": "float",
        "None": "null",
    }
    tree = ast.parse(text, mode="eval").body
    varies = ""
    if isinstance(tree, ast.Subscript) and ast.unparse(tree.value) == "Volatile":
        tree, varies = tree.slice, ", varies"
    plain = ast.unparse(_Renamed(names).visit(tree))
    return plain.replace("None", "null") + varies


class _Renamed(ast.NodeTransformer):
    """Replaces the names of numbers with a range by the plain types that JSON has."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Return the node of a name."""
        return ast.Name(id=self._names.get(node.id, node.id))

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Return the node of a generic type; of an annotated one, the type without its range."""
        if ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
            return self.visit(node.slice.elts[0])
        return self.generic_visit(node)


def _summary(owner: type) -> str:
    return _cell(" ".join((inspect.getdoc(owner) or "").split("\n\n")[0].split()))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("%%", "%").replace("<", "&lt;")


def _code(text: str) -> str:
    # A bar ends a cell even within backticks.
    return f"`{text}`".replace("|", "\\|") if text else ""


PAGES: Mapping[str, Callable[[], str]] = {
    "reference_configuration.md": configuration_page,
    "reference_commands.md": commands_page,
    "reference_events.md": events_page,
    "reference_sql.md": views_page,
}

if __name__ == "__main__":
    main()
