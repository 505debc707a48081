"""Every alarm says in words what it means."""

import pytest
from tests.meta.test_event_contracts import sample_payload

from esper.karn.view.alarms import alarm_text, is_alarm, plain_text
from esper.leyline.telemetry import EVENT_SPECS, Draft, EventSpec, Severity, build_event

WARNING = [spec for spec in EVENT_SPECS.values() if spec.severity.rank >= Severity.WARNING.rank]


@pytest.mark.parametrize("spec", WARNING, ids=lambda spec: spec.event_type)
def test_every_type_that_warns_has_a_sentence_of_its_own(spec: EventSpec) -> None:
    text = alarm_text(sample_payload(spec))
    assert text
    assert "\n" not in text
    assert text != plain_text(sample_payload(spec))


@pytest.mark.parametrize("severity", list(Severity))
def test_severity_alone_decides_what_is_an_alarm(severity: Severity) -> None:
    spec = next(iter(EVENT_SPECS.values()))
    event = build_event(
        Draft(sample_payload(spec), severity=severity), seq=0, ts=0.0, run_id="r", group="g"
    )
    assert is_alarm(event) == (severity in (Severity.WARNING, Severity.ERROR, Severity.CRITICAL))
