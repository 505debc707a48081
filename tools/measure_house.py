"""Measure the source against the limits of the project.

Usage: python -m tools.measure_house

Prints each figure beside its limit, and what exceeds it; exits with 1 if a limit is exceeded.

- Internal imports: distinct modules of Esper that a module names in an import, at any depth, in
  functions and under TYPE_CHECKING too.
- Sizes: lines of a function without its signature and docstring; lines of a module.
- Cycles: groups of modules that reach each other by imports, those in functions included. What
  stands under TYPE_CHECKING is never imported and does not count, and that a module imports the
  packages that it lies in does not either.
- One decision: distinct modules on the stack from `Control.decide` to the controller's choice on
  the control thread, and from `EnvGroup.apply` to `SeedSlot.germinate` on the lane's thread. The
  modules that carry any call from the trainer's loop to a thread are named apart.
- One event: calls on the stack from `VectorizedPPOTrainer.publish` to `Inbox.put` on the event
  loop, and from `Writer._run` to `FileSystem.write` on the writer's thread, for an event of a step.
- Tests: modules with code to run, and neither `tests/<package>/test_<module>.py` nor a row in
  `TESTED_BY`.

The two call paths are taken from the stacks of a real tiny run; see `tools/call_walks.py`.
"""

import ast
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tools.call_walks import Leg, Stack, longest, modules_of, record_stacks
from tools.source_modules import (
    ROOT,
    SOURCE_ROOT,
    SourceModule,
    body_lines,
    body_statements,
    source_modules,
)

MAX_INTERNAL_IMPORTS: Final = 20
MAX_FUNCTION_LINES: Final = 60
MAX_MODULE_LINES: Final = 800
MAX_DECISION_MODULES: Final = 8
MAX_EVENT_CALLS: Final = 12
NUM_SHOWN: Final = 5
"""How many of the largest figures are shown where none exceeds its limit."""

_TRAINER: Final = "esper.simic.training.vectorized_trainer:VectorizedPPOTrainer"
_WORK: Final = "esper.tolaria.lanes:Lane._work"
_DECIDE: Final = "esper.simic.training.control:Control.decide"
_APPLY: Final = "esper.tolaria.worker:EnvGroup.apply"

DECISION: Final = (
    Leg(_DECIDE, "esper.simic.training.policy_controller:PolicyController.choose"),
    Leg(_APPLY, "esper.kasmina.slot:SeedSlot.germinate"),
)
CARRIERS: Final = (
    Leg(f"{_TRAINER}.run", "esper.simic.training.step:ControlThread.decide"),
    Leg(_WORK, _DECIDE),
    Leg(f"{_TRAINER}.run", "esper.tolaria.engine:WorkerEngine.apply"),
    Leg(_WORK, _APPLY),
)
EVENT: Final = (
    Leg(f"{_TRAINER}.publish", "esper.nissa.bus.inbox:Inbox.put"),
    Leg("esper.nissa.bus.writer:Writer._run", "esper.nissa.storage.files:FileSystem.write"),
)

