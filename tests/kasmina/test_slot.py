"""A slot owns at most one seed, applies lifecycle transitions, then emits their events."""

import contextlib
import gc
import weakref

import msgspec
import pytest
import torch
from tests.kasmina.bodies import (
    AT_ONCE,
    REQUEST,
    bare_slot,
    disturb,
    features,
    generator,
    granted,
    lead,
    plant,
)
from tests.kasmina.seeds import CAUSE, HEALTHY, OCCUPIED_STAGES
from torch import nn

from esper.kasmina import slot as slot_module
from esper.kasmina.blending import GateNetwork
from esper.kasmina.blueprints import OPTIONAL_SEEDS, blueprint_params
from esper.kasmina.seed import Ramp
from esper.kasmina.slot import SeedSlot
from esper.leyline.actions import BLUEPRINTS_BY_TOPOLOGY, Blueprint, Style, Topology
from esper.leyline.errors import ContractError, UnknownNameError, UsageError
from esper.leyline.payloads import (
    Payload,
    SeedFossilized,
    SeedGateEvaluated,
    SeedGerminated,
    SeedPruned,
    SeedStageChanged,
)
from esper.leyline.stages import COOLDOWN_STAGES, Stage

SEEDED = [
    (topology, blueprint)
    for topology in Topology
    for blueprint in (*BLUEPRINTS_BY_TOPOLOGY[topology], *OPTIONAL_SEEDS[topology])
]
seeded = pytest.mark.parametrize(("topology", "blueprint"), SEEDED)
styles = pytest.mark.parametrize("style", Style)
BLENDED = (Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)


class Deaf(Exception):
    """What a broken listener raises."""


def gradients(slot: SeedSlot) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in slot.seed_parameters()]


# --- Forward -------------------------------------------------------------------------------------


@seeded
@styles
@pytest.mark.parametrize("stage", OCCUPIED_STAGES)
def test_newborn_changes_no_bit_in_any_stage(
    topology: Topology, blueprint: Blueprint, style: Style, stage: Stage
) -> None:
    slot = bare_slot(topology)
    plant(slot, stage, blueprint=blueprint, style=style)
    h = features(topology)

    assert torch.equal(slot(h), h)


@styles
@pytest.mark.parametrize("stage", OCCUPIED_STAGES)
def test_grown_seed_changes_the_output_in_blended_stages_only(style: Style, stage: Stage) -> None:
    slot = bare_slot()
    plant(slot, stage, style=style)
    disturb(slot)
    h = features()

    assert torch.equal(slot(h), h) == (stage not in BLENDED)


@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING])
def test_incubating_seed_is_not_called_for_the_output(stage: Stage) -> None:
    slot = bare_slot()
    plant(slot, stage)
    slot.seed = nn.Linear(1, 1)  # would not even fit

    slot(features())


@styles
@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING])
def test_switched_on_seed_gives_the_output_of_a_held_one(stage: Stage, style: Style) -> None:
    slots = bare_slot(), bare_slot()
    for slot, at in zip(slots, (stage, Stage.HOLDING), strict=True):
        plant(slot, at, blueprint=Blueprint.CONV_LIGHT, style=style)
        disturb(slot)
    h = features()

    assert torch.equal(slots[0].switched_on(h), slots[1](h))


@pytest.mark.parametrize("stage", [Stage.TRAINING, *COOLDOWN_STAGES])
def test_broken_seed_does_not_reach_the_host(stage: Stage) -> None:
    slot = bare_slot()
    plant(slot, Stage.TRAINING)
    with torch.no_grad():
        for parameter in slot.seed_parameters():
            parameter.fill_(float("nan"))
    if stage is not Stage.TRAINING:
        lead(slot, stage)
    h = features()

    assert torch.equal(slot(h), h)


@styles
@pytest.mark.parametrize("topology", Topology)
@pytest.mark.parametrize("stage", BLENDED)
def test_blended_seed_passes_gradient_to_what_came_before(
    topology: Topology, style: Style, stage: Stage
) -> None:
    slot = bare_slot(topology)
    plant(slot, stage, style=style)
    disturb(slot)
    h = features(topology).requires_grad_()

    slot(h).square().sum().backward()

    assert h.grad is not None
    assert (h.grad != 0).any(dim=-1).all()


