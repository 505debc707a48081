"""The protocol between engine and workers: merging, digests, identities."""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.messages import env_evidence, make_signals

from esper.leyline.actions import ActionOutcome, ActionSpec, Op
from esper.leyline.config import Job
from esper.leyline.errors import UnreadableMessageError
from esper.leyline.messages import (
    ActionExecutionResult,
    EnvFailure,
    EnvOutcome,
    EnvTestResult,
    LstmRow,
    MemoryStats,
    Phase,
    StepDecision,
)
from esper.leyline.workers import (
    Answer,
    Build,
    DriverMessage,
    Reply,
    Request,
    WorkerCosts,
    WorkerIdentity,
    WorkerMessage,
    WorkerSpec,
    decision_for,
    decode_from_driver,
    decode_from_worker,
    decode_spec,
    encode,
    identity_difference,
    merge_replies,
    protocol_digest,
    reply_digest,
    types_digest,
)

IDENTITY = WorkerIdentity(
    esper="0.2.0",
    protocol="ef",
    python="3.11.7",
    machine_kind="torch 2",
    code="12",
    task="ab",
    data="cd",
)
MEMORY = MemoryStats(
    allocated_bytes=1, reserved_bytes=2, free_bytes=1, total_bytes=4, num_retries=0, num_ooms=0
)


def outcome_of(env_id: int) -> EnvOutcome:
    action = ActionSpec(slot_id="r0c0")
    return EnvOutcome(
        env_id=env_id,
        outcome=ActionOutcome(action=action, effective_op=Op.WAIT, succeeded=True),
        rollback=None,
        action_effects=(),
        tick_effects=(),
        reports=(),
        num_auto_prunes=0,
        lstm_hidden=LstmRow(index=env_id),
        slots=(),
    )


def reply_for(env_ids: list[int]) -> Reply:
    """Return a reply of a worker with these envs, every field filled."""
    return Reply(
        evidence=tuple(env_evidence(env_id, 3) for env_id in env_ids),
        executed=ActionExecutionResult(
            outcomes=[outcome_of(env_id) for env_id in env_ids],
            truncated_bootstrap_targets=[(env_id, 3) for env_id in env_ids],
            post_action_signals=[make_signals(step=env_id) for env_id in env_ids],
            post_action_slot_reports=[() for _ in env_ids],
            post_action_masks=[(env_id % 2 == 0, True) for env_id in env_ids],
        ),
        tests=tuple(
            EnvTestResult(env_id=env_id, loss=0.1, accuracy_pct=1.0, num_samples=2)
            for env_id in env_ids
        ),
        failures=tuple(
            EnvFailure(env_id=env_id, phase=Phase.TRAIN, step=3, error_type="E", message="m")
            for env_id in env_ids
        ),
        costs=WorkerCosts(cpu_s=1.0, data_wait_s=0.5, memory={f"d{env_ids[0]}": MEMORY}),
    )


