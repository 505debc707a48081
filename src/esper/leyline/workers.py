"""The protocol between the engine and its workers: commands, replies, and what both must agree on.

A worker owns some envs. The engine sends it one command after another; it answers each with one
reply, in order. Everything a worker computes is a function of its `WorkerSpec` and the commands of
the current round, so that a lost worker can be replaced by one that gets the same commands again.
Messages travel as MessagePack, which represents non-finite numbers.
"""

import hashlib
from collections.abc import Iterable
from functools import cache
from typing import TypeAlias, TypeVar

import msgspec

from esper.leyline.config import Job
from esper.leyline.errors import UnreadableMessageError
from esper.leyline.messages import (
    ActionExecutionResult,
    EnvEvidence,
    EnvFailure,
    EnvTestResult,
    MemoryStats,
    StepDecision,
    by_env,
)
from esper.leyline.payloads import TopologyManifestRecorded

__all__ = [
    "Answer",
    "Apply",
    "Beat",
    "Beats",
    "BeatsRequest",
    "Build",
    "Command",
    "DriverMessage",
    "Quarantine",
    "Release",
    "Reply",
    "Request",
    "Snapshot",
    "Stacks",
    "StacksRequest",
    "Stop",
    "Test",
    "Train",
    "Validate",
    "WorkerCosts",
    "WorkerError",
    "WorkerIdentity",
    "WorkerMessage",
    "WorkerReady",
    "WorkerRefused",
    "WorkerSpec",
    "decision_for",
    "decode_from_driver",
    "decode_from_worker",
    "decode_spec",
    "encode",
    "entered_envs",
    "identity_difference",
    "merge_replies",
    "protocol_digest",
    "reply_digest",
    "types_digest",
]


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    pass


class _Tagged(_Message, frozen=True, kw_only=True, tag=True):
    pass


# What a worker is started with, and what it says of itself.


class WorkerIdentity(_Message, frozen=True, kw_only=True):
    """What driver and workers must share for equal bits."""

    esper: str
    """Version of this package."""
    protocol: str
    """Digest of the types of all messages: a version has many states while it is developed."""
    python: str
    machine_kind: str
    """Includes torch's version and the CPU model."""
    code: str
    """SHA-256 of Esper's sources and of those of the plug-ins of the run."""
    task: str
    """SHA-256 of the task's specification."""
    data: str
    """SHA-256 of the data set."""


class WorkerSpec(_Message, frozen=True, kw_only=True):
    """Everything a worker is built from."""

    index: int
    job: Job
    env_ids: tuple[int, ...]
    lanes: int
    """Threads of the worker that its envs are spread over."""
    topologies: dict[int, TopologyManifestRecorded] = {}
    """Networks that envs are built with instead of an empty host, by env."""


class WorkerReady(_Tagged, frozen=True, kw_only=True):
    """A worker has been built."""

    identity: WorkerIdentity


class WorkerRefused(_Tagged, frozen=True, kw_only=True):
    """A worker could not be built."""

    message: str
    exit_code: int


# Commands.


class Build(_Tagged, frozen=True, kw_only=True):
    """Release the envs of the previous round and build those of this round."""

    round: int


class Train(_Tagged, frozen=True, kw_only=True):
    """Train every env for one host epoch."""

    step: int


class Validate(_Tagged, frozen=True, kw_only=True):
    """Validate every env, including ablations."""

    step: int


class Apply(_Tagged, frozen=True, kw_only=True):
    """Apply one decision per env and advance the slots by one step."""

    decision: StepDecision


class Test(_Tagged, frozen=True, kw_only=True):
    """Evaluate every env on the test split."""

    step: int


class Snapshot(_Tagged, frozen=True, kw_only=True):
    """Copy what is needed to rebuild one env's network."""

    env_id: int


class Quarantine(_Tagged, frozen=True, kw_only=True):
    """Drop envs for the rest of the round, because working on them ends the worker."""

    failures: tuple[EnvFailure, ...]


class Release(_Tagged, frozen=True, kw_only=True):
    """Release all envs."""