TESTED_BY: Final[Mapping[str, str]] = {
    "__init__.py": "tests/test_import_isolation.py",
    "karn/console/screen.py": "tests/karn/console/test_console.py",
    "karn/mcp/tools.py": "tests/karn/mcp/test_server.py",
    "karn/report/inspection_page.py": "tests/simic/evaluation/test_inspection.py",
    "karn/view/env_track.py": "tests/karn/view/test_view_model.py",
    "karn/web/list_server.py": "tests/karn/web/test_runs_routes.py",
    "karn/web/open_runs.py": "tests/karn/web/test_runs_routes.py",
    "karn/web/run_server.py": "tests/karn/web/test_server_process.py",
    "karn/web/server_child.py": "tests/karn/web/test_server_process.py",
    "kasmina/blueprints/cnn.py": "tests/kasmina/blueprints/test_registry.py",
    "kasmina/blueprints/seed.py": "tests/kasmina/blueprints/test_registry.py",
    "kasmina/blueprints/transformer.py": "tests/kasmina/blueprints/test_registry.py",
    "kasmina/grown_network.py": "tests/integration/test_grown_network_in_use.py",
    "kasmina/hosts/global_generator.py": "tests/integration/test_refused_networks.py",
    "kasmina/hosts/module_checks.py": "tests/integration/test_refused_networks.py",
    "kasmina/slot_operations.py": "tests/kasmina/test_slot.py",
    "leyline/alpha.py": "tests/kasmina/test_alpha_controller.py",
    "leyline/helper_processes.py": "tests/karn/web/test_server_process.py",
    "leyline/inspection.py": "tests/simic/evaluation/test_inspection.py",
    "leyline/plugins.py": "tests/integration/test_sinks.py",
    "leyline/printable.py": "tests/reliability/test_surroundings.py",
    "leyline/probes.py": "tests/tools/test_probes.py",
    "leyline/stop_signals.py": "tests/tolaria/test_supervisor.py",
    "nissa/analysis/reading_child.py": "tests/nissa/analysis/test_reading_processes.py",
    "nissa/analysis/trusted_counts.py": "tests/scripts/test_telemetry_count.py",
    "nissa/bus/event_filter.py": "tests/nissa/bus/test_subscribers.py",
    "nissa/bus/log_reader.py": "tests/nissa/bus/test_block_index.py",
    "nissa/live/address.py": "tests/nissa/live/test_server.py",
    "nissa/live/app.py": "tests/nissa/live/test_server.py",
    "nissa/live/budget.py": "tests/reliability/test_visitors.py",
    "nissa/live/guard.py": "tests/reliability/test_visitors.py",
    "nissa/live/protocols.py": "tests/reliability/test_visitors.py",
    "nissa/live/visitors.py": "tests/reliability/test_visitors.py",
    "nissa/sinks/jsonl_sink.py": "tests/nissa/sinks/test_delivery.py",
    "nissa/sinks/registry.py": "tests/nissa/sinks/test_delivery.py",
    "nissa/sinks/sink_child.py": "tests/nissa/sinks/test_sink_process.py",
    "nissa/sinks/tensorboard_sink.py": "tests/nissa/sinks/test_delivery.py",
    "nissa/sinks/wandb_sink.py": "tests/nissa/sinks/test_delivery.py",
    "runtime/sources.py": "tests/runtime/test_loaders.py",
    "scripts/commands.py": "tests/reliability/test_startup.py",
    "scripts/startup.py": "tests/reliability/test_startup.py",
    "scripts/telemetry_mcp.py": "tests/karn/mcp/test_server.py",
    "scripts/telemetry_query.py": "tests/scripts/test_telemetry_tail.py",
    "scripts/train_eval.py": "tests/scripts/test_train_runs.py",
    "scripts/train_inspect.py": "tests/simic/evaluation/test_inspection.py",
    "simic/__init__.py": "tests/test_import_isolation.py",
    "simic/evaluation/arm_controllers.py": "tests/simic/evaluation/test_arm_run.py",
    "simic/evaluation/arm_measures.py": "tests/simic/evaluation/test_arm_run.py",
    "simic/evaluation/arms.py": "tests/simic/evaluation/test_compare.py",
    "simic/evaluation/evaluation_round.py": "tests/simic/evaluation/test_evaluate.py",
    "simic/evaluation/inspected_policy.py": "tests/simic/evaluation/test_inspection.py",
    "simic/evaluation/machine_check.py": "tests/scripts/test_train_check.py",
    "simic/evaluation/summary.py": "tests/simic/evaluation/test_compare.py",
    "simic/exporting/formats.py": "tests/simic/exporting/test_export.py",
    "simic/exporting/program.py": "tests/simic/exporting/test_export.py",
    "simic/rewards/action_terms.py": "tests/simic/rewards/test_contribution.py",
    "simic/rewards/costs.py": "tests/simic/rewards/test_contribution.py",
    "simic/rewards/scheme.py": "tests/simic/rewards/test_shaping.py",
    "simic/telemetry/step_events.py": "tests/simic/training/test_producers.py",
    "simic/training/assembly/control_assembly.py": "tests/simic/training/test_seams.py",
    "simic/training/assembly/run_setup.py": "tests/simic/training/test_seams.py",
    "simic/training/assembly/trainer_assembly.py": "tests/simic/training/test_seams.py",
    "simic/training/assembly/worker_assembly.py": "tests/simic/training/test_seams.py",
    "simic/training/checkpoints/log_agreement.py": (
        "tests/simic/training/checkpoints/test_resuming.py"
    ),
    "simic/training/checkpoints/origins.py": "tests/scripts/test_init_from.py",
    "simic/training/env_episode.py": "tests/simic/training/test_parallel_env_state.py",
    "simic/training/pass_evidence.py": "tests/simic/training/test_env_work.py",
    "simic/training/run.py": "tests/simic/training/checkpoints/test_resuming.py",
    "simic/training/run_monitors.py": "tests/scripts/test_train_runs.py",
    "simic/training/sabotage.py": "tests/simic/evaluation/test_inspection.py",
    "simic/training/static_work.py": "tests/simic/evaluation/test_flops.py",
    "simic/training/vectorized.py": "tests/integration/test_simic_entry_point.py",
    "simic/training/worker_service.py": "tests/simic/training/test_worker_process.py",
    "tolaria/containment.py": "tests/tolaria/test_engine.py",
    "tolaria/ray_port.py": "tests/simic/training/test_ray_worker.py",
    "tolaria/stopping.py": "tests/tolaria/test_lanes.py",
}
"""Modules, below `src/esper`, that are tested together with what uses them."""


