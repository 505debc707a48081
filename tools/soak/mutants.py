"""Mutants: small defects, one at a time, in the modules that lose or admit most if they are wrong.

Each mutant is loaded in a process of its own instead of the module, and the module's tests run
until one of them fails. Left alone are annotations, docstrings, texts of errors and the flags of
data classes, which say nothing about behaviour.

`python -m tools.soak.mutants MODULE` prints the survivors of one module.
"""

import ast
import contextlib
import importlib.abc
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch  # noqa: F401  loaded once, for all processes that are forked from this one
from tools.bench.rows import Row

ROOT = Path(__file__).resolve().parents[2]
TARGET = 0.95
MAX_S = 900.0
"""A mutant that runs for ever is killed too."""


@dataclass(frozen=True)
class Subject:
    """A module, and the tests that must notice its mutants, the fastest first."""

    module: str
    tests: tuple[str, ...]
    survivors: str
    """Why the mutants that are left behave like the original."""

    @property
    def path(self) -> Path:
        """Return the source file."""
        return ROOT / "src" / Path(*self.module.split(".")).with_suffix(".py")


SUBJECTS = {
    "journal": Subject(
        "esper.nissa.storage.journal",
        ("nissa/storage/test_journal.py", "nissa/bus/test_writer.py", "nissa/bus/test_hub.py"),
        "a whole block may be recorded again, and the length of what is cut off is not used",
    ),
    "blocks": Subject(
        "esper.nissa.storage.blocks",
        (
            "nissa/storage/test_blocks.py",
            "nissa/storage/test_block_facts.py",
            "nissa/storage/test_log_recovery.py",
        ),
        "sizes of buffers, a read of no bytes, and facts of which there are three or none",
    ),
    "log_recovery": Subject(
        "esper.nissa.storage.log_recovery",
        ("nissa/storage/test_log_recovery.py", "nissa/storage/test_journal.py"),
        "the longest line that is held in memory is approximate",
    ),
    "resuming": Subject(
        "esper.simic.training.checkpoints.resuming",
        (
            "simic/training/checkpoints/test_resume_refusals.py",
            "simic/training/checkpoints/test_resuming.py",
        ),
        "an equal number of rounds is no difference; tasks in files, which other tests resume",
    ),
    "security": Subject(
        "esper.nissa.live.security",
        ("nissa/live/test_security.py",),
        "None instead of False or '', and a kind of authorization that is not known either",
    ),
    "gae": Subject("esper.simic.agent.gae", ("simic/agent/test_gae.py",), "none"),
    "ppo_update": Subject(
        "esper.simic.agent.ppo_update",
        ("simic/agent/test_ppo_update.py", "simic/agent/test_ppo_metrics.py"),
        "None instead of False, gradients of 0 instead of none, the order of two `all`, a KL or "
        "ratio that equals its limit, and 1e-8 beside a floor that is larger",
    ),
}

# pytest's plugins are imported before it, once for all processes.
FLAGS = ("-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
LEFT_ALONE = ("annotation", "returns", "decorator_list", "msg")
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.Break: ast.Continue,
    ast.Continue: ast.Break,
}


@dataclass(frozen=True)
class Edit:
    """A defect that can be put into a tree."""

    line: int
    apply: Callable[[], str]
    """Changes the tree, and returns what it has changed."""


def _edits(tree: ast.Module) -> Iterator[Edit]:
    for node in _behaving(tree):
        for apply in _changes(node):
            yield Edit(getattr(node, "lineno", 0), apply)


def _changes(node: ast.AST) -> Iterator[Callable[[], str]]:
    if isinstance(operators := getattr(node, "ops", None), list):
        for index, operator in enumerate(operators):
            if type(operator) in SWAPS:
                yield partial(_replace, operators, index, SWAPS[type(operator)]())
    if type(operator := getattr(node, "op", None)) in SWAPS:
        yield partial(_set, node, "op", SWAPS[type(operator)]())
    match node:
        case ast.Constant(bool(value)):
            yield partial(_set, node, "value", not value)
        case ast.Constant(int(value)):
            yield partial(_set, node, "value", value + 1)
        case ast.Constant(str(value)):
            yield partial(_set, node, "value", f"XX{value}")
        case ast.Constant(bytes(value)):
            yield partial(_set, node, "value", b"XX" + value)
        case ast.UnaryOp(ast.Not(), operand):
            yield partial(_set, node, "operand", ast.UnaryOp(ast.Not(), operand))
        case ast.If(test) | ast.While(test) | ast.IfExp(test):
            yield partial(_set, node, "test", ast.UnaryOp(ast.Not(), test))
        case ast.Return(ast.expr() as value) if ast.unparse(value) != "None":
            yield partial(_set, node, "value", ast.Constant(None))
    for name in ("body", "orelse", "finalbody"):
        if isinstance(statements := getattr(node, name, None), list):
            for index, statement in enumerate(statements):
                if _is_removable(statement):
                    yield partial(_replace, statements, index, ast.Pass())


