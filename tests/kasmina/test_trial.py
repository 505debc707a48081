"""A seed in isolation is tried after each pass, and keeps what helps."""

import copy
from typing import cast

import pytest
import torch
from tests.kasmina.bodies import BLUEPRINT, SPECS, batch, disturb, features, generator, grown, plant
from tests.kasmina.tools import has_same_bits, has_same_state
from torch.nn import functional

from esper.kasmina.hosts import SegmentedHost
from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.slot import NO_MODULES, SeedSlot
from esper.kasmina.trial import SHARES, keep_what_helps
from esper.leyline.actions import Style, Topology
from esper.leyline.stages import Stage
from esper.runtime.batches import Batch
from esper.simic.training.batch_ops import backpropagate, try_seeds

HARMFUL = {Topology.CNN: 1, Topology.TRANSFORMER: 3}
"""Random directions in which a seed raises the loss, with every style."""


def learned(topology: Topology, style: Style = Style.LINEAR_ADD) -> MorphogeneticModel:
    """Return a network with a blended seed, and one in isolation that learned to do harm."""
    model = grown(SPECS[topology])
    slots = list(model.all_slots())
    plant(slots[0], Stage.TRAINING, blueprint=BLUEPRINT[topology], style=style)
    plant(slots[1], Stage.HOLDING, blueprint=BLUEPRINT[topology])
    disturb(slots[0], seed=HARMFUL[topology])
    disturb(slots[1])
    return model


def first(model: MorphogeneticModel) -> SeedSlot:
    return next(model.all_slots())


@torch.no_grad()
def losses_of(model: MorphogeneticModel, given: Batch) -> tuple[float, float]:
    """Return the network's loss, and its loss with the seed in isolation fully on."""
    logits, (incubation,) = model.forward_and_features(given.inputs)
    targets = given.targets.flatten()
    own, found = (
        functional.cross_entropy(output.flatten(0, -2), targets).item()
        for output in (logits, model.forward_switched_on(incubation))
    )
    return own, found


def keep_best_of(slot: SeedSlot, losses: tuple[float, ...], own: float) -> list[torch.Tensor]:
    """Let a seed keep what helps; the losses are those of the shares, the largest share first."""
    coming = iter(losses)
    keep_what_helps(slot, torch.tensor(own), lambda: torch.tensor(next(coming)))
    return slot.weights()


@pytest.mark.parametrize("index", range(len(SHARES) + 1))
@pytest.mark.parametrize("style", [Style.LINEAR_ADD, Style.GATED_GATE])
def test_weights_are_between_birth_and_what_was_learned_where_the_loss_is_lowest(
    index: int, style: Style
) -> None:
    slot = first(grown(SPECS[Topology.CNN]))
    plant(slot, Stage.TRAINING, blueprint=BLUEPRINT[Topology.CNN], style=style)
    birth = slot.weights()
    disturb(slot)
    end = slot.weights()
    losses = [1.0] * (len(SHARES) + 1)
    losses[index] = 0.5

    found = keep_best_of(slot, tuple(losses[:-1]), losses[-1])

    share = (*SHARES, 0.0)[index]
    for value, start, stop in zip(found, birth, end, strict=True):
        assert torch.allclose(value, start + share * (stop - start), atol=1e-6)
        # What is kept whole or given up whole is so to the last bit.
        if share in (0.0, 1.0):
            assert has_same_bits(value, stop if share else start)


def test_broken_seed_stays_as_it_is() -> None:
    slot = first(learned(Topology.CNN))
    for parameter in slot.seed_parameters():
        parameter.data.fill_(torch.nan)

    found = keep_best_of(slot, (torch.nan,) * len(SHARES), 1.0)

    assert all(value.isnan().all() for value in found)


@pytest.mark.parametrize("topology", Topology)
@pytest.mark.parametrize("style", Style)
def test_seed_that_harms_does_so_no_more_and_nothing_else_changes(
    topology: Topology, style: Style
) -> None:
    model = learned(topology, style)
    before = copy.deepcopy(model)
    given = batch(topology, 1)

    own, found = losses_of(before.eval(), given)
    assert found > own

    assert try_seeds(model, [given, given]) == 2 * given.targets.numel()

    assert has_same_state(model.host, before.host)
    assert not has_same_state(first(model), first(before))
    for slot, other in list(zip(model.all_slots(), before.all_slots(), strict=True))[1:]:
        assert has_same_state(slot, other)
    own, found = losses_of(model, given)
    assert found <= own * (1 + 1e-5)


def test_network_without_a_seed_in_isolation_is_not_tried() -> None:
    model = grown(SPECS[Topology.CNN])
    plant(first(model), Stage.HOLDING)

    assert try_seeds(model, [batch(Topology.CNN, 1)]) == 0


@pytest.mark.parametrize("topology", Topology)
def test_seed_that_fits_itself_to_its_first_batch_goes_back_to_the_fitted_weights(
    topology: Topology,
) -> None:
    model = grown(SPECS[topology])
    cast(SegmentedHost, model.host).set_dropout_generator(generator())
    slot = first(model)
    plant(slot, Stage.TRAINING, blueprint="grad_max")
    born = slot.weights()
    backpropagate(model.train(), batch(topology, 1))
    fitted = slot.weights()
    assert not all(map(has_same_bits, born, fitted))
    disturb(slot)
    backpropagate(model, batch(topology, 2))

    found = keep_best_of(slot, (1.0,) * len(SHARES), 0.5)

    assert all(map(has_same_bits, found, fitted))


def test_weights_at_birth_survive_a_restored_state() -> None:
    slot = first(grown(SPECS[Topology.CNN]))
    plant(slot, Stage.TRAINING, blueprint=BLUEPRINT[Topology.CNN])
    birth = slot.weights()
    disturb(slot)
    state = slot.occupant()
    slot.restore(state, slot.modules_for(state))

    found = keep_best_of(slot, (1.0,) * len(SHARES), 0.5)

    assert all(map(has_same_bits, found, birth))


def test_seed_that_is_put_back_in_place_of_a_newborn_has_a_birth_of_its_own() -> None:
    slot = first(grown(SPECS[Topology.CNN]))
    plant(slot, Stage.TRAINING, blueprint=BLUEPRINT[Topology.CNN])
    state = slot.occupant()
    slot.restore(None, NO_MODULES)
    plant(slot, Stage.GERMINATED, blueprint=BLUEPRINT[Topology.CNN], seed_id="another")
    slot.restore(state, slot.modules_for(state))
    disturb(slot)  # as the weights that are loaded next
    slot.record_birth()

    keep_best_of(slot, (1.0,) * len(SHARES), 0.5)

    h = features(channels=slot.channels)
    assert torch.equal(slot.switched_on(h), h)
