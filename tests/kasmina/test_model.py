"""Growth is exact: what a seed must not change stays bit-equal, what it must reach is reached."""

import copy
import io
import itertools
import random
from typing import Any

import pytest
import torch
from tests.kasmina.bodies import (
    AT_ONCE,
    BLUEPRINT,
    REQUEST,
    SPECS,
    disturb,
    generator,
    granted,
    grown,
    inputs,
    loss_of,
    plant,
)
from tests.kasmina.body_walk import BodyWalk
from tests.kasmina.seeds import CAUSE, OCCUPIED_STAGES

from esper.kasmina.lifecycle import stage_of
from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.seed import Ramp
from esper.leyline.actions import Style, Topology
from esper.leyline.errors import ContractError, UnknownNameError
from esper.leyline.payloads import Payload
from esper.leyline.stages import Stage
from esper.leyline.tasks import CnnHostSpec

topologies = pytest.mark.parametrize("topology", Topology)
styles = pytest.mark.parametrize("style", Style)
BLENDED = (Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)


def planted(
    topology: Topology, stage: Stage, style: Style = Style.SIGMOID_ADD, *, all_slots: bool = False
) -> MorphogeneticModel:
    """Return a model with a grown seed in its second slot, or in all of them."""
    model = grown(SPECS[topology])
    slots = list(model.all_slots())
    for slot in slots if all_slots else slots[1:2]:
        plant(slot, stage, blueprint=BLUEPRINT[topology], style=style, seed_id=slot.slot_id)
        disturb(slot)
    return model


def gradients(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def assert_same_tensors(
    actual: dict[str, Any], expected: dict[str, Any], *, are_gradients: bool = False
) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert tensor is not None or not are_gradients, name
        assert torch.equal(actual[name], tensor), name


# --- Exactness -----------------------------------------------------------------------------------


@topologies
@styles
def test_germination_changes_no_logit_by_one_bit(topology: Topology, style: Style) -> None:
    model, x = grown(SPECS[topology]).eval(), inputs(SPECS[topology])
    before = model(x)

    for slot in model.all_slots():
        plant(slot, blueprint=BLUEPRINT[topology], style=style)

    assert torch.equal(model(x), before)


@topologies
@styles
@pytest.mark.parametrize("stage", [Stage.TRAINING, *BLENDED[:2]])
def test_pruned_model_equals_its_host_bit_for_bit(
    topology: Topology, style: Style, stage: Stage
) -> None:
    model = planted(topology, stage, style, all_slots=True).eval()
    for slot in model.all_slots():
        granted(slot.prune(CAUSE))

    x = inputs(SPECS[topology])

    assert torch.equal(model(x), model.host(x))


@topologies
@styles
def test_full_alpha_reaches_every_host_layer_and_earlier_seed(
    topology: Topology, style: Style
) -> None:
    model = planted(topology, Stage.HOLDING, style, all_slots=True)

    loss_of(model, SPECS[topology]).backward()

    for name, parameter in model.host.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name
    for slot in model.all_slots():
        assert any(
            parameter.grad is not None and parameter.grad.any()
            for parameter in slot.seed_parameters()
        )


@topologies
def test_output_moves_with_the_ramp_and_never_jumps(topology: Topology) -> None:
    model, x = planted(topology, Stage.BLENDING).eval(), inputs(SPECS[topology])
    slot_id = model.blended_slots()[0]
    granted(model.slot(slot_id).set_alpha_target(1.0, AT_ONCE))
    at_one = model(x)
    granted(model.slot(slot_id).schedule_prune(Ramp(num_steps=64), CAUSE))
    seedless = model.host(x)

    passed = [at_one]
    for _ in range(64):
        model.tick()
        passed.append(model(x))

    jumps = [(later - earlier).abs().max() for earlier, later in itertools.pairwise(passed)]
    assert torch.equal(passed[-1], seedless)
    assert max(jumps) < (at_one - seedless).abs().max() / 4


# --- Stored and rebuilt --------------------------------------------------------------------------


def through_a_file(stored: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(stored, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert isinstance(loaded, dict)
    return loaded


@topologies
@styles
@pytest.mark.parametrize("stage", [Stage.DORMANT, *OCCUPIED_STAGES])
def test_rebuilt_model_gives_the_same_logits_and_state(
    topology: Topology, style: Style, stage: Stage
) -> None:
    spec = SPECS[topology]
    model = grown(spec) if stage is Stage.DORMANT else planted(topology, stage, style)
    rebuilt = grown(spec, seed=99)

    rebuilt.load_state(through_a_file(model.state()))

    assert torch.equal(rebuilt.eval()(inputs(spec)), model.eval()(inputs(spec)))
    assert rebuilt.reports() == model.reports()
    assert_same_tensors(rebuilt.state_dict(), model.state_dict())


def test_rebuilt_model_is_frozen_where_the_stored_one_was() -> None:
    model = planted(Topology.CNN, Stage.HOLDING)
    granted(model.slot("r0c1").schedule_prune(Ramp(num_steps=3), CAUSE))
    rebuilt = grown()

    rebuilt.load_state(model.state())

    seeds = [list(item.slot("r0c1").seed_parameters()) for item in (model, rebuilt)]
    assert [[parameter.requires_grad for parameter in seed] for seed in seeds] == [
        [False] * len(seeds[0])
    ] * 2


def test_loading_keeps_the_parameters_of_host_and_surviving_seeds() -> None:
    model = planted(Topology.CNN, Stage.HOLDING, all_slots=True)
    stored = copy.deepcopy(model.state())
    granted(model.slot("r0c0").prune(CAUSE))
    before = {name: id(parameter) for name, parameter in model.named_parameters()}

    model.load_state(stored)

    after = {name: id(parameter) for name, parameter in model.named_parameters()}
    assert before.items() <= after.items()
    assert len(after) > len(before)


def test_loading_an_empty_slot_clears_a_live_seed() -> None:
    stored = grown().state()
    model = planted(Topology.CNN, Stage.HOLDING)

    model.load_state(stored)

    assert model.reports() == {}
    assert list(model.parameters()) == list(model.host.parameters())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"version": 0}, "stored in version 0, this is 2"),
        ({"seeds": {"r9c9": None}}, "stored with slots .'r9c9'., this one has"),
        ({"seeds": {"r0c1": {"stage": 5}}}, "a stored seed cannot be read"),
    ],
)
def test_damaged_state_is_refused_and_changes_nothing(damage: dict[str, Any], message: str) -> None:
    model = grown(slot_ids=("r0c1",))
    plant(model.slot("r0c1"), Stage.TRAINING)
    stored = model.state()
    if damage.get("seeds", {}).get("r0c1"):
        damage = {"seeds": {"r0c1": stored["seeds"]["r0c1"] | damage["seeds"]["r0c1"]}}
    before = model.reports()

    with pytest.raises(ContractError, match=message):
        model.load_state(stored | damage)

    assert model.reports() == before


