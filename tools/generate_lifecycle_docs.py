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
FIGURES = Path(__file__).with_name("lifecycle_figures.md")
"""What `tools.isolation` and `tools.worth` have printed, and what follows from it."""

HEAD = """\
# The life of a seed

Generated from the tables in `leyline/stages.py`, `kasmina/lifecycle.py` and `kasmina/gates.py` by
`python -m tools.generate_lifecycle_docs`; a test fails when this page is stale.

The lifecycle is a pure state machine: a state and an operation give a new state and a list of
effects. The slot applies the effects to its modules, then emits the events. An empty slot has no
state, shown as DORMANT in the diagram. A refused operation changes nothing and returns the reason.
"""

TICK = """\
## Ticks

In each step, after the decision, `tick` is called once for every slot. It first applies the rule of
the stage and then increments the counters, so that at every decision `steps_in_stage` is the number
of training passes that the seed has had in its stage.

| stage | what a tick does |
|---|---|
| GERMINATED | evaluates G1 if it is automatic |
| TRAINING | evaluates G2 if it is automatic and {min_training_steps} steps have passed |
| BLENDING | advances the alpha ramp; at its target, executes a scheduled prune or evaluates G3 if \
it is automatic |
| HOLDING, FOSSILIZED | increments the counters only |
| PRUNED | moves to EMBARGOED |
| EMBARGOED | moves to RESETTING after {embargo_steps} steps |
| RESETTING | empties the slot after {resetting_steps} step |

## Forward and backward pass

| stage | output of the slot | input and gradient of the seed |
|---|---|---|
| GERMINATED, TRAINING, and BLENDING at alpha 0 | the host's features, bit for bit; the host's \
gradients, buffers and dropout masks are unaffected too | detached features; the gradient of the \
side loss (below) |
| BLENDING, HOLDING, FOSSILIZED | host and seed blended by alpha | features with gradient |
| PRUNED, EMBARGOED, RESETTING | the host's features, bit for bit | removed |

A living seed learns in every pass; only before a scheduled prune, while alpha ramps down to 0, are
its parameters frozen. A fossilized seed continues to train.
"""

ISOLATION = """\
## Isolation

A seed that does not change its host's output yet is trained by a side loss: the loss that the
network would have with this seed fully on. The features at its slot, detached, go through the
seed and the rest of the host (with the seeds that are blended there), and the gradient goes to
the seed's parameters alone. The rest of the host is in evaluation mode, so that no norm's
statistics and no dropout generator move; the seed sees the network that validation would see.
Each seed in isolation has a side loss of its own, without the others, so that a broken seed
spoils neither the host nor its neighbours. The cost is one more pass through the layers behind
the slot, and it is counted as such in training FLOP.

A host moves on with every batch, and a side loss looks at one batch at a time, so that what a seed
has learned can be wrong for the host at the end of the pass. Each seed in isolation is therefore
tried after every training pass: on the last 16 batches, with the host in evaluation mode, its
weights become those on the way from birth, where it changes nothing, to what it has learned, at all
of the way, a half, a quarter or none, whichever gives the network the lowest loss. Four forward
passes over these batches (one of the host, and three of the seed and the layers behind its slot)
count as training FLOP. The weights of the host and of blended seeds are not touched, and a seed
whose loss is not a number stays as it is, for the gates to see.
"""


def page() -> str:
    """Return the whole page."""
    rules = msgspec.structs.asdict(LifecycleRules())
    figures = FIGURES.read_text(encoding="utf-8")
    parts = (HEAD, _diagram(), _operations(), _gates(rules), TICK.format(**rules), ISOLATION)
    return "\n".join((*parts, figures))


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
        "| operation | accepted in | refused during an alpha ramp | effect |",
        "|---|---|---|---|",
    ]
    for operation, rule in OPERATIONS.items():
        stages = ", ".join(stage.name for stage in sorted(rule.stages))
        rest = "yes" if rule.needs_rest else "no"
        lines.append(f"| `{operation.value}` | {stages} | {rest} | {rule.effect} |")
    age = LifecycleRules().min_prune_age_steps
    lines += [
        "",
        f"The policy may prune a seed from an age of {age} steps, the governor at any age.",
    ]
    return "\n".join([*lines, ""])


def _gates(rules: dict[str, object]) -> str:
    lines = [
        "## Gates",
        "",
        "A gate passes if all of its checks hold. A check of a value that was never measured "
        "fails.",
        "",
        "| gate | target stage | check | condition | strict | permissive |",
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
