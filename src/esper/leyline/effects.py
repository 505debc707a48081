"""What a step did to an env's seeds: one tagged struct per kind of effect.

Control counts effects; telemetry publishes the payload of each. The tags are what makes a message
with effects decodable: the payloads themselves have none, as an event's envelope names their type.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from esper.leyline.payloads import (
    MorphologyCausalLog,
    Payload,
    SeedFossilized,
    SeedGateEvaluated,
    SeedGerminated,
    SeedPruned,
    SeedStageChanged,
)

__all__ = [
    "ActionLogged",
    "EnvEffect",
    "Fossilization",
    "GateEvaluation",
    "Germination",
    "Pruning",
    "StageChange",
    "effect_of",
]


class _Effect(msgspec.Struct, frozen=True, tag_field="effect", forbid_unknown_fields=True):
    """Base of every effect."""


class Germination(_Effect, frozen=True, tag="germination"):
    """A seed was germinated."""

    payload: SeedGerminated


class GateEvaluation(_Effect, frozen=True, tag="gate_evaluation"):
    """A gate let a seed pass or held it back."""

    payload: SeedGateEvaluated


class StageChange(_Effect, frozen=True, tag="stage_change"):
    """A seed entered another stage."""

    payload: SeedStageChanged


class Fossilization(_Effect, frozen=True, tag="fossilization"):
    """A seed was fossilized."""

    payload: SeedFossilized


class Pruning(_Effect, frozen=True, tag="pruning"):
    """A seed was pruned."""

    payload: SeedPruned


class ActionLogged(_Effect, frozen=True, tag="action_logged"):
    """One link of the causal log of an action."""

    payload: MorphologyCausalLog


EnvEffect: TypeAlias = (
    Germination | GateEvaluation | StageChange | Fossilization | Pruning | ActionLogged
)

_KINDS: Final[Mapping[type[Payload], type[EnvEffect]]] = {
    SeedGerminated: Germination,
    SeedGateEvaluated: GateEvaluation,
    SeedStageChanged: StageChange,
    SeedFossilized: Fossilization,
    SeedPruned: Pruning,
    MorphologyCausalLog: ActionLogged,
}


def effect_of(payload: Payload) -> EnvEffect:
    """Return the effect that a payload describes."""
    return _KINDS[type(payload)](payload)  # type: ignore[arg-type]  # the table pairs them
