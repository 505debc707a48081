"""Facts and terms: the fast path counts what decoding counts, line by line."""

from collections import Counter
from itertools import pairwise

import msgspec
import pytest
from tests.nissa.fake_run import FakeRun

from esper.leyline.stages import Stage
from esper.nissa.analysis.facts import (
    FACT_TYPES,
    GATED_EDGES,
    LINK_TYPE,
    Fact,
    FactData,
    add_link,
    add_terms,
    read_fact,
)

RUN = FakeRun(num_rounds=3, failed_env=1)
LINKS = [line for line in RUN.lines() if b'"' + LINK_TYPE + b'"' in line]


def terms_of(*facts: Fact) -> Counter[str]:
    terms = Counter[str]()
    for fact in facts:
        add_terms(terms, fact)
    return terms


def fact(event_type: str, step: int | None = None, **data: object) -> Fact:
    return Fact(event_type=event_type, data=FactData(**data), step=step)


def test_fact_has_the_fields_that_a_json_parser_finds() -> None:
    num_facts = 0
    for line in RUN.lines():
        plain = msgspec.json.decode(line)
        if plain["event_type"] not in FACT_TYPES:
            continue
        num_facts += 1
        read = read_fact(line)
        assert read is not None
        assert (read.round, read.step, read.env_id) == tuple(
            plain.get(name) for name in ("round", "step", "env_id")
        )
        for name in FactData.__struct_fields__:
            assert getattr(read.data, name) == plain["data"].get(name)
    assert num_facts > 50


@pytest.mark.parametrize(
    "line", [b"", b"[]", b'{"event_type":"X"}', b'{"event_type":1,"data":{}}', b"\xff"]
)
def test_line_of_another_form_is_no_fact(line: bytes) -> None:
    assert read_fact(line) is None


def test_fast_path_counts_links_as_decoding_does() -> None:
    assert len(LINKS) > 10
    fast, slow = Counter[str](), Counter[str]()
    for line in LINKS:
        assert add_link(fast, line)
        read = read_fact(line)
        assert read is not None
        add_terms(slow, read)
    assert fast == slow
    assert fast["causal approved verdict"] > 0


def test_link_in_another_layout_is_left_to_the_decoder() -> None:
    terms = Counter[str]()
    reordered = b'{"event_type":"MORPHOLOGY_CAUSAL_LOG","data":{"op":"x","phase":"verdict"}}'
    unknown = b'{"event_type":"MORPHOLOGY_CAUSAL_LOG","data":{"phase":"dream"}}'
    assert not add_link(terms, reordered)
    assert not add_link(terms, unknown)
    assert not terms


def test_text_that_looks_like_a_phase_is_not_taken_for_one() -> None:
    line = (
        b'{"event_type":"MORPHOLOGY_CAUSAL_LOG","group":"\\"data\\":{\\"phase\\":\\"commit\\"",'
        b'"data":{"phase":"audit"}}'
    )
    terms = Counter[str]()
    assert add_link(terms, line)
    assert terms == {"causal audit": 1}


def test_gated_edges_are_the_steps_towards_a_fossil() -> None:
    names = [stage.name for stage in (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING)]
    names += [Stage.HOLDING.name, Stage.FOSSILIZED.name]
    assert set(pairwise(names)) == GATED_EDGES


def test_only_gated_stage_changes_and_passed_gates_are_terms() -> None:
    forward = fact("SEED_STAGE_CHANGED", from_stage="BLENDING", to_stage="HOLDING")
    back = fact("SEED_STAGE_CHANGED", from_stage="HOLDING", to_stage="BLENDING")
    assert terms_of(forward, back)["gated stage changes"] == 1

    gates = [("G1", True), ("G1", False), ("G0", True)]
    evaluated = [fact("SEED_GATE_EVALUATED", gate=gate, passed=passed) for gate, passed in gates]
    assert terms_of(*evaluated)["passed gate evaluations"] == 1


@pytest.mark.parametrize(("phase", "num_validated"), [("train", 3), ("validate", 3), ("apply", 4)])
def test_failure_during_apply_comes_after_the_validation_of_its_step(
    phase: str, num_validated: int
) -> None:
    terms = terms_of(fact("ENV_FAILED", step=3, phase=phase))
    assert terms["env failures"] == 1
    assert terms["steps before failures, validated"] == num_validated
    assert terms["steps before failures, decided"] == 3
