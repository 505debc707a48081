"""Telemetry contracts: event types, the envelope, the closed union, and how it is read and written.

A producer makes a `Draft` (payload, scope, severity); the hub numbers it; `build_event` puts it
into the envelope that is written, one JSON object per line, `event_type` first.
"""

import math
import operator
from collections.abc import Iterator, Mapping
from enum import IntEnum, StrEnum
from functools import cache, reduce
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, UnsetType

from esper.leyline import context_payloads, engine_payloads, payloads
from esper.leyline.errors import EventDecodeError, UnknownNameError
from esper.leyline.payloads import Payload, Volatile
from esper.leyline.untyped_json import decode_json

__all__ = [
    "EVENT_SPECS",
    "RUN_SCOPE",
    "SCHEMA_VERSION",
    "Channel",
    "CountClass",
    "CountPer",
    "Draft",
    "Event",
    "EventScope",
    "EventSpec",
    "EventType",
    "Severity",
    "TelemetryLevel",
    "build_event",
    "decode_event",
    "encode_event",
    "event_type_of",
    "events_schema",
    "nonfinite_paths",
    "volatile_paths",
]

SCHEMA_VERSION: Final = 2
"""Raised when a reader of older logs would misread newer ones."""


class TelemetryLevel(IntEnum):
    """How much is emitted; what is measured does not depend on it."""

    OFF = 0
    MINIMAL = 1
    NORMAL = 2
    DEBUG = 3

    @classmethod
    def named(cls, name: str) -> "TelemetryLevel":
        """Return the level with this lower-case name."""
        for level in cls:
            if level.name.lower() == name:
                return level
        raise UnknownNameError("telemetry level", name, (level.name.lower() for level in cls))


