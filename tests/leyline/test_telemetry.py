"""Envelope, codec and the marks on fields."""

import msgspec
import pytest

from esper.leyline import payloads
from esper.leyline.errors import EventDecodeError, UnknownNameError
from esper.leyline.telemetry import EVENT_SPECS as SPECS
from esper.leyline.telemetry import (
    Channel,
    Draft,
    EventScope,
    EventType,
    Severity,
    TelemetryLevel,
    build_event,
    decode_event,
    encode_event,
    event_type_of,
    nonfinite_paths,
    volatile_paths,
)

TREND = payloads.PlateauDetected(
    rolling_delta_pp=0.1, rolling_accuracy_pct=50.0, previous_rolling_accuracy_pct=49.9
)


def line_of(draft: Draft) -> bytes:
    return encode_event(build_event(draft, seq=4, ts=1.5, run_id="run", group="default"))


def test_envelope_fields_stand_in_their_published_order() -> None:
    phase = payloads.PhaseTime(phase="train", wall_ms=float("inf"), cpu_ms=1.0)
    line = line_of(Draft(payloads.PhaseProfileCompleted(phases=(phase,)), EventScope(1, 2)))
    assert list(msgspec.json.decode(line)) == [
        "event_type",
        "seq",
        "ts",
        "run_id",
        "group",
        "round",
        "step",
        "env_id",
        "episode_id",
        "severity",
        "nonfinite",
        "data",
    ]


def test_nonfinite_is_left_out_when_every_number_is_finite() -> None:
    assert b"nonfinite" not in line_of(Draft(TREND))


def test_numbers_json_cannot_hold_are_named_by_path_at_any_depth() -> None:
    nan, inf = float("nan"), float("inf")
    coalitions = tuple(
        payloads.CoalitionResult(seeds_on=(), accuracy_pct=accuracy, loss=loss)
        for accuracy, loss in [(1.0, nan), (None, 2.0), (-inf, 3.0)]
    )
    matrix = payloads.CounterfactualMatrixComputed(
        strategy="full_factorial",
        slot_ids=("r0c0",),
        coalitions=coalitions,
        committed_accuracy_pct=inf,
    )

    expected = ("coalitions.0.loss", "coalitions.2.accuracy_pct", "committed_accuracy_pct")

    assert nonfinite_paths(matrix) == expected
    assert decode_event(line_of(Draft(matrix))).nonfinite == expected


def test_severity_comes_from_the_type_unless_the_producer_says_otherwise() -> None:
    assert decode_event(line_of(Draft(TREND))).severity is Severity.INFO
    loud = Draft(TREND, severity=Severity.ERROR)
    assert decode_event(line_of(loud)).severity is Severity.ERROR


def test_severities_are_ranked_from_mild_to_grave() -> None:
    assert [severity.rank for severity in Severity] == [0, 1, 2, 3, 4]
    assert Severity.DEBUG.rank < Severity.CRITICAL.rank


def test_an_event_knows_its_type() -> None:
    event = decode_event(line_of(Draft(TREND)))
    assert event.event_type is event_type_of(TREND) is EventType.PLATEAU_DETECTED


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"[]", "object"),
        (b'{"event_type":"NEVER_HEARD_OF","seq":0}', "NEVER_HEARD_OF"),
        (b'{"seq":0}', "event_type"),
        (b"\xff\xfe", "malformed|invalid"),
        (b'{"event_type":"PLATEAU_DETECTED","seq":"0"}', "seq"),
    ],
)
def test_what_is_no_event_is_refused_with_the_reason_and_the_way_on(
    line: bytes, reason: str
) -> None:
    with pytest.raises(EventDecodeError, match=rf"(?i){reason}.*esper-telemetry schema"):
        decode_event(line)


def test_unknown_fields_are_refused_in_envelope_and_payload() -> None:
    whole = msgspec.json.decode(line_of(Draft(TREND)))
    for broken in (whole | {"extra": 1}, whole | {"data": whole["data"] | {"extra": 1}}):
        with pytest.raises(EventDecodeError, match="extra"):
            decode_event(msgspec.json.encode(broken))


def test_clocks_and_run_ids_are_volatile_in_every_event() -> None:
    assert all({"ts", "run_id"} <= volatile_paths(event_type) for event_type in EventType)


def test_volatile_marks_reach_into_lists() -> None:
    assert volatile_paths(EventType.PHASE_PROFILE_COMPLETED) == {
        "ts",
        "run_id",
        "data.phases.*.wall_ms",
        "data.phases.*.cpu_ms",
    }


def test_three_event_types_survive_level_off() -> None:
    always = {
        spec.event_type
        for spec in SPECS.values()
        if spec.level is TelemetryLevel.OFF and spec.channel is Channel.RUN
    }
    assert always == {
        EventType.TRAINING_STARTED,
        EventType.CHECKPOINT_SAVED,
        EventType.RUN_FINISHED,
    }


def test_operational_events_are_these() -> None:
    operational = {
        spec.event_type for spec in SPECS.values() if spec.channel is Channel.OPERATIONAL
    }
    assert operational == {
        EventType.SUBSCRIBER_LAGGED,
        EventType.LIVE_SERVER_STOPPED,
        EventType.SINK_STOPPED,
        EventType.LANE_STALLED,
        EventType.WORKER_RESTARTED,
        EventType.CHECKPOINT_LOADED,
    }


def test_levels_are_found_by_name() -> None:
    assert TelemetryLevel.named("debug") is TelemetryLevel.DEBUG
    with pytest.raises(UnknownNameError, match="known: debug, minimal, normal, off"):
        TelemetryLevel.named("loud")


def test_line_that_is_nested_too_deeply_is_no_event() -> None:
    with pytest.raises(EventDecodeError, match="nested too deeply"):
        decode_event(b'{"x":' + b"[" * 100_000)
