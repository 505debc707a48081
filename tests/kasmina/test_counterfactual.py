"""Shared prefixes: each ablation's logits are its own, and nothing shared runs twice."""

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kasmina.bodies import BLUEPRINT, EAGER, SPECS, disturb, generator, grown, inputs, plant
from tests.kasmina.seeds import CAUSE, OCCUPIED_STAGES
from torch import nn

from esper.kasmina.counterfactual import (
    NOTHING_OFF,
    PrefixCounts,
    PrefixWalk,
    full_factorial,
)
from esper.kasmina.hosts import SegmentedHost, build_host
from esper.kasmina.hosts.statistics import batch_norms
from esper.kasmina.lifecycle import stage_of
from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.slot import NO_MODULES
from esper.leyline.actions import BLUEPRINTS_BY_TOPOLOGY, Style, Topology
from esper.leyline.attribution import Ablation
from esper.leyline.errors import UnknownNameError
from esper.leyline.stages import Stage
from esper.leyline.tasks import CnnHostSpec, HostSpec, TransformerHostSpec


@dataclass(eq=False)
class WatchedHost:
    """A host whose segments are counted from outside."""

    inner: Any
    num_calls: int = 0

    def forward(self, x: torch.Tensor) -> Any:
        self.num_calls += 1
        return self.inner.forward(x)

    def forward_to_segment(self, *args: Any) -> Any:
        self.num_calls += 1
        return self.inner.forward_to_segment(*args)

    def forward_from_segment(self, *args: Any) -> Any:
        self.num_calls += 1
        return self.inner.forward_from_segment(*args)


def random_spec(rng: random.Random) -> HostSpec:
    if rng.random() < 0.3:
        segments = rng.choice((1, 2, 3))
        return TransformerHostSpec(
            block_size=5,
            num_layers=segments * rng.choice((1, 2)),
            num_heads=2,
            embed_dim=8,
            num_segments=segments,
            vocab_size=7,
        )
    num_blocks = rng.choice((2, 3))
    return CnnHostSpec(
        in_channels=rng.choice((1, 3)),
        image_size=8,
        num_classes=3,
        base_channels=rng.choice((1, 4)),
        num_blocks=num_blocks,
        kernel_size=rng.choice((1, 3)),
        num_pools=rng.randint(0, num_blocks),
    )


def random_model(rng: random.Random, spec: HostSpec) -> MorphogeneticModel:
    """Return a model with seeds of all kinds, in all stages, in some of its slots."""
    num_slots = rng.randint(1, len(spec.slot_ids))
    slot_ids = rng.sample(spec.slot_ids, num_slots)
    host = build_host(spec, generator(rng.randrange(1000)))
    model = MorphogeneticModel(host, slot_ids, EAGER)
    for slot in model.all_slots():
        if rng.random() < 0.8:
            stage = rng.choice((*OCCUPIED_STAGES, Stage.BLENDING, Stage.HOLDING))
            blueprint = rng.choice(BLUEPRINTS_BY_TOPOLOGY[spec.topology])
            plant(slot, stage, blueprint=blueprint, style=rng.choice(tuple(Style)))
            disturb(slot)
    return model.eval()


def random_ablations(rng: random.Random, slot_ids: tuple[str, ...]) -> list[Ablation]:
    return [
        Ablation(frozenset(slot_id for slot_id in slot_ids if rng.random() < 0.5))
        for _ in range(rng.randint(1, 6))
    ]


def prefix_counts(blended: Sequence[str], ablations: Sequence[Ablation]) -> PrefixCounts:
    """Return the fewest evaluations that suffice; `blended` is in execution order.

    The host segment after a seed runs once per distinct on/off pattern of the seeds up to it. A
    seed runs once per distinct pattern of the seeds before it in which it is on.
    """
    choices = [[slot in ablation.off for slot in blended] for ablation in ablations]
    prefixes = [{tuple(choice[:depth]) for choice in choices} for depth in range(len(blended) + 1)]
    num_seeds = sum(not prefix[-1] for level in prefixes[1:] for prefix in level)
    return PrefixCounts(sum(map(len, prefixes)), num_seeds)