class Severity(StrEnum):
    """The severity of an event."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """Return the rank, from least to most severe."""
        return tuple(Severity).index(self)


class Channel(StrEnum):
    """Which file an event goes to."""

    RUN = "run"
    """Part of the run: the same lines for the same seed."""
    OPERATIONAL = "operational"
    """About this execution of the run: lagging subscribers, stalled lanes."""


class CountClass(StrEnum):
    """How counts of a type are compared between two runs."""

    STRUCTURAL = "structural"
    """A closed form of rounds, envs and steps."""
    IDENTITY = "identity"
    """Bound to other counts by an equation; otherwise like SEEDED."""
    SEEDED = "seeded"
    """The same for the same configuration on the same kind of machine."""
    ENVIRONMENT = "environment"
    """Depends on hardware or on connected subscribers; never compared."""


class CountPer(StrEnum):
    """The unit of which a type has one event, from which its closed form follows."""

    RUN = "run"
    CHECKPOINT = "checkpoint"
    ROUND = "round"
    EPISODE = "episode"
    ENV_STEP = "env_step"
    STEP_OR_UPDATE = "step_or_update"
    """Every step of a round, and its update once more."""


class EventType(StrEnum):
    """Every event there is."""

    TRAINING_STARTED = "TRAINING_STARTED"
    EPOCH_COMPLETED = "EPOCH_COMPLETED"
    LAST_ACTION = "LAST_ACTION"
    COUNTERFACTUAL_MATRIX_COMPUTED = "COUNTERFACTUAL_MATRIX_COMPUTED"
    COUNTERFACTUAL_UNAVAILABLE = "COUNTERFACTUAL_UNAVAILABLE"
    SHAPLEY_COMPUTED = "SHAPLEY_COMPUTED"
    GRADIENT_ANOMALY = "GRADIENT_ANOMALY"
    OBSERVATION_STATS = "OBSERVATION_STATS"
    TAMIYO_INITIATED = "TAMIYO_INITIATED"
    SEED_GERMINATED = "SEED_GERMINATED"
    SEED_GATE_EVALUATED = "SEED_GATE_EVALUATED"
    SEED_STAGE_CHANGED = "SEED_STAGE_CHANGED"
    SEED_FOSSILIZED = "SEED_FOSSILIZED"
    SEED_PRUNED = "SEED_PRUNED"
    GOVERNOR_ROLLBACK = "GOVERNOR_ROLLBACK"
    MORPHOLOGY_CAUSAL_LOG = "MORPHOLOGY_CAUSAL_LOG"
    TOPOLOGY_MANIFEST_RECORDED = "TOPOLOGY_MANIFEST_RECORDED"
    ENV_FAILED = "ENV_FAILED"
    EPISODE_CONTEXT_DRAWN = "EPISODE_CONTEXT_DRAWN"
    EPISODE_OUTCOME = "EPISODE_OUTCOME"
    PHASE_PROFILE_COMPLETED = "PHASE_PROFILE_COMPLETED"
    PPO_UPDATE_COMPLETED = "PPO_UPDATE_COMPLETED"
    LAYER_GRADIENTS_COLLECTED = "LAYER_GRADIENTS_COLLECTED"
    RATIO_EXPLOSION_DETECTED = "RATIO_EXPLOSION_DETECTED"
    RATIO_COLLAPSE_DETECTED = "RATIO_COLLAPSE_DETECTED"
    VALUE_COLLAPSE_DETECTED = "VALUE_COLLAPSE_DETECTED"
    NUMERICAL_INSTABILITY_DETECTED = "NUMERICAL_INSTABILITY_DETECTED"
    GRADIENT_PATHOLOGY_DETECTED = "GRADIENT_PATHOLOGY_DETECTED"
    ENTROPY_COLLAPSE_DETECTED = "ENTROPY_COLLAPSE_DETECTED"
    KL_SPIKE_DETECTED = "KL_SPIKE_DETECTED"
    LSTM_ANOMALY_DETECTED = "LSTM_ANOMALY_DETECTED"
    REWARD_HACKING_SUSPECTED = "REWARD_HACKING_SUSPECTED"
    BATCH_STATS = "BATCH_STATS"
    PLATEAU_DETECTED = "PLATEAU_DETECTED"
    DEGRADATION_DETECTED = "DEGRADATION_DETECTED"
    IMPROVEMENT_DETECTED = "IMPROVEMENT_DETECTED"
    BATCH_EPOCH_COMPLETED = "BATCH_EPOCH_COMPLETED"
    ACTION_DISTRIBUTION = "ACTION_DISTRIBUTION"
    MASK_HIT_RATES = "MASK_HIT_RATES"
    REWARD_SUMMARY = "REWARD_SUMMARY"
    THROUGHPUT = "THROUGHPUT"
    SCOREBOARD_UPDATED = "SCOREBOARD_UPDATED"
    PERFORMANCE_DEGRADATION = "PERFORMANCE_DEGRADATION"
    ALLOCATOR_STATS = "ALLOCATOR_STATS"
    MEMORY_WARNING = "MEMORY_WARNING"
    CHECKPOINT_SAVED = "CHECKPOINT_SAVED"
    RUN_FINISHED = "RUN_FINISHED"
    CHECKPOINT_LOADED = "CHECKPOINT_LOADED"
    LANE_STALLED = "LANE_STALLED"
    WORKER_RESTARTED = "WORKER_RESTARTED"
    SUBSCRIBER_LAGGED = "SUBSCRIBER_LAGGED"
    LIVE_SERVER_STOPPED = "LIVE_SERVER_STOPPED"
    SINK_STOPPED = "SINK_STOPPED"


class EventSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the event table."""

    event_type: EventType
    payload: type[Payload]
    level: TelemetryLevel
    """The lowest level at which it is emitted."""
    count_class: CountClass
    per: CountPer | None = None
    """For structural types, what there is one event of."""
    severity: Severity = Severity.INFO
    """Unless the producer says otherwise."""
    channel: Channel = Channel.RUN


_OFF, _MINIMAL = TelemetryLevel.OFF, TelemetryLevel.MINIMAL
_NORMAL, _DEBUG = TelemetryLevel.NORMAL, TelemetryLevel.DEBUG


def _structural(
    payload: type[Payload], level: TelemetryLevel, per: CountPer, severity: Severity = Severity.INFO
) -> EventSpec:
    return _spec(payload, level, CountClass.STRUCTURAL, severity, per=per)