def _is_removable(statement: ast.AST) -> bool:
    is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    return is_call or isinstance(statement, ast.Raise | ast.AugAssign)


def _set(node: ast.AST, name: str, value: Any) -> str:
    before = _text(node)
    setattr(node, name, value)
    return f"{before}  ->  {_text(node)}"


def _replace(items: list[Any], index: int, value: ast.AST) -> str:
    before, items[index] = items[index], value
    return f"{_text(before)}  ->  {_text(value)}"


def _text(node: ast.AST) -> str:
    return type(node).__name__ if type(node) in SWAPS else ast.unparse(node).splitlines()[0]


def _behaving(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree that do something, parents first."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in LEFT_ALONE or (name == "keywords" and isinstance(node, ast.ClassDef)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _says_nothing(child):
                yield from _behaving(child)


def _says_nothing(node: ast.AST) -> bool:
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    is_all = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    return is_docstring or is_all or isinstance(node, ast.Raise | ast.JoinedStr)


@dataclass(frozen=True)
class Mutant:
    """A module with one defect."""

    subject: Subject
    code: CodeType
    what: str


def mutants(subject: Subject) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    source = subject.path.read_bytes()
    for number in range(num_mutants(subject)):
        tree = ast.parse(source)
        edit = list(_edits(tree))[number]
        what = f"line {edit.line}: {edit.apply()}"
        code = compile(ast.fix_missing_locations(tree), str(subject.path), "exec")
        yield Mutant(subject, code, what)


def num_mutants(subject: Subject) -> int:
    """Return how many mutants a module has."""
    return len(list(_edits(ast.parse(subject.path.read_bytes()))))


class MutantLoader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads a mutant in the place of its module."""

    def __init__(self, module: str, path: Path, code: Any) -> None:
        self._module, self._path, self._code = module, path, code

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """Find the mutant by the name of its module."""
        if name != self._module:
            return None
        return importlib.util.spec_from_file_location(name, self._path, loader=self)

    def exec_module(self, module: Any) -> None:
        """Run the mutant."""
        exec(self._code, module.__dict__)


def is_killed(mutant: Mutant) -> bool:
    """Run the tests of a mutant in a process of its own, and return whether one has failed."""
    process = os.fork()
    if not process:
        _run_tests(mutant)
    end_s = time.monotonic() + MAX_S
    while time.monotonic() < end_s:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) != 0
        time.sleep(0.05)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return True


def _run_tests(mutant: Mutant) -> None:
    subject = mutant.subject
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    sys.meta_path.insert(0, MutantLoader(subject.module, subject.path, mutant.code))
    files = [str(ROOT / "tests" / name) for name in subject.tests]
    os._exit(int(pytest.main(["-q", "-x", *FLAGS, *files])))


def _import_for(subject: Subject) -> None:
    """Import what the tests need of others, once for all processes that are forked from here."""
    ours, theirs = os.pipe()
    if not os.fork():
        files = [str(ROOT / "tests" / name) for name in subject.tests]
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        pytest.main(["-q", "--collect-only", *FLAGS, *files])
        os.write(theirs, "\n".join(sys.modules).encode())
        os._exit(0)
    os.close(theirs)
    with open(ours) as pipe:
        names = pipe.read().split("\n")
    os.wait()
    for name in names:
        if name.partition(".")[0] not in ("esper", "tests", "tools", "conftest", "__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def survivors(subject: Subject) -> Iterator[str]:
    """Yield the mutants that no test has noticed."""
    # Or each process would find out by itself, in a process of its own: see tests/conftest.py.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    _import_for(subject)
    whole = compile(subject.path.read_bytes(), str(subject.path), "exec")
    assert not is_killed(Mutant(subject, whole, "")), f"tests of {subject.module} fail without it"
    for mutant in mutants(subject):
        if not is_killed(mutant):
            yield mutant.what


def rows(is_quick: bool) -> Iterator[Row]:
    """Test the tests: row L20."""
    names = ("blocks",) if is_quick else tuple(SUBJECTS)
    for name in names:
        total, left = num_mutants(SUBJECTS[name]), list(survivors(SUBJECTS[name]))
        yield Row(
            name=f"L20 mutants of {name} killed",
            measured=1 - len(left) / total,
            target=TARGET,
            unit=f"of {total}",
            is_at_least=True,
            note=f"{len(left)} survive: {SUBJECTS[name].survivors}",
        )


if __name__ == "__main__":
    for survivor in survivors(SUBJECTS[sys.argv[1]]):
        print(survivor, flush=True)
