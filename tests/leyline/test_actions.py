"""The action space and its tables."""

from esper.leyline.actions import (
    BLUEPRINTS_BY_TOPOLOGY,
    HEAD_SPECS,
    HEADS,
    AlphaSpeed,
    AlphaTarget,
    Blueprint,
    CurveChoice,
    Head,
    Op,
    Style,
    Tempo,
    Topology,
    causal_heads,
    head_sizes,
)
from esper.leyline.alpha import AlphaAlgorithm, AlphaCurve


def test_heads_stand_in_canonical_order_with_op_last() -> None:
    assert tuple(HEAD_SPECS) == HEADS
    assert HEADS[-1] is Head.OP


def test_head_sizes_are_the_published_ones() -> None:
    assert list(head_sizes(3).values()) == [3, 13, 4, 3, 3, 4, 5, 6]


def test_the_causal_table_is_this_one() -> None:
    table = {op.name: {head.value for head in causal_heads(op)} - {"op"} for op in Op}
    assert table == {
        "WAIT": set(),
        "GERMINATE": {"slot", "blueprint", "style", "tempo", "alpha_target"},
        "SET_ALPHA_TARGET": {"slot", "alpha_target", "alpha_speed", "alpha_curve"},
        "PRUNE": {"slot", "alpha_speed", "alpha_curve"},
        "FOSSILIZE": {"slot"},
        "ADVANCE": {"slot"},
    }


def test_op_matters_always_and_every_head_matters_sometimes() -> None:
    assert all(Head.OP in causal_heads(op) for op in Op)
    assert {head for op in Op for head in causal_heads(op)} == set(HEADS)


def test_neutral_choices_are_values_of_their_heads() -> None:
    sizes = head_sizes(num_slots=1)
    assert all(0 <= spec.neutral < sizes[head] for head, spec in HEAD_SPECS.items())


def test_a_style_has_a_gate_exactly_when_it_is_gated() -> None:
    pairs = {style: (style.curve, style.algorithm) for style in Style}
    assert pairs == {
        Style.LINEAR_ADD: (AlphaCurve.LINEAR, AlphaAlgorithm.ADD),
        Style.LINEAR_MULTIPLY: (AlphaCurve.LINEAR, AlphaAlgorithm.MULTIPLY),
        Style.SIGMOID_ADD: (AlphaCurve.SIGMOID, AlphaAlgorithm.ADD),
        Style.GATED_GATE: (AlphaCurve.LINEAR, AlphaAlgorithm.GATE),
    }


def test_values_of_the_alpha_heads_are_the_published_ones() -> None:
    assert [tempo.steps for tempo in Tempo] == [3, 5, 8]
    assert [target.alpha for target in AlphaTarget] == [0.5, 0.7, 1.0]
    assert [speed.steps for speed in AlphaSpeed] == [0, 3, 5, 8]
    assert [(item.curve, item.steepness) for item in CurveChoice][2:] == [
        (AlphaCurve.SIGMOID, 6.0),
        (AlphaCurve.SIGMOID, 12.0),
        (AlphaCurve.SIGMOID, 24.0),
    ]
    assert [item.curve for item in CurveChoice][:2] == [AlphaCurve.LINEAR, AlphaCurve.COSINE]


def test_each_topology_offers_seven_blueprints_and_never_the_placeholder() -> None:
    for topology in Topology:
        offered = BLUEPRINTS_BY_TOPOLOGY[topology]
        assert len(set(offered)) == 7
        assert Blueprint.NOOP not in offered
    both = set(BLUEPRINTS_BY_TOPOLOGY[Topology.CNN]) & set(
        BLUEPRINTS_BY_TOPOLOGY[Topology.TRANSFORMER]
    )
    assert both == {Blueprint.ATTENTION, Blueprint.NORM}