def _spec(
    payload: type[Payload],
    level: TelemetryLevel,
    count_class: CountClass,
    severity: Severity = Severity.INFO,
    *,
    per: CountPer | None = None,
    channel: Channel = Channel.RUN,
) -> EventSpec:
    return EventSpec(
        event_type=_type_named_after(payload),
        payload=payload,
        level=level,
        count_class=count_class,
        per=per,
        severity=severity,
        channel=channel,
    )


def _type_named_after(payload: type[Payload]) -> EventType:
    wanted = payload.__name__.lower()
    return next(item for item in EventType if item.value.replace("_", "").lower() == wanted)


def _alarm(payload: type[Payload], severity: Severity = Severity.WARNING) -> EventSpec:
    return _spec(payload, _MINIMAL, CountClass.SEEDED, severity)


def _operational(payload: type[Payload], severity: Severity) -> EventSpec:
    return _spec(
        payload, _OFF, CountClass.ENVIRONMENT, severity, per=None, channel=Channel.OPERATIONAL
    )


_ROWS: Final = (
    _structural(payloads.TrainingStarted, _OFF, CountPer.RUN),
    _structural(payloads.RunFinished, _OFF, CountPer.RUN),
    _structural(payloads.CheckpointSaved, _OFF, CountPer.CHECKPOINT),
    _structural(payloads.EpochCompleted, _NORMAL, CountPer.ENV_STEP),
    # A step that ends in a rollback never acts, and rollbacks depend on the numbers.
    _spec(
        payloads.LastAction,
        _NORMAL,
        CountClass.IDENTITY,
        Severity.DEBUG,
        per=CountPer.ENV_STEP,
    ),
    # Which tasks have contexts is not part of a log, so that its count has no closed form.
    _spec(context_payloads.EpisodeContextDrawn, _MINIMAL, CountClass.SEEDED),
    _structural(payloads.EpisodeOutcome, _MINIMAL, CountPer.EPISODE),
    _structural(payloads.BatchEpochCompleted, _MINIMAL, CountPer.ROUND),
    _structural(payloads.BatchStats, _MINIMAL, CountPer.ROUND),
    _structural(payloads.PPOUpdateCompleted, _MINIMAL, CountPer.ROUND),
    _structural(payloads.ActionDistribution, _NORMAL, CountPer.ROUND),
    _structural(payloads.MaskHitRates, _NORMAL, CountPer.ROUND),
    _structural(payloads.RewardSummary, _NORMAL, CountPer.ROUND),
    _structural(payloads.Throughput, _NORMAL, CountPer.ROUND),
    _structural(payloads.PhaseProfileCompleted, _NORMAL, CountPer.STEP_OR_UPDATE, Severity.DEBUG),
    _spec(payloads.ScoreboardUpdated, _NORMAL, CountClass.SEEDED),
    _spec(payloads.CounterfactualMatrixComputed, _NORMAL, CountClass.SEEDED),
    _spec(payloads.CounterfactualUnavailable, _NORMAL, CountClass.SEEDED, Severity.WARNING),
    _spec(payloads.ShapleyComputed, _NORMAL, CountClass.SEEDED),
    _spec(payloads.TamiyoInitiated, _NORMAL, CountClass.SEEDED),
    _spec(payloads.GradientAnomaly, _NORMAL, CountClass.SEEDED, Severity.WARNING),
    _spec(payloads.ObservationStats, _DEBUG, CountClass.SEEDED, Severity.DEBUG),
    _spec(payloads.LayerGradientsCollected, _DEBUG, CountClass.SEEDED, Severity.DEBUG),
    _spec(payloads.SeedGerminated, _NORMAL, CountClass.IDENTITY),
    _spec(payloads.SeedGateEvaluated, _NORMAL, CountClass.IDENTITY),
    _spec(payloads.SeedStageChanged, _NORMAL, CountClass.IDENTITY),
    _spec(payloads.SeedFossilized, _NORMAL, CountClass.IDENTITY),
    _spec(payloads.SeedPruned, _NORMAL, CountClass.IDENTITY),
    _spec(payloads.MorphologyCausalLog, _NORMAL, CountClass.IDENTITY, Severity.DEBUG),
    _structural(payloads.TopologyManifestRecorded, _MINIMAL, CountPer.EPISODE),
    _alarm(payloads.GovernorRollback, Severity.CRITICAL),
    _alarm(payloads.EnvFailed, Severity.ERROR),
    _alarm(payloads.RatioExplosionDetected),
    _alarm(payloads.RatioCollapseDetected),
    _alarm(payloads.ValueCollapseDetected),
    _alarm(payloads.NumericalInstabilityDetected),
    _alarm(payloads.GradientPathologyDetected),
    _alarm(payloads.EntropyCollapseDetected),
    _alarm(payloads.KlSpikeDetected),
    _alarm(payloads.LstmAnomalyDetected),
    _alarm(payloads.RewardHackingSuspected),
    _alarm(payloads.PerformanceDegradation),
    _alarm(payloads.PlateauDetected, Severity.INFO),
    _alarm(payloads.DegradationDetected),
    _alarm(payloads.ImprovementDetected, Severity.INFO),
    _spec(payloads.AllocatorStats, _NORMAL, CountClass.ENVIRONMENT),
    _spec(payloads.MemoryWarning, _MINIMAL, CountClass.ENVIRONMENT, Severity.WARNING),
    _operational(payloads.CheckpointLoaded, Severity.INFO),
    _operational(engine_payloads.LaneStalled, Severity.CRITICAL),
    _operational(engine_payloads.WorkerRestarted, Severity.WARNING),
    _operational(payloads.SubscriberLagged, Severity.WARNING),
    _operational(payloads.LiveServerStopped, Severity.WARNING),
    _operational(engine_payloads.SinkStopped, Severity.WARNING),
)