@dataclass(frozen=True)
class Measure:
    """A figure, its limit, and its details."""

    name: str
    value: int
    limit: int
    details: tuple[str, ...] = ()

    @property
    def is_met(self) -> bool:
        """Check whether the figure is within its limit."""
        return self.value <= self.limit

    def __str__(self) -> str:
        verdict = "met" if self.is_met else "MISSED"
        head = f"{verdict:<7}{self.name}: {self.value} (limit {self.limit})"
        return "\n".join([head, *(f"         {detail}" for detail in self.details)])


def main() -> int:
    """Print the measures and return 1 if one of them is missed."""
    if sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    modules = source_modules()
    measures = [
        *static_measures(modules),
        untested_measure(modules, ROOT, TESTED_BY),
        *walk_measures(stacks_of_a_tiny_run()),
    ]
    for measure in measures:
        print(measure)
    return 0 if all(measure.is_met for measure in measures) else 1


def static_measures(modules: Sequence[SourceModule]) -> Iterator[Measure]:
    """Yield what is measured on the text of the modules alone."""
    counts = {name: len(targets) for name, targets in import_graph(modules).items()}
    yield _largest("internal imports of a module", counts, MAX_INTERNAL_IMPORTS)
    yield _largest("lines of a function", function_sizes(modules), MAX_FUNCTION_LINES)
    sizes = {module.name: module.num_lines for module in modules}
    yield _largest("lines of a module", sizes, MAX_MODULE_LINES)
    cycles = import_cycles(import_graph(modules, is_type_checking_included=False))
    details = tuple(" <-> ".join(cycle) for cycle in cycles)
    yield Measure("import cycles", len(cycles), 0, details)


def import_graph(
    modules: Sequence[SourceModule], *, is_type_checking_included: bool = True
) -> dict[str, frozenset[str]]:
    """Return the modules that each module imports, at any depth."""
    names = {module.name for module in modules}
    graph: dict[str, frozenset[str]] = {}
    for module in modules:
        skipped = frozenset() if is_type_checking_included else _type_checking_lines(module)
        targets = {
            _module_named(imported, names)
            for line, imported in module.imported_names()
            if line not in skipped
        }
        graph[module.name] = frozenset(
            target for target in targets if target is not None and target != module.name
        )
    return graph


