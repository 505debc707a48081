"""The body of a probe against the real one: the same operations, the same states and events."""

import statistics
from random import Random

import msgspec
import pytest
from tests.kasmina.bodies import bare_slot, generator
from tests.kasmina.seeds import CAUSE, HEALTHY

from esper.kasmina.lifecycle import Transition
from esper.kasmina.seed import GerminationRequest, Ramp
from esper.kasmina.slot_operations import SlotOperations
from esper.leyline.actions import Blueprint, Style
from esper.leyline.errors import UnknownNameError
from esper.leyline.messages import Panic, PanicReason
from esper.leyline.payloads import Payload
from esper.leyline.probes import ProbeHostSpec
from esper.leyline.stages import Gate, LifecycleRules, Stage
from esper.simic.probes.body import ProbeBody, ProbeSlot
from esper.simic.probes.growth import Fate

RULES = LifecycleRules(
    auto_forward=(Gate.G1, Gate.G2, Gate.G3), min_training_steps=1, embargo_steps=1
)
SPEC = ProbeHostSpec(num_slots=2, start_pct=30.0, end_pct=30.0, gain_pp=(20.0,), interference_pp=4)
PANIC = Panic(reason=PanicReason.NAN, loss=0.0, threshold=None, consecutive_anomalies=0)


def body_of(
    events: list[Payload], rules: LifecycleRules = RULES, spec: ProbeHostSpec = SPEC
) -> ProbeBody:
    slots = {slot_id: ProbeSlot(slot_id, rules, events.append) for slot_id in SPEC.slot_ids}
    fate = Fate(0, (False,) * 99)
    return ProbeBody(spec=spec, fate=fate, slots=slots, noise=Random(1))


def request(seed_id: str) -> GerminationRequest:
    return GerminationRequest(
        seed_id=seed_id, blueprint=Blueprint.NORM, style=Style.LINEAR_ADD, tempo_steps=3
    )


def operate(slot: SlotOperations, operation: str) -> Transition | None:
    match operation:
        case "fossilize":
            return slot.fossilize()
        case "prune":
            return slot.schedule_prune(Ramp(num_steps=2), CAUSE)
        case "half":
            return slot.set_alpha_target(0.5, Ramp(num_steps=3))
        case "full":
            return slot.set_alpha_target(1.0, Ramp(num_steps=0))
    return None


@pytest.mark.parametrize("seed", range(8))
def test_a_probe_slot_goes_through_the_life_of_a_real_one(seed: int) -> None:
    rng = Random(seed)
    events: list[Payload] = []
    real_events: list[Payload] = []
    body, real = body_of(events), bare_slot(rules=RULES)
    real.emit = real_events.append
    slot = body.slot("r0c0")
    reached: set[Stage] = set()
    for step in range(120):
        operation = rng.choice(("germinate", "prune", "half", "full", "fossilize", "", "", ""))
        if operation == "fossilize" and step < 60:
            operation = ""  # nothing happens to a fossil any more
        if operation == "germinate":
            found = body.germinate("r0c0", request(f"s{step}"), None)
            expected = real.germinate(request(f"s{step}"), generator(step))
        else:
            found, expected = operate(slot, operation), operate(real, operation)
        assert found == expected
        for each in (slot, real):
            each.tick()
            if each.state is not None:
                each.record_accuracy(40.0 + step)
                each.record_gradient(HEALTHY)
                each.record_contribution(1.0)
        assert slot.state == real.state
        reached |= set() if slot.state is None else {slot.state.stage}
    assert [_plain(event) for event in events] == [_plain(event) for event in real_events]
    assert {Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.EMBARGOED} <= reached


def _plain(event: Payload) -> tuple[str, object]:
    """Return an event without the one number that differs: a real seed has other parameters."""
    fields = msgspec.to_builtins(event)
    fields.pop("num_params", None)
    return type(event).__name__, fields


def hold(body: ProbeBody, slot_id: str) -> None:
    """Germinate a seed and let it reach HOLDING."""
    assert body.germinate(slot_id, request(slot_id), None).succeeded
    for _ in range(6):
        body.record_gradients()
        body.tick()
    state = body.slot(slot_id).state
    assert state is not None
    assert state.stage is Stage.HOLDING


def test_ablations_of_a_body_follow_the_law_of_growth() -> None:
    body = body_of([])
    hold(body, "r0c0")
    hold(body, "r0c1")
    assert body.accuracy_pct(9) == pytest.approx(30 + 20 + 20 - 4)
    assert body.accuracy_pct(9, {"r0c0"}) == body.accuracy_pct(9, {"r0c1"}) == 50.0
    assert body.accuracy_pct(9, {"r0c0", "r0c1"}) == 30.0


def test_measurements_are_off_by_noise_of_the_given_size() -> None:
    body = body_of([], spec=msgspec.structs.replace(SPEC, noise_pp=3.0))
    found = [body.measured_pct(9) for _ in range(2000)]
    assert statistics.fmean(found) == pytest.approx(30.0, abs=0.3)
    assert statistics.stdev(found) == pytest.approx(3.0, rel=0.1)
    assert body_of([]).measured_pct(9) == 30.0


def test_with_noise_gradients_tell_nothing_about_a_seed_s_worth() -> None:
    norms: list[list[float]] = []
    for worth in (50.0, -50.0):
        body = body_of([], spec=msgspec.structs.replace(SPEC, noise_pp=3.0, gain_pp=(worth,)))
        hold(body, "r0c0")
        norms.append([])
        for _ in range(5):
            body.record_gradients()
            gradient = body.slot("r0c0").occupant().measured.gradient
            assert gradient is not None
            norms[-1].append(gradient.norm)
    assert norms[0] == norms[1]
    assert len(set(norms[0])) == 5


def test_a_gradient_grows_with_what_a_seed_adds() -> None:
    body = body_of([])
    body.germinate("r0c0", request("s"), None)
    body.record_gradients()
    before = body.slot("r0c0").occupant().measured.gradient
    hold(body, "r0c1")
    body.record_gradients()
    after = body.slot("r0c1").occupant().measured.gradient
    assert before is not None
    assert after is not None
    assert (before.norm, after.norm) == (1.0, 3.0)


def test_parameters_are_counted_until_a_seed_is_pruned() -> None:
    body = body_of([])
    hold(body, "r0c0")
    assert body.num_seed_params == SPEC.seed_params
    body.slot("r0c0").prune(CAUSE)
    assert body.num_seed_params == 0
    assert [report.num_params for report in body.reports()] == [0]


def test_a_rollback_prunes_what_is_not_fossilized() -> None:
    body = body_of([])
    hold(body, "r0c0")
    body.slot("r0c0").record_contribution(1.0)
    assert body.slot("r0c0").fossilize().succeeded
    hold(body, "r0c1")
    assert body.roll_back(PANIC) == ("r0c1",)
    assert [report.stage for report in body.reports()] == [Stage.FOSSILIZED, Stage.PRUNED]


def test_a_slot_that_is_not_there_is_named() -> None:
    with pytest.raises(UnknownNameError, match="r9c9"):
        body_of([]).slot("r9c9")
