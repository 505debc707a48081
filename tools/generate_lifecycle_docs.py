"""Writes docs/lifecycle.md from the code's tables: `python -m tools.generate_lifecycle_docs`."""

import sys
from pathlib import Path

import msgspec

from esper.kasmina.gates import GATE_CHECKS, Check
from esper.kasmina.lifecycle import OPERATIONS
from esper.leyline.stages import (
    ACTIVE_STAGES,
    COOLDOWN_STAGES,
    GATE_FOR_TARGET,
    TRANSITIONS,
    LifecycleRules,
    Stage,
)

PATH = Path(__file__).resolve().parents[1] / "docs" / "lifecycle.md"

HEAD = """\
# The life of a seed

Generated from the tables in `leyline/stages.py`, `kasmina/lifecycle.py` and `kasmina/gates.py` by
`python -m tools.generate_lifecycle_docs`; a test fails when this page is stale.

The lifecycle is a pure machine: a state and a request give a new state and effects, which the slot
applies to its modules before anybody is told. An empty slot has no state; the diagram calls that
DORMANT. Refused operations change nothing and say why.
"""

TICK = """\
## Time

Each step, after its decision, every slot ticks once. A tick first does what the stage asks for and
then counts, so that at a decision `steps_in_stage` is the number of training passes the seed has
seen in its stage.

| stage | what a tick does |
|---|---|
| GERMINATED | tries G1 where it is automatic |
| TRAINING | tries G2 where it is automatic and {min_training_steps} steps have passed |
| BLENDING | moves alpha one step; at its target a scheduled prune happens, or G3 is tried where \
it is automatic |
| HOLDING, FOSSILIZED | counts only |
| PRUNED | goes to EMBARGOED |
| EMBARGOED | goes to RESETTING after {embargo_steps} steps |
| RESETTING | empties the slot after {resetting_steps} step |

## In the forward pass

| stage | the host sees | the seed sees |
|---|---|---|
| GERMINATED | itself, bit for bit | nothing |
| TRAINING | itself, bit for bit, gradients and buffers too | detached features, and the gradient \
of its output as if it were added |
| BLENDING, HOLDING, FOSSILIZED | host and seed mixed by alpha | features with their gradient |
| PRUNED, EMBARGOED, RESETTING | itself, bit for bit | nothing (its module is gone) |

While alpha ramps down, the seed's parameters rest. A fossil goes on training.
"""


def page() -> str:
    """Return the whole page."""
    rules = msgspec.structs.asdict(LifecycleRules())
    parts = (HEAD, _diagram(), _operations(), _gates(rules), TICK.format(**rules))
    return "\n".join(parts)


def _diagram() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> DORMANT"]
    for stage, targets in TRANSITIONS.items():
        if stage is not Stage.UNKNOWN:
            lines += [_edge(stage, target) for target in targets]
    lines.append("    FOSSILIZED --> [*]")
    lines.append("    classDef active fill:#d7efd7,color:#000")
    lines.append("    classDef cooldown fill:#f3d9d9,color:#000")
    for name, stages in (("active", ACTIVE_STAGES), ("cooldown", COOLDOWN_STAGES)):
        members = ", ".join(stage.name for stage in sorted(stages))
        lines.append(f"    class {members} {name}")
    return "\n".join([*lines, "```", ""])


def _edge(stage: Stage, target: Stage) -> str:
    if target is Stage.PRUNED:
        label = "prune"
    elif stage in COOLDOWN_STAGES:
        label = "tick"
    elif (stage, target) == (Stage.HOLDING, Stage.BLENDING):
        label = "retarget, scheduled prune"
    else:
        label = GATE_FOR_TARGET[target].name
    return f"    {stage.name} --> {target.name}: {label}"


def _operations() -> str:
    lines = [
        "## Operations",
        "",
        "| operation | accepted in | refused while alpha moves | what it does |",
        "|---|---|---|---|",
    ]
    for operation, rule in OPERATIONS.items():
        stages = ", ".join(stage.name for stage in sorted(rule.stages))
        rest = "yes" if rule.needs_rest else "no"
        lines.append(f"| `{operation.value}` | {stages} | {rest} | {rule.effect} |")
    age = LifecycleRules().min_prune_age_steps
    lines += [
        "",
        f"The policy may prune a seed from an age of {age} steps on, the governor always.",
    ]
    return "\n".join([*lines, ""])


def _gates(rules: dict[str, object]) -> str:
    lines = [
        "## Gates",
        "",
        "Every check of a gate must hold. What was never measured fails.",
        "",
        "| gate | guards | check | asks for | strict | permissive |",
        "|---|---|---|---|---|---|",
    ]
    for target, gate in GATE_FOR_TARGET.items():
        lines += [
            f"| {gate.name} | {target.name} | `{check.name}` | {check.text.format(**rules)} | "
            f"{_mark(check, permissive=False)} | {_mark(check, permissive=True)} |"
            for check in GATE_CHECKS[gate]
        ]
    return "\n".join([*lines, ""])


def _mark(check: Check, *, permissive: bool) -> str:
    return "yes" if check.applies(LifecycleRules(permissive=permissive)) else "no"


def main() -> int:
    """Write the page."""
    PATH.write_text(page(), encoding="utf-8")
    print(f"wrote {PATH.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