Command: TypeAlias = Build | Train | Validate | Apply | Test | Snapshot | Quarantine | Release


# Replies.


class WorkerCosts(_Message, frozen=True, kw_only=True):
    """What a command took; the only part of a reply that differs between equal runs."""

    cpu_s: float = 0.0
    """CPU time of the worker's lanes."""
    data_wait_s: float = 0.0
    """How long the lanes, all together, had no batch to train on."""
    memory: dict[str, MemoryStats] = {}
    """By device; empty where the allocator has no statistics."""


class WorkerError(_Message, frozen=True, kw_only=True):
    """A command failed as a whole, not only for one env."""

    error_type: str
    message: str
    traceback: str
    is_interruption: bool
    """The worker was asked to stop."""


class Reply(_Message, frozen=True, kw_only=True):
    """The answer to one command; which fields are filled depends on the command."""

    evidence: tuple[EnvEvidence, ...] = ()
    executed: ActionExecutionResult | None = None
    tests: tuple[EnvTestResult, ...] = ()
    snapshot: bytes | None = None
    """The state of one network, as `torch.save` writes it."""
    failures: tuple[EnvFailure, ...] = ()
    """Envs that failed since the last reply."""
    error: WorkerError | None = None
    costs: WorkerCosts = WorkerCosts()


# What travels between two processes.


class Request(_Tagged, frozen=True, kw_only=True):
    """A command with its place in the sequence of commands."""

    seq: int
    command: Command


class Stop(_Tagged, frozen=True, kw_only=True):
    """Stop at the next cancellation point; handled while a command is running."""

    reason: str


class StacksRequest(_Tagged, frozen=True, kw_only=True):
    """Ask for the stacks of all threads; handled while a command is running."""


class BeatsRequest(_Tagged, frozen=True, kw_only=True):
    """Ask for the signs of life of all lanes; handled while a command is running."""


class Answer(_Tagged, frozen=True, kw_only=True):
    """The reply to the request with the same number."""

    seq: int
    reply: Reply


class Stacks(_Tagged, frozen=True, kw_only=True):
    """Stack traces by thread."""

    stacks: dict[str, str]


class Beat(_Message, frozen=True, kw_only=True):
    """Signs of life of one lane of a worker."""

    silent_s: float
    """Seconds since the last heartbeat of the current command; 0 while the lane is idle."""
    env_id: int | None
    """The env that the lane is working on."""


class Beats(_Tagged, frozen=True, kw_only=True):
    """The signs of life of all lanes."""

    beats: tuple[Beat, ...]


DriverMessage: TypeAlias = Request | Stop | StacksRequest | BeatsRequest
WorkerMessage: TypeAlias = WorkerReady | WorkerRefused | Answer | Stacks | Beats

# Decoders are built once: each compiles the types that it accepts.
_ENCODER = msgspec.msgpack.Encoder()
_SPEC_DECODER = msgspec.msgpack.Decoder(WorkerSpec)
_DRIVER_DECODER = msgspec.msgpack.Decoder(DriverMessage)
_WORKER_DECODER = msgspec.msgpack.Decoder(WorkerMessage)
_Decoded = TypeVar("_Decoded")


def encode(message: DriverMessage | WorkerMessage | WorkerSpec) -> bytes:
    """Return a message as it travels."""
    return _ENCODER.encode(message)


def decode_spec(data: bytes) -> WorkerSpec:
    """Return what a worker is built from; raise UnreadableMessageError if it is none."""
    return _decoded(_SPEC_DECODER, data)


def decode_from_driver(data: bytes) -> DriverMessage:
    """Return a message to a worker; raise UnreadableMessageError if it is none."""
    message: DriverMessage = _decoded(_DRIVER_DECODER, data)
    return message


def decode_from_worker(data: bytes) -> WorkerMessage:
    """Return a message of a worker; raise UnreadableMessageError if it is none."""
    message: WorkerMessage = _decoded(_WORKER_DECODER, data)
    return message


@cache
def protocol_digest() -> str:
    """Return a digest of all types that travel between driver and workers."""
    return types_digest(WorkerSpec, DriverMessage, WorkerMessage)


