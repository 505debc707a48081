"""Order rules, event by event: what breaks each of them, and the line that is named."""

import pytest

from esper.nissa.analysis.facts import Fact, FactData
from esper.nissa.analysis.ordering import (
    EPOCH_BEFORE_ACTION,
    FINISHES_LAST,
    OUTCOME_BEFORE_BARRIER,
    ROUND_TAIL,
    STAGE_BEFORE_FATE,
    STARTS_FIRST,
    OrderWatch,
)

TAIL = ("PPO_UPDATE_COMPLETED", "BATCH_STATS", "BATCH_EPOCH_COMPLETED", "ACTION_DISTRIBUTION")


def fact(event_type: str, *, round_index: int = 0, env_id: int = 0, **data: str) -> Fact:
    return Fact(
        event_type=event_type, data=FactData(**data), round=round_index, env_id=env_id, step=0
    )


def broken_by(*facts: Fact) -> dict[str, int]:
    watch = OrderWatch()
    for number, item in enumerate(facts, start=1):
        watch.see_fact(item, number)
    return watch.broken


@pytest.mark.parametrize(("num_events", "broken"), [(1, {}), (2, {STARTS_FIRST: 9})])
def test_start_must_be_the_first_event(num_events: int, broken: dict[str, int]) -> None:
    watch = OrderWatch()
    watch.see_start(9, num_events)
    assert watch.broken == broken


@pytest.mark.parametrize(("num_events", "broken"), [(5, {}), (6, {FINISHES_LAST: 7})])
def test_finish_must_be_the_last_event(num_events: int, broken: dict[str, int]) -> None:
    watch = OrderWatch()
    watch.see_finish(7, 5)
    watch.end(num_events)
    assert watch.broken == broken


def test_every_action_needs_a_validation_of_its_own() -> None:
    watch = OrderWatch()
    watch.see_step(b"EPOCH_COMPLETED", b"env 0, step 0", 1)
    watch.see_step(b"LAST_ACTION", b"env 0, step 0", 2)
    assert watch.broken == {}
    watch.see_step(b"LAST_ACTION", b"env 0, step 0", 3)
    assert watch.broken == {EPOCH_BEFORE_ACTION: 3}
    watch.see_step(b"LAST_ACTION", b"env 1, step 0", 4)
    assert watch.broken == {EPOCH_BEFORE_ACTION: 3}


def test_rounds_end_in_the_order_of_the_rule_and_may_leave_out_the_update() -> None:
    in_order = [fact(name, round_index=index) for index in (0, 1) for name in TAIL]
    assert broken_by(*in_order) == {}
    assert broken_by(*in_order[1:4]) == {}


@pytest.mark.parametrize(("first", "second"), [(1, 0), (2, 1), (3, 2), (3, 3)])
def test_round_tail_in_another_order_is_named(first: int, second: int) -> None:
    assert broken_by(fact(TAIL[first]), fact(TAIL[second])) == {ROUND_TAIL: 2}
    # The same events in different rounds break nothing.
    assert broken_by(fact(TAIL[first]), fact(TAIL[second], round_index=1)) == {}


def test_outcome_after_the_end_of_its_round_is_named() -> None:
    batch, outcome = fact("BATCH_EPOCH_COMPLETED"), fact("EPISODE_OUTCOME")
    assert broken_by(outcome, batch) == {}
    assert broken_by(batch, outcome) == {OUTCOME_BEFORE_BARRIER: 2}
    assert broken_by(batch, fact("EPISODE_OUTCOME", round_index=1)) == {}


@pytest.mark.parametrize("fate", ["FOSSILIZED", "PRUNED"])
def test_fate_of_a_seed_needs_the_stage_change_of_its_slot(fate: str) -> None:
    change = fact("SEED_STAGE_CHANGED", slot_id="a", to_stage=fate)
    end = fact(f"SEED_{fate}", slot_id="a")
    assert broken_by(change, end) == {}
    assert broken_by(end) == {STAGE_BEFORE_FATE: 1}
    assert broken_by(change, end, end) == {STAGE_BEFORE_FATE: 3}
    assert broken_by(change, fact(f"SEED_{fate}", slot_id="b")) == {STAGE_BEFORE_FATE: 2}
    elsewhere = fact(f"SEED_{fate}", slot_id="a", env_id=1)
    assert broken_by(change, elsewhere) == {STAGE_BEFORE_FATE: 2}