EVENT_SPECS: Final[Mapping[EventType, EventSpec]] = {row.event_type: row for row in _ROWS}
"""The one table: type, payload, level, count class, severity, channel."""

_TYPES_BY_PAYLOAD: Final = {row.payload: row.event_type for row in _ROWS}
_SEVERITIES_BY_PAYLOAD: Final = {row.payload: row.severity for row in _ROWS}


def event_type_of(payload: Payload | type[Payload]) -> EventType:
    """Return the type of the event that this payload travels in."""
    return _TYPES_BY_PAYLOAD[payload if isinstance(payload, type) else type(payload)]


class EventScope(msgspec.Struct, frozen=True, gc=False):
    """Where in a run something happened; None where it does not apply."""

    round: int | None = None
    step: int | None = None
    env_id: int | None = None
    episode_id: int | None = None


RUN_SCOPE: Final = EventScope()


class Draft(msgspec.Struct, frozen=True, gc=False):
    """An event before the hub has numbered it."""

    payload: Payload
    scope: EventScope = RUN_SCOPE
    severity: Severity | None = None
    """None takes the type's own severity."""


class Event(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    gc=False,
    tag_field="event_type",
    forbid_unknown_fields=True,
):
    """The envelope. Its subclasses, one per event type, differ in the type of `data` alone."""

    seq: int
    """Counts from 0 within the run and channel, without gaps."""
    ts: Volatile[float]
    """Seconds since the epoch, UTC."""
    run_id: Volatile[str]
    group: str
    """Cohort of an A/B comparison."""
    round: int | None
    step: int | None
    env_id: int | None
    episode_id: int | None
    severity: Severity
    nonfinite: tuple[str, ...] | UnsetType = UNSET
    """Paths in `data` that are null because the number was not finite."""
    data: Payload

    @property
    def event_type(self) -> EventType:
        """Return the type, as written first on the line."""
        return event_type_of(self.data)


def _envelope_for(row: EventSpec) -> type[Event]:
    envelope = msgspec.defstruct(
        f"{row.payload.__name__}Event",
        [("data", row.payload)],
        bases=(Event,),
        tag=row.event_type.value,
        frozen=True,
        kw_only=True,
        gc=False,
        namespace={"__doc__": row.payload.__doc__},
        module=__name__,
    )
    return cast(type[Event], envelope)


_ENVELOPES: Final[Mapping[type[Payload], type[Event]]] = {
    row.payload: _envelope_for(row) for row in _ROWS
}


_EVENT_UNION: Final[Any] = reduce(operator.or_, _ENVELOPES.values())
_DECODER: Final = msgspec.json.Decoder(_EVENT_UNION)
_ENCODER: Final = msgspec.json.Encoder()