def types_digest(*types: object) -> str:
    """Return a digest of types and of everything that they contain."""
    schema = msgspec.json.schema_components(types)
    return hashlib.sha256(msgspec.json.encode(schema, order="sorted")).hexdigest()[:16]


def _decoded(decoder: "msgspec.msgpack.Decoder[_Decoded]", data: bytes) -> _Decoded:
    try:
        return decoder.decode(data)
    # All that the decoder raises for bytes that are not a message, deep nesting included.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableMessageError(f"cannot be read: {error}") from None


def entered_envs(beats: Iterable[Beat]) -> tuple[int, ...]:
    """Return the envs that the lanes are working on."""
    return tuple(sorted({beat.env_id for beat in beats if beat.env_id is not None}))


def decision_for(decision: StepDecision, env_ids: Iterable[int]) -> StepDecision:
    """Return a decision without what concerns other envs, so that a message stays small."""
    owned = frozenset(env_ids)
    return msgspec.structs.replace(
        decision,
        actions=_only(decision.actions, owned),
        details=_only(decision.details, owned),
        previous_rewards=_only(decision.previous_rewards, owned),
    )


def _only(row: tuple[object, ...], owned: frozenset[int]) -> tuple[object, ...]:
    return tuple(item if env_id in owned else None for env_id, item in enumerate(row))


def merge_replies(replies: Iterable[Reply]) -> Reply:
    """Merge the replies of several lanes or workers to the same command, in env order."""
    parts = list(replies)
    executed = [part.executed for part in parts if part.executed is not None]
    return Reply(
        evidence=tuple(sorted((item for part in parts for item in part.evidence), key=by_env)),
        executed=_merge_executions(executed) if executed else None,
        tests=tuple(sorted((item for part in parts for item in part.tests), key=by_env)),
        snapshot=next((part.snapshot for part in parts if part.snapshot is not None), None),
        failures=tuple(sorted((item for part in parts for item in part.failures), key=by_env)),
        error=next((part.error for part in parts if part.error is not None), None),
        costs=WorkerCosts(
            cpu_s=sum(part.costs.cpu_s for part in parts),
            data_wait_s=sum(part.costs.data_wait_s for part in parts),
            memory={device: stats for part in parts for device, stats in part.costs.memory.items()},
        ),
    )


def _merge_executions(results: Iterable[ActionExecutionResult]) -> ActionExecutionResult:
    parts = list(results)
    # The four lists belong together row by row; sorted as rows they stay so.
    rows = sorted(
        (
            (target, signals, reports, masks)
            for part in parts
            for target, signals, reports, masks in zip(
                part.truncated_bootstrap_targets,
                part.post_action_signals,
                part.post_action_slot_reports,
                part.post_action_masks,
                strict=True,
            )
        ),
        key=lambda row: row[0],
    )
    return ActionExecutionResult(
        outcomes=sorted(
            (outcome for part in parts for outcome in part.outcomes),
            key=by_env,
        ),
        truncated_bootstrap_targets=[row[0] for row in rows],
        post_action_signals=[row[1] for row in rows],
        post_action_slot_reports=[row[2] for row in rows],
        post_action_masks=[row[3] for row in rows],
    )


def reply_digest(reply: Reply) -> bytes:
    """Return a digest of everything in a reply but its costs, which differ between equal runs."""
    # MessagePack of structs has one form per value, so equal replies have equal bytes.
    compared = msgspec.structs.replace(reply, costs=WorkerCosts())
    return hashlib.sha256(_ENCODER.encode(compared)).digest()


def identity_difference(mine: WorkerIdentity, theirs: WorkerIdentity) -> str | None:
    """Return the first difference of two identities, with both values; None if there is none."""
    # In the order of the fields: a difference in versions explains one in everything after.
    for name in mine.__struct_fields__:
        own, other = getattr(mine, name), getattr(theirs, name)
        if own != other:
            return f"its {name.replace('_', ' ')} is {other!r}, the driver's is {own!r}"
    return None
