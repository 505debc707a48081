"""Whatever src defines, src uses: functions, classes, constants, methods, fields and options.

Names of modules are resolved through imports. Methods, fields and options are matched by name
alone, so one that shares its name with a used one goes unnoticed. What only tests use is listed.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from tools.source_modules import SOURCE_ROOT, SourceModule, source_modules

Function = ast.FunctionDef | ast.AsyncFunctionDef
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
QUOTED_NAME = re.compile(r"[A-Za-z_][\w.]*(\[.*\])?( \| None)?")
"""A string that names something: for getattr, for a key, or as a quoted annotation."""


@dataclass(frozen=True)
class Definition:
    """Something that src gives a name."""

    module: str
    name: str
    owner: str = ""
    """The class of a method or field, the function of an option."""

    @property
    def label(self) -> str:
        return ".".join(part for part in (self.module, self.owner, self.name) if part)


@dataclass
class Uses:
    """What the whole source refers to."""

    by_module: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Dotted module to those of its names that are read, there or where they are imported."""
    attributes: set[str] = field(default_factory=set)
    """Names that are read from an object, be it by a string."""
    calls: dict[str, list[ast.Call]] = field(default_factory=lambda: defaultdict(list))
    references: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """How often a name is read without being called."""


def is_public_list(node: ast.AST) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(it, ast.Name) and it.id == "__all__" for it in targets)


def read_nodes(tree: ast.Module) -> Iterator[tuple[ast.AST, frozenset[str]]]:
    """Yield every node but docstrings and `__all__`, with the definitions that it lies within."""
    stack: list[tuple[ast.AST, frozenset[str]]] = [(tree, frozenset())]
    while stack:
        node, within = stack.pop()
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_docstring or is_public_list(node):
            continue
        yield node, within
        if isinstance(node, Function | ast.ClassDef):
            within |= {node.name}
        stack += [(child, within) for child in ast.iter_child_nodes(node)]


def collect_uses(modules: Iterable[SourceModule], assets: Iterable[Path]) -> Uses:
    uses = Uses()
    for module in modules:
        _collect(module, uses)
    for module in modules:
        _pass_on(module, uses)
    for path in assets:
        uses.attributes.update(IDENTIFIER.findall(path.read_text(encoding="utf-8")))
    return uses


def _pass_on(module: SourceModule, uses: Uses) -> None:
    """Count a use of a name that a package re-exports as one of where it is defined."""
    for node in module.tree.body:
        if module.path.name == "__init__.py" and isinstance(node, ast.ImportFrom):
            names = {item.name for item in node.names} & uses.by_module[module.name]
            uses.by_module[node.module or ""] |= names


def _collect(module: SourceModule, uses: Uses) -> None:
    imported = {
        item.asname or item.name: (node.module, item.name)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for item in node.names
    }
    called: set[int] = set()
    for node, within in read_nodes(module.tree):
        if isinstance(node, ast.Call):
            called.add(id(node.func))
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            uses.calls[name].append(node)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            _note_name(node.id, within, module, imported, uses)
            uses.references[node.id] += id(node) not in called
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if node.attr not in within:
                uses.attributes.add(node.attr)
            uses.references[node.attr] += id(node) not in called
            if isinstance(node.value, ast.Name) and node.value.id in imported:
                uses.by_module[".".join(imported[node.value.id])].add(node.attr)
        elif isinstance(node, ast.MatchClass):
            uses.attributes.update(node.kwd_attrs)
        elif isinstance(node, ast.Constant) and QUOTED_NAME.fullmatch(str(node.value)):
            for word in IDENTIFIER.findall(str(node.value)):
                uses.attributes.add(word)
                _note_name(word, within, module, imported, uses)


def _note_name(
    name: str,
    within: frozenset[str],
    module: SourceModule,
    imported: dict[str, tuple[str, str]],
    uses: Uses,
) -> None:
    if name in imported:
        origin, original = imported[name]
        uses.by_module[origin].add(original)
    elif name not in within:
        uses.by_module[module.name].add(name)


# --- Definitions ---------------------------------------------------------------------------------


def is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def registers(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) or getattr(decorator, "attr", "") == "register"


