"""What the checksum file says is in a block."""

import json
from collections import Counter

import pytest
from tests.nissa.fake_run import FakeRun
from tests.nissa.making import block

from esper.nissa.storage.block_facts import count_facts, parse_facts
from esper.nissa.storage.blocks import Block, BlockFacts

LINES = [line + b"\n" for line in FakeRun().lines()]
EVENTS = [json.loads(line) for line in LINES]


def as_counts(text: str) -> dict[str, int]:
    return {name: int(number) for name, number in (pair.split(":") for pair in text.split(","))}


def test_facts_are_the_counts_of_the_lines() -> None:
    facts = parse_facts(Block(0, len(LINES), b"".join(LINES)))

    assert facts is not None
    assert as_counts(facts.types) == Counter(event["event_type"] for event in EVENTS)
    assert as_counts(facts.severities) == Counter(event["severity"] for event in EVENTS)
    env_ids = ["-" if event["env_id"] is None else str(event["env_id"]) for event in EVENTS]
    assert as_counts(facts.envs) == Counter(env_ids)
    assert len(as_counts(facts.envs)) == 3


def test_facts_that_are_known_are_written_as_those_that_are_parsed() -> None:
    assert count_facts(["A", "B", "A"], [None, 3, None], ["info", "info", "error"]) == BlockFacts(
        types="A:2,B:1", envs="-:2,3:1", severities="info:2,error:1"
    )


@pytest.mark.parametrize("data", [b"{}\n", b"1\n", b"\n", b"\xff\n", b'{"event_type":"A"}\n'])
def test_block_with_a_line_that_is_no_event_has_no_facts(data: bytes) -> None:
    whole = block(0, 2)
    assert parse_facts(whole) is not None
    assert parse_facts(Block(0, 3, whole.data + data)) is None