def import_cycles(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other, each in alphabetical order."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {
        tuple(sorted({name, *(other for other in reached[name] if name in reached[other])}))
        for name in graph
        if name in reached[name]
    }
    return [list(group) for group in sorted(groups)]


def function_sizes(modules: Sequence[SourceModule]) -> dict[str, int]:
    """Return the lines of every function, by place and name."""
    return {
        f"{module.name}:{function.lineno} {function.name}": body_lines(function)
        for module in modules
        for function in module.functions()
    }


def untested_measure(
    modules: Sequence[SourceModule], root: Path, tested_by: Mapping[str, str]
) -> Measure:
    """Measure how many modules have code to run and no test file, in a project's root."""
    missing = []
    for module in modules:
        path = module.path.relative_to(module.root)
        mirror = root / "tests" / path.parent / f"test_{path.name}"
        named = tested_by.get(path.as_posix())
        is_tested = mirror.is_file() or (named is not None and (root / named).is_file())
        if has_code_to_run(module) and not is_tested:
            missing.append(path.as_posix())
    return Measure("modules without a test file", len(missing), 0, tuple(missing))


def has_code_to_run(module: SourceModule) -> bool:
    """Check for a function with a body: declarations and protocols have none."""
    return any(not _is_empty(function) for function in module.functions())


def walk_measures(stacks: set[Stack]) -> Iterator[Measure]:
    """Yield the figures of the two recorded call paths."""
    ways = [longest(stacks, leg) for leg in DECISION]
    counted = modules_of(ways)
    carriers = modules_of(longest(stacks, leg)[:-1] for leg in CARRIERS)
    others = [name for name in carriers if name not in counted]
    yield Measure(
        "modules from a decision to its effect",
        len(counted),
        MAX_DECISION_MODULES,
        (*counted, *(f"carried by {name} (not counted)" for name in others)),
    )
    calls = [call for leg in EVENT for call in longest(stacks, leg)]
    yield Measure(
        "calls from an event's producer to the disk",
        len(calls),
        MAX_EVENT_CALLS,
        tuple(str(call) for call in calls),
    )


def stacks_of_a_tiny_run() -> set[Stack]:
    """Train a tiny task for a round and return the stacks at the ends of all legs."""
    # Imported here: the other measures need no torch.
    from tests.builders.tiny_runs import short_run
    from tests.builders.tiny_tasks import TINY

    ends = {leg.end for leg in (*DECISION, *CARRIERS, *EVENT)}
    with tempfile.TemporaryDirectory() as folder:
        run = partial(short_run, Path(folder), TINY)
        return record_stacks(run, package=SOURCE_ROOT.name, ends=ends)


def _largest(name: str, values: Mapping[str, int], limit: int) -> Measure:
    """Measure the largest of several values; show those beyond the limit, or else the first few."""
    ranked = sorted(values.items(), key=lambda item: (-item[1], item[0]))
    beyond = [item for item in ranked if item[1] > limit]
    details = tuple(f"{value:>4} {key}" for key, value in beyond or ranked[:NUM_SHOWN])
    return Measure(name, ranked[0][1] if ranked else 0, limit, details)


def _module_named(imported: str, names: set[str]) -> str | None:
    """Return the module that an imported name is, or is a name of; None for other libraries."""
    owner = imported.rpartition(".")[0]
    return next((name for name in (imported, owner) if name in names), None)


def _type_checking_lines(module: SourceModule) -> frozenset[int]:
    return frozenset(
        inner.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
        if isinstance(inner, ast.Import | ast.ImportFrom)
    )


def _reached(graph: Mapping[str, frozenset[str]], start: str) -> set[str]:
    """Return everything that can be reached from a module by at least one import."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _is_empty(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return all(
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        for statement in body_statements(function)
    )


if __name__ == "__main__":
    sys.exit(main())