def module_definitions(module: SourceModule) -> Iterator[Definition]:
    """Yield what stands at the top of a module; what a decorator registers is called by others."""
    for node in module.tree.body:
        names: list[str] = []
        if isinstance(node, ast.ClassDef):
            names = [node.name]
        elif isinstance(node, Function):
            is_registered = any(map(registers, node.decorator_list))
            names = [] if is_registered else [node.name]
        elif isinstance(node, ast.Assign):
            names = [it.id for it in node.targets if isinstance(it, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        yield from (Definition(module.name, name) for name in names if not is_dunder(name))


def class_definitions(module: SourceModule) -> Iterator[Definition]:
    """Yield methods and annotated fields; fields of a NamedTuple may be read by position."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        for item in node.body:
            if isinstance(item, Function) and not is_dunder(item.name):
                yield Definition(module.name, item.name, node.name)
            elif (
                isinstance(item, ast.AnnAssign)
                and isinstance(item.target, ast.Name)
                and "NamedTuple" not in bases
            ):
                yield Definition(module.name, item.target.id, node.name)


def options(module: SourceModule) -> Iterator[tuple[Definition, int | None]]:
    """Yield parameters with a default, with their position in a call where they have one."""
    for node in ast.walk(module.tree):
        if not isinstance(node, Function) or is_dunder(node.name):
            continue
        positional = [*node.args.posonlyargs, *node.args.args]
        shift = 1 if positional and positional[0].arg in ("self", "cls") else 0
        first = len(positional) - len(node.args.defaults)
        for index, item in enumerate(positional[first:], first):
            yield Definition(module.name, item.arg, node.name), index - shift
        for item, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
            if default is not None:
                yield Definition(module.name, item.arg, node.name), None


def is_passed(option: Definition, position: int | None, uses: Uses) -> bool:
    """Return whether some call of a function of this name may pass the option."""
    if uses.references[option.owner] or option.owner not in uses.calls:
        return True  # handed on as a value, or not called: the function itself is listed instead
    return any(
        any(keyword.arg in (option.name, None) for keyword in call.keywords)
        or any(isinstance(argument, ast.Starred) for argument in call.args)
        or (position is not None and len(call.args) > position)
        for call in uses.calls[option.owner]
    )


def unused(modules: Iterable[SourceModule], assets: Iterable[Path]) -> list[str]:
    """Return the labels of everything that nothing in the source uses."""
    uses = collect_uses(modules, assets)
    found: list[Definition] = []
    for module in modules:
        found += [
            it for it in module_definitions(module) if it.name not in uses.by_module[module.name]
        ]
        found += [it for it in class_definitions(module) if it.name not in uses.attributes]
        found += [
            option for option, position in options(module) if not is_passed(option, position, uses)
        ]
    return sorted({it.label for it in found})


ASSETS = sorted(path for path in SOURCE_ROOT.rglob("*") if path.suffix in (".js", ".html"))

WRITTEN = "a field of what is written to a log, a file or the page, and read there"
BY_NAME = "becomes the field of an event of the same name"
LIBRARY = "for users of the library"
PLUGIN = "loaded by the name of its module"
COMMAND = "what an installed command calls"
DOUBLE = "an official double, for the tests of users too"
FACTORY = "named by the spec of a host, which imports it"
CALLED = "called by the framework that it overrides"
TOOLS = "read by tools: soaks, benches and the generators of documentation"
REPLACED = "an option that tests replace: another file system, limit or clock"

ALLOWED: dict[str, str] = {
    "esper.karn.report.comparison_tables.differences_table.contrasts": TOOLS,
    "esper.karn.mcp.messages.*": WRITTEN,
    "esper.karn.view.snapshot.*": WRITTEN,
    "esper.kasmina.blueprints.registry.blueprint_params": LIBRARY,
    "esper.kasmina.blueprints.seed.Seed.birth": TOOLS,
    "esper.kasmina.blueprints.seed.Seed.structure": TOOLS,
    "esper.kasmina.counterfactual.*": TOOLS,
    "esper.kasmina.hosts.dropout.SeededDropout.extra_repr": CALLED,
    "esper.kasmina.model.MorphogeneticModel.num_fossils": TOOLS,
    "esper.leyline.comparison.ArmSummary.*": WRITTEN,
    "esper.leyline.evaluation.EvaluationReport.*": WRITTEN,
    "esper.leyline.manifest.RunManifest.*": WRITTEN,
    "esper.leyline.engine_payloads.*": WRITTEN,
    "esper.leyline.payloads.*": WRITTEN,
    "esper.leyline.reports.EpisodeRecord.*": BY_NAME,
    "esper.leyline.rewards.RewardComponents.*": WRITTEN,
    "esper.leyline.slots.InjectionSpec.surface": LIBRARY,
    "esper.host": LIBRARY,
    "esper.load_grown": LIBRARY,
    "esper.register_blueprint": LIBRARY,
    "esper.kasmina.hosts.staged._Tracer.is_leaf_module": CALLED,
    "esper.kasmina.hosts.staged._Tracer.getattr": CALLED,
    "esper.scripts.cli.CommandParser.parse_known_args": CALLED,
    "esper.scripts.commands.telemetry": COMMAND,
    "esper.scripts.commands.train": COMMAND,
    "esper.nissa.analysis.validation.ChecksumState.*": WRITTEN,
    "esper.nissa.bus.hub.HubStatistics.*": LIBRARY,
    "esper.nissa.bus.hub.SinkStatistics.*": LIBRARY,
    "esper.nissa.bus.hub.flush.timeout_s": LIBRARY,
    "esper.nissa.sinks.*_sink.open_sink": PLUGIN,
    "esper.nissa.storage.journal.Journal.recovery": LIBRARY,
    "esper.nissa.storage.journal.Recovery.*": LIBRARY,
    "esper.nissa.storage.journal.claim_run.files": REPLACED,
    "esper.nissa.storage.run_directory.build_manifest.run_id": REPLACED,
    "esper.nissa.storage.run_directory.create_run_directory.files": REPLACED,
    "esper.nissa.storage.run_directory.put_on_record.files": REPLACED,
    "esper.nissa.live.protocols.*Protocol.*": CALLED,
    "esper.nissa.live.server._*": CALLED,
    "esper.nissa.live.app.build_app.max_connections": REPLACED,
    "esper.nissa.bus.recording_hub.RecordingHub*": DOUBLE,
    "esper.nissa.bus.recording_hub.flush.timeout_s": DOUBLE,
    "esper.runtime.downloads.download.limit_s": REPLACED,
    "esper.runtime.formats._BoundedReader.readable": CALLED,
    "esper.runtime.networks.resnet.resnet20": FACTORY,
    "esper.runtime.networks.vit.digits_vit": FACTORY,
    "esper.runtime.tasks.register_task": LIBRARY,
    "esper.simic.agent.ppo_metrics.*Metrics.*": BY_NAME,
    "esper.simic.evaluation.evaluate.evaluate_policy.shutdown_event": LIBRARY,
    "esper.simic.evaluation.statistics.bootstrap.num_draws": REPLACED,
    "esper.simic.exporting.graph.Graph.*": WRITTEN,
    "esper.simic.training.checkpoints.grown.read_grown_header": LIBRARY,
    "esper.simic.training.worker_process.serve": CALLED,
    "esper.tolaria.fences.FenceCall.operation": DOUBLE,
    "esper.tolaria.fences.RecordingFence": DOUBLE,
    "esper.tolaria.supervisor.supervise.linger_s": REPLACED,
}
"""Patterns of labels, and why src need not use what they match."""


@pytest.fixture(scope="module")
def listed() -> list[str]:
    """Return the labels of everything that src defines and does not use."""
    return unused(source_modules(), ASSETS)


def test_everything_that_is_defined_is_used(listed: list[str]) -> None:
    assert [label for label in listed if not any(fnmatchcase(label, it) for it in ALLOWED)] == []


def test_every_exception_is_still_needed(listed: list[str]) -> None:
    assert [it for it in ALLOWED if not any(fnmatchcase(label, it) for label in listed)] == []


PROBE = """
from dataclasses import dataclass

__all__ = ["Box", "forgotten"]
LIMIT = 3
IGNORED = 4

@dataclass
class Box:
    shown: int
    hidden: int

    def look(self):
        return self.shown

    def shake(self, hard=False):
        return hard and self.shake()

def opened(box, *, gently=True, twice=False):
    return box.look(), gently, twice, LIMIT

def forgotten():
    return forgotten()

opened(Box(1, 2), twice=True)
"""


def test_what_is_only_exported_or_calls_itself_is_not_used() -> None:
    module = SourceModule(SOURCE_ROOT / "probe.py", PROBE, ast.parse(PROBE))
    assert unused([module], []) == [
        "esper.probe.Box.hidden",
        "esper.probe.Box.shake",
        "esper.probe.IGNORED",
        "esper.probe.forgotten",
        "esper.probe.opened.gently",
        "esper.probe.shake.hard",
    ]
