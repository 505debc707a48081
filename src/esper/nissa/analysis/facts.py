"""Facts: the subset of an event's fields that equations and order rules use."""

from collections import Counter
from typing import Final

import msgspec

from esper.leyline.stages import TRANSITIONS, Gate, Stage, next_stage

__all__ = [
    "FACT_TYPES",
    "LINK_TYPE",
    "Fact",
    "FactData",
    "add_link",
    "add_terms",
    "read_fact",
]


class FactData(msgspec.Struct, gc=False, frozen=True):
    """Payload fields; None where the type has no such field."""

    slot_id: str | None = None
    from_stage: str | None = None
    to_stage: str | None = None
    gate: str | None = None
    passed: bool | None = None
    phase: str | None = None
    approved: bool | None = None
    seeds_germinated: int | None = None
    update_performed: bool | None = None
    status: str | None = None
    rounds_completed: int | None = None


class Fact(msgspec.Struct, gc=False, frozen=True):
    """The part of an event that equations and order rules use."""

    event_type: str
    data: FactData
    round: int | None = None
    step: int | None = None
    env_id: int | None = None


FACT_TYPES: Final = frozenset(
    {
        "RUN_FINISHED",
        "ENV_FAILED",
        "EPISODE_OUTCOME",
        "PPO_UPDATE_COMPLETED",
        "BATCH_STATS",
        "BATCH_EPOCH_COMPLETED",
        "ACTION_DISTRIBUTION",
        "SEED_GATE_EVALUATED",
        "SEED_STAGE_CHANGED",
        "SEED_FOSSILIZED",
        "SEED_PRUNED",
        "MORPHOLOGY_CAUSAL_LOG",
    }
)
"""Types that are decoded as facts; the frequent per-step events are not among them."""

LINK_TYPE: Final = b"MORPHOLOGY_CAUSAL_LOG"

_LINK_START: Final = b'"data":{"phase":"'
_PHASES: Final = (
    *("proposal", "verdict", "mutation", "dispatch", "commit", "fossilization"),
    *("rollback", "cooldown", "audit"),
)
_LINK_TERMS: Final = {phase.encode(): f"causal {phase}" for phase in _PHASES}
_DECODER: Final = msgspec.json.Decoder(Fact)

_GATED_STAGES: Final = (Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)

GATED_EDGES: Final = frozenset(
    (stage.name, target.name)
    for stage in TRANSITIONS
    if (target := next_stage(stage)) in _GATED_STAGES
)
"""Transitions that require a passed gate; going back from HOLDING to BLENDING requires none."""

_UNCOUNTED_GATE: Final = Gate.G0.name
"""Germination passes G0 and has its own event instead of a stage change."""


def read_fact(line: bytes) -> Fact | None:
    """Decode a line of one of FACT_TYPES; return None if it does not match our schema."""
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def add_link(terms: Counter[str], line: bytes, offset: int = 0) -> bool:
    """Count a canonical causal log line; return False if it must be decoded as a fact instead.

    A fast path, because these lines are a quarter of a log. The phase is the first field of their
    payload, and quotes inside JSON strings are escaped, so the first match is the payload itself.
    """
    start = line.find(_LINK_START, offset)
    if start < 0:
        return False
    start += len(_LINK_START)
    phase = line[start : line.find(b'"', start)]
    term = _LINK_TERMS.get(phase)
    if term is None:
        return False
    terms[term] += 1
    if phase == b"verdict" and b'"approved":true' in line:
        terms["causal approved verdict"] += 1
    return True


def add_terms(terms: Counter[str], fact: Fact) -> None:
    """Add this event's terms to the counters that the equations use."""
    data = fact.data
    match fact.event_type:
        case "MORPHOLOGY_CAUSAL_LOG":
            terms[f"causal {data.phase}"] += 1
            if data.approved and data.phase == "verdict":
                terms["causal approved verdict"] += 1
        case "SEED_STAGE_CHANGED":
            terms[f"stage changes to {data.to_stage}"] += 1
            terms["gated stage changes"] += (data.from_stage, data.to_stage) in GATED_EDGES
        case "SEED_GATE_EVALUATED":
            terms["passed gate evaluations"] += bool(data.passed) and data.gate != _UNCOUNTED_GATE
        case "BATCH_STATS":
            terms["seeds germinated by round"] += data.seeds_germinated or 0
            terms["skipped updates"] += data.update_performed is False
        case "ENV_FAILED":
            _add_failure(terms, fact)


def _add_failure(terms: Counter[str], fact: Fact) -> None:
    """Count the steps before an env failed; a failure during `apply` comes after validation."""
    step = fact.step or 0
    has_validated = fact.data.phase == "apply"
    terms["env failures"] += 1
    terms["steps before failures, validated"] += step + has_validated
    terms["steps before failures, decided"] += step