@given(owners=st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_replies_merge_to_that_of_one_worker_with_all_envs(owners: list[int]) -> None:
    parts = [
        reply_for([env_id for env_id, owner in enumerate(owners) if owner == worker])
        for worker in sorted(set(owners))
    ]

    merged = merge_replies(parts)

    whole = reply_for(list(range(len(owners))))
    assert msgspec.structs.replace(merged, costs=WorkerCosts()) == msgspec.structs.replace(
        whole, costs=WorkerCosts()
    )
    assert merged.costs.cpu_s == len(parts)
    assert merged.costs.data_wait_s == 0.5 * len(parts)
    assert merged.costs.memory == {key: MEMORY for part in parts for key in part.costs.memory}


def test_digest_ignores_costs_and_nothing_else() -> None:
    reply = reply_for([0, 2])
    dearer = msgspec.structs.replace(reply, costs=WorkerCosts(cpu_s=9.0, data_wait_s=9.0))
    assert reply_digest(dearer) == reply_digest(reply)

    others = [
        msgspec.structs.replace(reply, evidence=reply.evidence[:1]),
        msgspec.structs.replace(reply, executed=None),
        msgspec.structs.replace(reply, tests=()),
        msgspec.structs.replace(reply, snapshot=b"x"),
        msgspec.structs.replace(reply, failures=()),
    ]
    assert len({reply_digest(item) for item in (reply, *others)}) == 1 + len(others)


def test_digest_tells_zero_from_minus_zero_and_is_the_same_for_nan() -> None:
    def with_loss(loss: float) -> bytes:
        result = EnvTestResult(env_id=0, loss=loss, accuracy_pct=0.0, num_samples=1)
        return reply_digest(Reply(tests=(result,)))

    assert with_loss(0.0) != with_loss(-0.0)
    assert with_loss(math.nan) == with_loss(float("nan"))


def test_a_decision_is_cut_to_the_envs_of_a_worker() -> None:
    actions = tuple(ActionSpec(slot_id=f"r0c{env_id}") for env_id in range(4))
    decision = StepDecision(
        round=1,
        step=2,
        is_last_step=True,
        actions=actions,
        details=(None,) * 4,
        previous_rewards=(0.0, 1.0, 2.0, 3.0),
    )

    cut = decision_for(decision, (1, 3))

    assert cut.actions == (None, actions[1], None, actions[3])
    assert cut.previous_rewards == (None, 1.0, None, 3.0)
    assert (cut.round, cut.step, cut.is_last_step) == (1, 2, True)


def test_a_specification_is_decoded_as_it_was_encoded() -> None:
    spec = WorkerSpec(index=1, job=Job(), env_ids=(1, 3), lanes=2)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=WorkerSpec) == spec


def test_every_difference_of_identity_is_named_with_both_values() -> None:
    assert identity_difference(IDENTITY, IDENTITY) is None
    for name in IDENTITY.__struct_fields__:
        own = getattr(IDENTITY, name)
        other = f"{own}'"
        theirs = msgspec.structs.replace(IDENTITY, **{name: other})
        found = identity_difference(IDENTITY, theirs)
        assert found is not None
        assert repr(own) in found
        assert repr(other) in found
        assert name.replace("_", " ") in found


def test_a_change_of_any_type_below_a_message_is_another_protocol() -> None:
    def protocol_with(*fields: Any, **options: Any) -> str:
        inner = msgspec.defstruct("Inner", fields)
        middle = msgspec.defstruct("Middle", [("rows", dict[str, tuple[inner, ...]])])
        return types_digest(msgspec.defstruct("Outer", [("middle", middle)], **options) | None)

    usual = protocol_with(("step", int))
    assert protocol_with(("step", int)) == usual
    changed = [
        protocol_with(("step", int), ("batch", int)),
        protocol_with(("step", float)),
        protocol_with(("step", int, 3)),
        protocol_with(("index", int)),
        protocol_with(("step", int), tag="other"),
    ]
    assert len({usual, *changed}) == 1 + len(changed)
    assert protocol_digest() == types_digest(WorkerSpec, DriverMessage, WorkerMessage)


SENT = [
    (decode_spec, WorkerSpec(index=0, job=Job(), env_ids=(0, 1), lanes=1)),
    (decode_from_driver, Request(seq=3, command=Build(round=1))),
    (decode_from_worker, Answer(seq=3, reply=reply_for([0, 1]))),
]


@given(data=st.data())
@pytest.mark.parametrize(("decode", "message"), SENT, ids=["spec", "request", "answer"])
def test_a_damaged_message_is_read_as_a_message_or_refused(
    decode: Callable[[bytes], object], message: Any, data: st.DataObject
) -> None:
    encoded = bytearray(encode(message))
    assert decode(bytes(encoded)) == message
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(encoded) - 1))
        encoded[place] = data.draw(st.integers(0, 255))
    length = data.draw(st.integers(0, len(encoded)))
    with suppress(UnreadableMessageError):
        decode(bytes(encoded[:length]))