def without(model: MorphogeneticModel, ablation: Ablation) -> MorphogeneticModel:
    """Return a copy that never had the ablated seeds; the norms behind them know the batch only."""
    bare = copy.deepcopy(model)
    off = [slot_id for slot_id in bare.blended_slots() if slot_id in ablation.off]
    for slot_id in ablation.off:
        bare.slot(slot_id).restore(None, NO_MODULES)
    if off and isinstance(bare.host, SegmentedHost):
        order = bare.host.execution_order()
        for stage in bare.host.stages[order.index(off[0]) + 1 :]:
            for norm in stage.modules():
                if isinstance(norm, nn.BatchNorm2d):
                    norm.running_mean = norm.running_var = None
    return bare


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_every_ablation_equals_its_plain_forward_bit_for_bit(seed: int) -> None:
    rng = random.Random(seed)
    spec = random_spec(rng)
    model = random_model(rng, spec)
    ablations = random_ablations(rng, model.slot_config.slot_ids)
    x = inputs(spec, num_samples=3)

    with torch.inference_mode():
        output = model.fused_forward(x, ablations)
        for ablation, logits in zip(ablations, output.logits, strict=True):
            assert torch.equal(logits, model(x, ablation))
            assert torch.equal(logits, without(model, ablation)(x))
    assert output.evaluated == prefix_counts(model.blended_slots(), ablations)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_counted_evaluations_are_the_calls_that_were_made(seed: int) -> None:
    rng = random.Random(seed)
    spec = random_spec(rng)
    model = random_model(rng, spec)
    ablations = random_ablations(rng, model.slot_config.slot_ids)
    host, seed_calls = WatchedHost(model.host), list[None]()
    for slot in model.all_slots():
        if slot.seed is not None:
            slot.seed.register_forward_hook(lambda *_: seed_calls.append(None))
    blended = [model.slot(slot_id) for slot_id in model.blended_slots()]

    with torch.inference_mode():
        walk = PrefixWalk(host, blended, ablations)  # type: ignore[arg-type]
        evaluated = walk.run(inputs(spec, num_samples=2)).evaluated

    assert evaluated == PrefixCounts(host.num_calls, len(seed_calls))


@pytest.mark.parametrize("num_seeds", [0, 1, 2, 3])
def test_full_factorial_runs_each_part_once_per_choice_before_it(num_seeds: int) -> None:
    model = grown(slot_ids=("r0c0", "r0c1", "r0c2")).eval()
    for slot in list(model.all_slots())[:num_seeds]:
        plant(slot, Stage.HOLDING)

    with torch.inference_mode():
        output = model.fused_forward(inputs(), full_factorial(model.blended_slots()))

    assert len(output.logits) == 2**num_seeds
    assert output.evaluated == PrefixCounts(2 ** (num_seeds + 1) - 1, 2**num_seeds - 1)


def test_full_factorial_lists_every_subset_once() -> None:
    ablations = full_factorial(("a", "b", "c"))

    assert ablations[0] == NOTHING_OFF
    assert ablations[5] == Ablation(frozenset({"a", "c"}))
    assert len(set(ablations)) == 8


def test_equal_ablations_share_one_evaluation() -> None:
    model = grown().eval()
    plant(model.slot("r0c0"), Stage.HOLDING)

    output = model.fused_forward(inputs(), [NOTHING_OFF] * 3)

    assert output.logits[0] is output.logits[2]
    assert output.evaluated.num_seeds == 1


def test_switching_off_what_is_not_blended_branches_nothing() -> None:
    model = grown().eval()
    plant(model.slot("r0c0"), Stage.TRAINING)
    assert stage_of(model.slot("r0c1").state) is Stage.DORMANT

    output = model.fused_forward(inputs(), [NOTHING_OFF, Ablation(frozenset({"r0c0", "r0c1"}))])

    assert output.logits[0] is output.logits[1]


def test_no_ablation_runs_nothing() -> None:
    output = grown().fused_forward(inputs(), [])

    assert (output.logits, output.evaluated) == ((), PrefixCounts(0, 0))


def test_unknown_slot_in_an_ablation_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="r7c7"):
        grown().fused_forward(inputs(), [Ablation(frozenset({"r7c7"}))])


@pytest.mark.parametrize("topology", Topology)
def test_first_ablation_of_a_partial_alpha_is_the_plain_forward(topology: Topology) -> None:
    spec = SPECS[topology]
    model = grown(spec).eval()
    for slot in model.all_slots():
        plant(slot, Stage.BLENDING, blueprint=BLUEPRINT[topology])
        disturb(slot)

    output = model.fused_forward(inputs(spec), full_factorial(model.blended_slots()))

    assert torch.equal(output.logits[0], model(inputs(spec)))
    assert not torch.equal(output.logits[0], output.logits[-1])
    bare = without(model, full_factorial(model.blended_slots())[-1])
    assert torch.equal(output.logits[-1], bare(inputs(spec)))


def test_ablating_leaves_no_trace_in_the_host() -> None:
    model = grown().eval()
    plant(model.slot("r0c0"), Stage.HOLDING)
    disturb(model.slot("r0c0"))
    before = copy.deepcopy(model.host.state_dict())

    with torch.inference_mode():
        model.fused_forward(inputs(), full_factorial(("r0c0",)))

    after = model.host.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert not any(module.training for module in model.modules())
    assert all(norm.track_running_stats for norm in batch_norms(model.host))


def test_one_sample_is_ablated_with_running_statistics() -> None:
    model = grown().eval()
    plant(model.slot("r0c0"), Stage.HOLDING)
    disturb(model.slot("r0c0"))
    x = inputs(num_samples=1)

    assert torch.equal(model(x, Ablation(frozenset({"r0c0"}))), model.host(x))


def test_ablating_a_seed_behind_the_last_norm_equals_pruning_it() -> None:
    model = grown().eval()
    plant(model.slot("r0c2"), Stage.HOLDING, style=Style.GATED_GATE)
    disturb(model.slot("r0c2"))

    ablated = model(inputs(), Ablation(frozenset({"r0c2"})))
    model.slot("r0c2").prune(CAUSE)

    assert torch.equal(ablated, model(inputs()))