@pytest.mark.parametrize("stage", BLENDED)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_every_layout_survives_backward(stage: Stage, memory_format: torch.memory_format) -> None:
    slot = bare_slot()
    plant(slot, stage, blueprint=Blueprint.CONV_LIGHT, style=Style.GATED_GATE)
    base = nn.Conv2d(4, 4, 3, padding=1).to(memory_format=memory_format)  # type: ignore[call-overload]

    h = base(features().to(memory_format=memory_format))
    slot(h).square().sum().backward()

    assert all(parameter.grad is not None for parameter in base.parameters())
    assert slot(h).is_contiguous(memory_format=memory_format)


@styles
@pytest.mark.parametrize("stage", [Stage.TRAINING, *BLENDED])
def test_half_precision_seed_keeps_the_precision_of_the_host(stage: Stage, style: Style) -> None:
    slot = bare_slot()
    plant(slot, stage, blueprint=Blueprint.CONV_LIGHT, style=style)
    disturb(slot)
    h = features().requires_grad_()

    with torch.autocast("cpu", torch.bfloat16):
        output = slot(h)
    output.square().sum().backward()

    assert output.dtype is h.dtype
    assert all(
        gradient.dtype is torch.float32 and gradient.isfinite().all()
        for gradient in gradients(slot)
        if gradient is not None
    )


def test_validation_before_training_leaves_alpha_usable_by_autograd() -> None:
    slot = bare_slot()
    plant(slot, Stage.HOLDING)
    h = features()
    with torch.inference_mode():
        slot(h)

    slot(h).square().sum().backward()

    assert all(gradient is not None for gradient in gradients(slot))


def test_output_follows_alpha_along_the_ramp() -> None:
    slot = bare_slot()
    plant(slot, Stage.BLENDING)
    disturb(slot)
    h = features()
    assert slot.seed is not None
    s = slot.seed(h)
    granted(slot.set_alpha_target(1.0, Ramp(num_steps=4)))

    for expected in (0.625, 0.75, 0.875, 1.0):
        slot.tick()
        torch.testing.assert_close(slot(h), h + expected * (s - h))


def test_compose_takes_one_alpha_per_sample() -> None:
    slot = bare_slot()
    plant(slot, Stage.BLENDING)
    disturb(slot)
    h = features()

    mixed = slot.compose(h, torch.tensor([0.0, 0.5, 0.5]).view(3, 1, 1, 1))

    assert torch.equal(mixed[0], h[0])
    assert torch.equal(mixed[1:], slot(h)[1:])


# --- Germination ---------------------------------------------------------------------------


@seeded
@styles
def test_seed_has_the_parameters_of_its_blueprint_and_gate(
    topology: Topology, blueprint: Blueprint, style: Style
) -> None:
    slot = bare_slot(topology)
    plant(slot, blueprint=blueprint, style=style)

    gate = GateNetwork(4, topology, generator()) if style is Style.GATED_GATE else nn.Identity()
    num_gate_params = sum(parameter.numel() for parameter in gate.parameters())
    assert slot.num_params == blueprint_params(topology, blueprint, 4) + num_gate_params
    assert (slot.gate is None) == (style is not Style.GATED_GATE)


