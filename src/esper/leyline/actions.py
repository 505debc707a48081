"""The action space: eight heads, what each value means, and which heads matter for which op."""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Final

import msgspec

from esper.leyline.alpha import AlphaAlgorithm, AlphaCurve

__all__ = [
    "BLUEPRINTS",
    "BLUEPRINTS_BY_TOPOLOGY",
    "HEADS",
    "HEAD_SPECS",
    "NUM_OPS",
    "ActionOutcome",
    "ActionSpec",
    "AlphaSpeed",
    "AlphaTarget",
    "Blueprint",
    "CurveChoice",
    "Head",
    "HeadSpec",
    "Op",
    "Style",
    "Tempo",
    "Topology",
    "causal_heads",
    "head_sizes",
]


class Topology(StrEnum):
    """The two families of hosts."""

    CNN = "cnn"
    TRANSFORMER = "transformer"


class Head(StrEnum):
    """The eight decisions of one action, in canonical order; op is sampled first, listed last."""

    SLOT = "slot"
    BLUEPRINT = "blueprint"
    STYLE = "style"
    TEMPO = "tempo"
    ALPHA_TARGET = "alpha_target"
    ALPHA_SPEED = "alpha_speed"
    ALPHA_CURVE = "alpha_curve"
    OP = "op"


HEADS: Final = tuple(Head)


class Op(IntEnum):
    """What to do this step."""

    WAIT = 0
    GERMINATE = 1
    SET_ALPHA_TARGET = 2
    PRUNE = 3
    FOSSILIZE = 4
    ADVANCE = 5


NUM_OPS: Final = len(Op)


class Blueprint(StrEnum):
    """What grows in every run; a run may add others, which are known by their names alone.

    NOOP is a placeholder that is never germinated.
    """

    NOOP = "noop"
    CONV_LIGHT = "conv_light"
    ATTENTION = "attention"
    NORM = "norm"
    DEPTHWISE = "depthwise"
    BOTTLENECK = "bottleneck"
    CONV_SMALL = "conv_small"
    CONV_HEAVY = "conv_heavy"
    LORA = "lora"
    LORA_LARGE = "lora_large"
    MLP_SMALL = "mlp_small"
    MLP = "mlp"
    FLEX_ATTENTION = "flex_attention"


BLUEPRINTS: Final = tuple(Blueprint)
"""The values of the blueprint head, before those that a run adds."""

BLUEPRINTS_BY_TOPOLOGY: Final[Mapping[Topology, tuple[Blueprint, ...]]] = {
    Topology.CNN: BLUEPRINTS[1:8],
    Topology.TRANSFORMER: (Blueprint.ATTENTION, Blueprint.NORM, *BLUEPRINTS[8:]),
}
"""What may be germinated in each kind of host, in every run."""


class Style(IntEnum):
    """How a seed is blended in: ramp shape and composition, only in pairs that make sense."""

    LINEAR_ADD = 0
    LINEAR_MULTIPLY = 1
    SIGMOID_ADD = 2
    GATED_GATE = 3

    @property
    def algorithm(self) -> AlphaAlgorithm:
        """Return how seed and host are composed."""
        return _STYLE_ALGORITHMS[self]

    @property
    def curve(self) -> AlphaCurve:
        """Return the ramp's shape; a gated seed ramps linearly so that its gate is not starved."""
        return AlphaCurve.SIGMOID if self is Style.SIGMOID_ADD else AlphaCurve.LINEAR


_STYLE_ALGORITHMS: Final[Mapping[Style, AlphaAlgorithm]] = {
    Style.LINEAR_ADD: AlphaAlgorithm.ADD,
    Style.LINEAR_MULTIPLY: AlphaAlgorithm.MULTIPLY,
    Style.SIGMOID_ADD: AlphaAlgorithm.ADD,
    Style.GATED_GATE: AlphaAlgorithm.GATE,
}


class Tempo(IntEnum):
    """How many steps a seed's first ramp takes."""

    FAST = 0
    STANDARD = 1
    SLOW = 2

    @property
    def steps(self) -> int:
        """Return the length of the ramp."""
        return (3, 5, 8)[self]


class AlphaTarget(IntEnum):
    """How far a ramp goes."""

    HALF = 0
    SEVENTY = 1
    FULL = 2

    @property
    def alpha(self) -> float:
        """Return the alpha that the ramp ends on."""
        return (0.5, 0.7, 1.0)[self]


class AlphaSpeed(IntEnum):
    """How many steps a later ramp takes."""

    INSTANT = 0
    FAST = 1
    MEDIUM = 2
    SLOW = 3

    @property
    def steps(self) -> int:
        """Return the length of the ramp."""
        return (0, 3, 5, 8)[self]


class CurveChoice(IntEnum):
    """The shape of a later ramp."""

    LINEAR = 0
    COSINE = 1
    SIGMOID_GENTLE = 2
    SIGMOID = 3
    SIGMOID_SHARP = 4

    @property
    def curve(self) -> AlphaCurve:
        """Return the family of the curve."""
        return (AlphaCurve.LINEAR, AlphaCurve.COSINE)[self] if self < 2 else AlphaCurve.SIGMOID

    @property
    def steepness(self) -> float:
        """Return the steepness; only sigmoid curves use it."""
        return (12.0, 12.0, 6.0, 12.0, 24.0)[self]


class HeadSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of one policy head that sampling and the PPO update use."""

    head: Head
    choices: type[IntEnum] | None
    """The enum of its values; None for slots and blueprints, which a run chooses."""
    neutral: int
    """The value of the head for ops it has no effect on."""
    entropy_weight: float
    entropy_floor: float
    floor_penalty: float
    mixture: float
    """Weight of the uniform distribution over valid choices in what is sampled."""
    collapse_threshold: float
    """Normalised entropy below which the head counts as collapsed."""


def _head_spec(head: Head, choices: type[IntEnum] | None, neutral: int, *row: float) -> HeadSpec:
    weight, floor, penalty, mixture, collapse = row
    return HeadSpec(
        head=head,
        choices=choices,
        neutral=neutral,
        entropy_weight=weight,
        entropy_floor=floor,
        floor_penalty=penalty,
        mixture=mixture,
        collapse_threshold=collapse,
    )


HEAD_SPECS: Final[Mapping[Head, HeadSpec]] = {
    spec.head: spec
    for spec in (
        # head, choices, neutral; entropy weight, floor and floor penalty; mixture; collapse
        _head_spec(Head.SLOT, None, 0, 1.0, 0.15, 0.1, 0.05, 0.10),
        _head_spec(Head.BLUEPRINT, None, 0, 1.3, 0.20, 0.3, 0.12, 0.05),
        _head_spec(Head.STYLE, Style, Style.SIGMOID_ADD, 1.2, 0.15, 0.1, 0.08, 0.08),
        _head_spec(Head.TEMPO, Tempo, Tempo.STANDARD, 1.3, 0.20, 0.3, 0.12, 0.05),
        _head_spec(Head.ALPHA_TARGET, AlphaTarget, AlphaTarget.FULL, 1.2, 0.10, 0.1, 0.08, 0.08),
        _head_spec(Head.ALPHA_SPEED, AlphaSpeed, AlphaSpeed.INSTANT, 1.2, 0.10, 0.1, 0.06, 0.08),
        _head_spec(Head.ALPHA_CURVE, CurveChoice, CurveChoice.LINEAR, 1.2, 0.10, 0.1, 0.06, 0.08),
        _head_spec(Head.OP, Op, Op.WAIT, 1.0, 0.30, 0.3, 0.15, 0.08),
    )
}
"""One row per head, in canonical order."""

_CAUSAL_HEADS: Final[Mapping[Op, frozenset[Head]]] = {
    Op.WAIT: frozenset({Head.OP}),
    Op.GERMINATE: frozenset(
        {Head.OP, Head.SLOT, Head.BLUEPRINT, Head.STYLE, Head.TEMPO, Head.ALPHA_TARGET}
    ),
    # A retarget keeps the seed's algorithm, so style changes nothing here.
    Op.SET_ALPHA_TARGET: frozenset(
        {Head.OP, Head.SLOT, Head.ALPHA_TARGET, Head.ALPHA_SPEED, Head.ALPHA_CURVE}
    ),
    Op.PRUNE: frozenset({Head.OP, Head.SLOT, Head.ALPHA_SPEED, Head.ALPHA_CURVE}),
    Op.FOSSILIZE: frozenset({Head.OP, Head.SLOT}),
    Op.ADVANCE: frozenset({Head.OP, Head.SLOT}),
}


def causal_heads(op: Op) -> frozenset[Head]:
    """Return the heads whose value changes what this op does: the one causal table."""
    return _CAUSAL_HEADS[op]


def head_sizes(num_slots: int, num_added: int = 0) -> dict[Head, int]:
    """Return the number of choices of each head, in canonical order.

    Args:
        num_slots: the enabled slots of the run.
        num_added: the blueprints that the run adds.
    """
    of_run = {Head.SLOT: num_slots, Head.BLUEPRINT: len(BLUEPRINTS) + num_added}
    return {
        head: of_run[head] if spec.choices is None else len(spec.choices)
        for head, spec in HEAD_SPECS.items()
    }


class ActionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One decision, decoded. Heads that do not matter for the op carry their neutral value."""

    op: Op = Op.WAIT
    slot_id: str
    """The target; the first enabled slot when op is WAIT."""
    blueprint: str = Blueprint.NOOP
    style: Style = Style.SIGMOID_ADD
    tempo: Tempo = Tempo.STANDARD
    alpha_target: AlphaTarget = AlphaTarget.FULL
    alpha_speed: AlphaSpeed = AlphaSpeed.INSTANT
    alpha_curve: CurveChoice = CurveChoice.LINEAR


class ActionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a decision."""

    action: ActionSpec
    effective_op: Op
    """The op that credit goes to: WAIT when the action was invalid or vetoed."""
    succeeded: bool
    veto_reason: str | None = None
    """Why the governor's pre-flight refused it, or None."""
    failure_reason: str | None = None
    """Why an executed op did not succeed (a gate, a lost precondition), or None."""