@pytest.mark.parametrize("damage", ["missing", "extra", "shape"])
def test_weights_that_do_not_fit_are_refused_before_anything_changes(damage: str) -> None:
    stored = planted(Topology.CNN, Stage.HOLDING).state()
    weights = dict(stored["weights"])
    name = next(key for key in weights if key.startswith("slots."))
    match damage:
        case "missing":
            del weights[name]
        case "extra":
            weights["slots.r0c0.seed.more"] = torch.zeros(1)
        case _:
            weights[name] = torch.zeros(1, 2, 3)
    model = grown(seed=5)
    before = copy.deepcopy(model.state_dict())

    with pytest.raises(ContractError, match="stored weights do not match this model: slots"):
        model.load_state(stored | {"weights": weights})

    assert_same_tensors(model.state_dict(), before)
    assert model.reports() == {}


# --- Operations and counts -----------------------------------------------------------------------


def test_whole_life_through_the_model() -> None:
    model = grown()
    granted(model.germinate("r0c0", REQUEST, generator()))
    granted(model.slot("r0c0").advance())
    assert not model.slot("r0c0").advance().succeeded

    granted(model.slot("r0c0").prune(CAUSE))
    for _ in range(7):
        model.tick()

    assert model.reports() == {}
    granted(model.germinate("r0c0", REQUEST, generator()))


def test_unknown_slot_is_refused_by_name() -> None:
    with pytest.raises(UnknownNameError, match="unknown slot 'r7c7'"):
        grown().slot("r7c7")


def test_counts_are_those_of_seeds_fossils_and_parameters() -> None:
    model = grown()
    host_params = sum(parameter.numel() for parameter in model.host.parameters())
    for slot_id, stage in (
        ("r0c0", Stage.GERMINATED),
        ("r0c1", Stage.FOSSILIZED),
        ("r0c2", Stage.EMBARGOED),
    ):
        plant(model.slot(slot_id), stage, style=Style.GATED_GATE)

    assert model.num_fossils == 1
    assert model.num_host_params == host_params
    assert model.num_seed_params == sum(p.numel() for p in model.parameters()) - host_params
    assert {slot_id: report.stage for slot_id, report in model.reports().items()} == {
        "r0c0": Stage.GERMINATED,
        "r0c1": Stage.FOSSILIZED,
        "r0c2": Stage.EMBARGOED,
    }


def test_reports_sum_the_alphas_before_and_after_in_execution_order() -> None:
    model = grown()
    for slot_id, stage in (("r0c0", Stage.HOLDING), ("r1c0", Stage.BLENDING)):
        plant(model.slot(slot_id), stage)
    plant(model.slot("r0c1"), Stage.TRAINING)

    sums = {
        slot_id: (report.upstream_alpha_sum, report.downstream_alpha_sum)
        for slot_id, report in model.reports().items()
    }

    assert model.slot_config.execution_order[:3] == ("r0c0", "r1c0", "r0c1")
    assert sums == {"r0c0": (0.0, 0.5), "r0c1": (1.5, 0.0), "r1c0": (1.0, 0.0)}


def test_listener_that_raises_does_not_stop_the_other_slots_clocks() -> None:
    model = grown()
    for slot in model.all_slots():
        plant(slot, Stage.PRUNED)

    def refuse(_payload: Payload) -> None:
        raise RuntimeError("no listener")

    model.set_emit(refuse)
    with pytest.raises(RuntimeError, match="no listener"):
        model.tick()

    assert {stage_of(slot.state) for slot in model.all_slots()} == {Stage.EMBARGOED}


def test_slots_emit_to_the_callback_of_the_model() -> None:
    model, reported = grown(), list[Payload]()
    model.set_emit(reported.append)

    plant(model.slot("r0c1"))

    assert reported


def test_slot_that_the_host_does_not_have_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="r9c9"):
        grown(slot_ids=("r9c9",))


def test_model_with_some_slots_equals_its_host() -> None:
    model = grown(slot_ids=("r1c1", "r0c0")).eval()

    assert isinstance(SPECS[Topology.CNN], CnnHostSpec)
    assert torch.equal(model(inputs()), model.host(inputs()))


# --- Walk ----------------------------------------------------------------------------------------


def test_random_transitions_with_real_modules_leak_nothing() -> None:
    walk = BodyWalk(random.Random(4))

    walk.run(600)

    assert walk.num_changes >= 600