def build_event(draft: Draft, *, seq: int, ts: float, run_id: str, group: str) -> Event:
    """Put a draft into its envelope."""
    payload, scope = draft.payload, draft.scope
    return _ENVELOPES[type(payload)](
        seq=seq,
        ts=ts,
        run_id=run_id,
        group=group,
        round=scope.round,
        step=scope.step,
        env_id=scope.env_id,
        episode_id=scope.episode_id,
        severity=draft.severity or _SEVERITIES_BY_PAYLOAD[type(payload)],
        nonfinite=nonfinite_paths(payload) or UNSET,
        data=payload,
    )


def encode_event(event: Event) -> bytes:
    """Return the event's line, without the newline."""
    return _ENCODER.encode(event)


def decode_event(line: bytes | str) -> Event:
    """Read one line; anything that is not an event of this schema raises EventDecodeError."""
    try:
        return cast(Event, _DECODER.decode(line))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        reason = str(error)
    except RecursionError:
        reason = "is nested too deeply"
    raw = line if isinstance(line, bytes) else line.encode("utf-8", "replace")
    raise EventDecodeError(reason, raw)


def nonfinite_paths(payload: msgspec.Struct) -> tuple[str, ...]:
    """Return the paths of all numbers in a payload that JSON cannot hold."""
    return () if _is_plainly_finite(payload) else tuple(_walk_nonfinite(payload, ""))


def _is_plainly_finite(payload: msgspec.Struct) -> bool:
    """Return whether all floats are direct fields and finite: a fast path for most payloads."""
    for name in _fields_with_floats(type(payload)):
        item = getattr(payload, name)
        if item is not None and not (type(item) is float and math.isfinite(item)):
            return False
    return True


def _walk_nonfinite(value: object, path: str) -> Iterator[str]:
    if isinstance(value, float):
        if not math.isfinite(value):
            yield path
    elif isinstance(value, msgspec.Struct):
        prefix = f"{path}." if path else ""
        for name in _fields_with_floats(type(value)):
            yield from _walk_nonfinite(getattr(value, name), prefix + name)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk_nonfinite(item, f"{path}.{key}")
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _walk_nonfinite(item, f"{path}.{index}")


@cache
def _fields_with_floats(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields that may contain a float, so that all others are skipped."""
    return tuple(
        field.name
        for field in msgspec.structs.fields(struct)
        if "float" in str(field.type) or _mentions_struct(field.type)
    )


def _mentions_struct(annotation: object) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return True
    return any(_mentions_struct(part) for part in getattr(annotation, "__args__", ()))


@cache
def volatile_paths(event_type: EventType) -> frozenset[str]:
    """Return the paths within an event that may differ between two equal runs.

    Elements of lists are written `*`: `data.phases.*.wall_ms`.
    """
    envelope = _ENVELOPES[EVENT_SPECS[event_type].payload]
    return frozenset(_walk_volatile(msgspec.inspect.type_info(envelope), ""))


def _walk_volatile(node: msgspec.inspect.Type, path: str) -> Iterator[str]:
    match node:
        case msgspec.inspect.Metadata(extra_json_schema={"x-volatile": True}):
            yield path
        case msgspec.inspect.Metadata(type=inner):
            yield from _walk_volatile(inner, path)
        case msgspec.inspect.StructType(fields=fields):
            for field in fields:
                name = f"{path}.{field.encode_name}" if path else field.encode_name
                yield from _walk_volatile(field.type, name)
        case msgspec.inspect.UnionType(types=types):
            for part in types:
                yield from _walk_volatile(part, path)
        case (
            msgspec.inspect.VarTupleType(item_type=item) | msgspec.inspect.DictType(value_type=item)
        ):
            yield from _walk_volatile(item, f"{path}.*")


def events_schema() -> dict[str, Any]:
    """Return the JSON Schema of a line of `events.jsonl` or `operational.jsonl`."""
    schema = msgspec.json.schema(_EVENT_UNION)
    # Default values may be tuples, which JSON does not have; a round trip makes them lists.
    schema = decode_json(msgspec.json.encode(schema))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Esper telemetry event",
        "x-schema-version": SCHEMA_VERSION,
        **schema,
    }