def test_germination_draws_from_its_generator_alone() -> None:
    slots = [bare_slot(), bare_slot()]
    before = torch.get_rng_state()

    for slot in slots:
        plant(slot, blueprint=Blueprint.CONV_HEAVY, style=Style.GATED_GATE)

    assert torch.equal(torch.get_rng_state(), before)
    first, second = slots
    for left, right in zip(first.seed_parameters(), second.seed_parameters(), strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize(
    ("seed", "reason"),
    [
        (nn.Conv2d(4, 5, 1), "a seed must preserve the shape"),
        (nn.Conv2d(3, 3, 1), "does not fit: .*channels"),
    ],
)
def test_blueprint_whose_seed_does_not_fit_is_refused_without_planting_it(
    seed: nn.Module, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = bare_slot()
    monkeypatch.setattr(slot_module, "build_seed", lambda *_: seed)

    with pytest.raises(UsageError, match=f"'r0c0' with 4 channels.*{reason}"):
        slot.check_blueprint(Blueprint.CONV_LIGHT)

    assert slot.seed is None


@seeded
def test_blueprints_fit_a_slot_of_four_channels(topology: Topology, blueprint: Blueprint) -> None:
    bare_slot(topology).check_blueprint(blueprint)


def test_germination_that_fails_its_probe_leaves_an_empty_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slot, reported = bare_slot(), list[Payload]()
    slot.emit = reported.append
    monkeypatch.setattr(slot_module, "build_seed", lambda *_: nn.Conv2d(4, 5, 1))

    with pytest.raises(ContractError, match="a seed must preserve the shape"):
        slot.germinate(REQUEST, generator())

    assert (slot.state, slot.seed, slot.gate, slot.num_params) == (None, None, None, 0)
    assert reported == []
    assert list(slot.parameters()) == []
    monkeypatch.undo()
    granted(slot.germinate(REQUEST, generator()))


def test_blueprint_of_the_other_topology_leaves_an_empty_slot() -> None:
    slot = bare_slot(Topology.TRANSFORMER)

    with pytest.raises(UnknownNameError):
        plant(slot, blueprint=Blueprint.CONV_LIGHT)

    assert (slot.state, slot.seed) == (None, None)


def test_second_germination_changes_nothing() -> None:
    slot = bare_slot()
    plant(slot)
    seed, state = slot.seed, slot.state

    outcome = slot.germinate(REQUEST, generator())

    assert not outcome.succeeded
    assert slot.seed is seed
    assert slot.state is state


# --- Modules -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", OCCUPIED_STAGES)
def test_module_is_there_exactly_outside_the_cooldown(stage: Stage) -> None:
    slot = bare_slot()
    plant(slot, stage, style=Style.GATED_GATE)

    assert (slot.seed is None) == (stage in COOLDOWN_STAGES)
    assert (slot.gate is None) == (stage in COOLDOWN_STAGES)
    assert (slot.num_params == 0) == (stage in COOLDOWN_STAGES)


def test_pruned_module_is_freed() -> None:
    slot = bare_slot()
    plant(slot, Stage.HOLDING)
    seed = weakref.ref(slot.seed)

    granted(slot.prune(CAUSE))
    gc.collect()

    assert seed() is None


@pytest.mark.parametrize("is_prune", [True, False])
def test_parameters_rest_on_the_way_to_a_prune_and_only_there(is_prune: bool) -> None:
    slot = bare_slot()
    plant(slot, Stage.HOLDING, style=Style.GATED_GATE)
    slot(features()).square().sum().backward()

    ramp = Ramp(num_steps=2)
    granted(slot.schedule_prune(ramp, CAUSE) if is_prune else slot.set_alpha_target(0.5, ramp))

    assert all(
        parameter.requires_grad is not is_prune and (parameter.grad is None) is is_prune
        for parameter in slot.seed_parameters()
    )
    slot.tick()
    slot.tick()
    assert (slot.seed is None) == is_prune


def test_planted_seed_takes_on_the_mode_of_its_slot() -> None:
    slot = bare_slot().eval()
    plant(slot, style=Style.GATED_GATE)

    assert not any(module.training for module in slot.modules())


# --- Events --------------------------------------------------------------------------------------


def payloads_of_a_whole_life() -> list[Payload]:
    slot, reported = bare_slot(), list[Payload]()
    slot.emit = reported.append
    plant(slot, Stage.HOLDING)
    slot.record_accuracy(50.0)
    granted(slot.fossilize())
    return reported


def test_life_to_a_fossil_is_reported_in_order() -> None:
    assert [type(payload) for payload in payloads_of_a_whole_life()] == [
        *(SeedGateEvaluated, SeedGerminated),
        *(SeedGateEvaluated, SeedStageChanged),
        *(SeedGateEvaluated, SeedStageChanged),
        *(SeedGateEvaluated, SeedStageChanged),
        *(SeedGateEvaluated, SeedStageChanged, SeedFossilized),
    ]


def test_fossil_is_reported_with_its_size_and_worth() -> None:
    fossil = payloads_of_a_whole_life()[-1]

    assert isinstance(fossil, SeedFossilized)
    assert (fossil.slot_id, fossil.seed_id, fossil.blueprint) == ("r0c0", "s0", "norm")
    assert fossil.num_params == blueprint_params(Topology.CNN, Blueprint.NORM, 4)
    assert (fossil.contribution_pp, fossil.age_steps) == (2.0, 3)


def test_prune_is_reported_with_its_cause_after_the_module_is_gone() -> None:
    slot, reported = bare_slot(), list[tuple[Payload, bool]]()
    plant(slot, Stage.TRAINING)
    slot.emit = lambda payload: reported.append((payload, slot.seed is None))

    granted(slot.prune(CAUSE))

    changed, pruned = (payload for payload, _ in reported)
    assert all(is_gone for _, is_gone in reported)
    assert isinstance(changed, SeedStageChanged)
    assert (changed.from_stage, changed.to_stage) == ("TRAINING", "PRUNED")
    assert isinstance(pruned, SeedPruned)
    assert (pruned.reason, pruned.initiator) == (CAUSE.reason, CAUSE.initiator)


@pytest.mark.parametrize("stage", [Stage.GERMINATED, Stage.TRAINING, *BLENDED[:2]])
@pytest.mark.parametrize("operation", ["advance", "prune", "fossilize", "schedule", "tick"])
def test_listener_that_raises_finds_the_change_complete(stage: Stage, operation: str) -> None:
    def life() -> SeedSlot:
        slot = bare_slot()
        plant(slot, stage)
        return slot

    def act(slot: SeedSlot) -> None:
        match operation:
            case "schedule":
                slot.schedule_prune(AT_ONCE, CAUSE)
            case "prune":
                slot.prune(CAUSE)
            case _:
                getattr(slot, operation)()

    def refuse(_payload: Payload) -> None:
        raise Deaf

    expected, actual = life(), life()
    actual.emit = refuse
    act(expected)
    with contextlib.suppress(Deaf):
        act(actual)

    assert actual.state == expected.state
    assert (actual.seed is None) == (expected.seed is None)


def test_listener_that_raises_at_germination_leaves_a_whole_seed() -> None:
    slot = bare_slot()

    def refuse(_payload: Payload) -> None:
        raise Deaf

    slot.emit = refuse
    with pytest.raises(Deaf):
        slot.germinate(REQUEST, generator())

    assert slot.state is not None
    assert slot.seed is not None


# --- Measuring -----------------------------------------------------------------------------------


def test_report_carries_what_was_recorded() -> None:
    slot = bare_slot()
    plant(slot, Stage.HOLDING)
    slot.record_accuracy(61.0)
    slot.record_contribution(3.5)
    slot.record_interaction(0.5, 0.25)
    slot.record_gradient(msgspec.structs.replace(HEALTHY, norm=7.0))

    report = slot.report(upstream_alpha_sum=1.5, downstream_alpha_sum=0.5)

    assert report is not None
    assert report.gradient is not None
    assert (report.current_accuracy_pct, report.contribution_pp) == (61.0, 3.5)
    assert report.contribution_velocity_pp == pytest.approx(0.3 * 1.5)
    assert (report.interaction_sum_pp, report.boost_received_pp) == (0.5, 0.25)
    assert (report.upstream_alpha_sum, report.downstream_alpha_sum) == (1.5, 0.5)
    assert report.gradient.norm == 7.0


def test_empty_slot_has_no_report_and_ignores_accuracy() -> None:
    slot = bare_slot()
    slot.record_accuracy(50.0)

    assert slot.report() is None


def test_empty_slot_has_no_report() -> None:
    with pytest.raises(ContractError, match="'r0c0' is empty"):
        bare_slot().record_contribution(1.0)
