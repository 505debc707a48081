"""Networks that are built whole, and what training costs."""

from pathlib import Path

import msgspec
import pytest
import torch
from tests.builders.messages import topology_slot
from tests.builders.tiny_runs import tiny_job
from torch import nn
from torch.nn.modules.module import _global_forward_pre_hooks

from esper.kasmina.model import MorphogeneticModel
from esper.kasmina.seed import PruneCause, Ramp
from esper.kasmina.trial import SHARES
from esper.leyline.actions import BLUEPRINTS_BY_TOPOLOGY, Blueprint, Style, Topology
from esper.leyline.alpha import AlphaState
from esper.leyline.errors import UsageError
from esper.leyline.payloads import TopologyManifestRecorded
from esper.leyline.stages import Stage
from esper.runtime.batches import Batch
from esper.simic.evaluation import flops
from esper.simic.evaluation.flops import FlopMeter
from esper.simic.telemetry.emitters import topology_manifest
from esper.simic.training.assembly.parts import RunParts
from esper.simic.training.assembly.run_setup import prepare_run
from esper.simic.training.assembly.worker_assembly import build_work
from esper.simic.training.batch_ops import backpropagate
from esper.simic.training.env_factory import build_model
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.static_work import PlantedSeed, StaticWork, plant, seeds_in
from esper.tolaria.stopping import StopFlag

SLOT = "r0c0"


@pytest.fixture
def work(tmp_path: Path) -> TrainingWork:
    return build_work(
        prepare_run(tiny_job(tmp_path), "wait", None, StopFlag(), parts=RunParts()).worker
    )


def planted(stage: Stage, **changes: object) -> PlantedSeed:
    seed = PlantedSeed(SLOT, Blueprint.CONV_SMALL, Style.SIGMOID_ADD, 0.7, stage)
    return seed._replace(**changes)


def recorded(*stages: Stage, **changes: object) -> TopologyManifestRecorded:
    """A network with one seed in each of these stages."""
    row = topology_slot(SLOT, blueprint="conv_small", alpha=0.7, alpha_target=0.7, num_params=10)
    rows = tuple(msgspec.structs.replace(row, stage=stage.name, **changes) for stage in stages)
    return TopologyManifestRecorded(host_params=100, total_params=100 + 10 * len(rows), slots=rows)


def meter_of(work: TrainingWork, num_samples: int = 2) -> FlopMeter:
    inputs = torch.zeros(num_samples, 1, 8, 8)
    targets = torch.zeros(num_samples, dtype=torch.long)
    return FlopMeter(context=work.context, sample=Batch(inputs, targets))


def static_work(work: TrainingWork) -> StaticWork:
    return StaticWork.of(work, {0: recorded(Stage.HOLDING)})


@pytest.mark.parametrize("style", list(Style))
@pytest.mark.parametrize("blueprint", BLUEPRINTS_BY_TOPOLOGY[Topology.CNN])
def test_planted_seed_is_recorded_as_what_was_asked_for(
    work: TrainingWork, blueprint: Blueprint, style: Style
) -> None:
    model = build_model(work.context, 0, 0)
    wanted = planted(Stage.FOSSILIZED, blueprint=blueprint, style=style, alpha=0.5)

    plant(model, wanted, torch.Generator().manual_seed(1))

    manifest = topology_manifest(model.num_host_params, tuple(model.reports().values()))
    assert seeds_in(manifest) == (wanted,)
    assert manifest.total_params == model.num_host_params + model.num_seed_params
    (row,) = manifest.slots
    assert (row.germinated_at_step, row.kept_at_step) == (0, 0)


def test_only_seeds_that_change_the_output_are_built_again() -> None:
    every = [stage for stage in Stage if stage >= Stage.GERMINATED]

    assert [seed.stage for seed in seeds_in(recorded(*every))] == [
        Stage.BLENDING,
        Stage.HOLDING,
        Stage.FOSSILIZED,
    ]
    assert seeds_in(recorded(*every, alpha=0.0)) == ()


@pytest.mark.parametrize("field", ["style", "stage"])
def test_recorded_name_that_is_not_known_is_refused(field: str) -> None:
    (row,) = recorded(Stage.HOLDING).slots
    odd = msgspec.structs.replace(row, **{field: "ODD"})
    manifest = TopologyManifestRecorded(host_params=100, total_params=110, slots=(odd,))

    with pytest.raises(UsageError, match=rf"'{SLOT}'.*'ODD' is unknown"):
        seeds_in(manifest)


def test_static_env_has_the_host_of_every_other_arm_and_learns_in_its_seed(
    work: TrainingWork,
) -> None:
    plain, static = work.build(0, 0), static_work(work).build(0, 0)

    ours = dict(static.model.host.named_parameters())
    assert all(
        torch.equal(value, ours[name]) for name, value in plain.model.host.named_parameters()
    )
    assert static.model.num_fossils == 1
    (report,) = static.reports
    assert (report.blueprint, report.style) == (Blueprint.CONV_SMALL, Style.SIGMOID_ADD)
    assert report.alpha.alpha == 0.7
    assert static.outbox == []
    static_work(work).begin_train(static, 0)
    assert len(static.seed_optimizers) == 1


def test_env_without_a_topology_is_the_host_alone(work: TrainingWork) -> None:
    assert static_work(work).build(0, 1).model.num_fossils == 0


def test_cost_of_a_bare_host_is_that_of_its_convolutions_and_products(work: TrainingWork) -> None:
    model = build_model(work.context, 0, 0)
    expected, size = 0, 8
    for module in model.host.modules():
        if isinstance(module, nn.Conv2d):
            weights = module.weight.numel()
            # Forward, gradient of the weights, and of the inputs unless they are the data.
            passes = 2 if module.in_channels == 1 else 3
            expected += passes * 2 * weights * size * size
            size //= 2
        if isinstance(module, nn.Linear):
            expected += 3 * 2 * module.weight.numel()

    assert meter_of(work).per_target(()) == (expected, 0)


def test_cost_per_target_does_not_depend_on_the_sample(work: TrainingWork) -> None:
    assert meter_of(work, 2).per_target(()) == meter_of(work, 6).per_target(())


def reported(work: TrainingWork, stage: Stage) -> MorphogeneticModel:
    model = build_model(work.context, 0, 0)
    plant(model, planted(stage), torch.Generator().manual_seed(1))
    return model


def test_cost_of_a_seed_is_that_of_what_is_computed_in_its_stage(work: TrainingWork) -> None:
    # The seed is one 1x1 convolution after the first block, where images have 8x8 pixels.
    meter, bare = meter_of(work), meter_of(work).per_target(()).train
    channels = reported(work, Stage.HOLDING).slot(SLOT).channels
    seed = 2 * channels**2 * 8 * 8
    blocks = list(build_model(work.context, 0, 0).host.modules())
    later = [module.weight.numel() for module in blocks if isinstance(module, nn.Conv2d)][1:]
    rest = sum(2 * size * (8 >> depth) ** 2 for depth, size in enumerate(later, start=1))
    rest += sum(2 * module.weight.numel() for module in blocks if isinstance(module, nn.Linear))

    def added(model: MorphogeneticModel) -> float:
        return meter.per_target(tuple(model.reports().values())).train - bare

    # Blended: forward, and the gradients of weights and inputs.
    assert added(reported(work, Stage.HOLDING)) == 3 * seed
    assert added(reported(work, Stage.FOSSILIZED)) == 3 * seed
    # In isolation: forward and gradient of the weights; through the rest of the host, forward and
    # gradient of the inputs.
    for stage in (Stage.GERMINATED, Stage.TRAINING):
        assert added(reported(work, stage)) == 2 * seed + 2 * rest
    before_its_ramp = reported(work, Stage.BLENDING)
    state = before_its_ramp.slot(SLOT).occupant()
    before_its_ramp.slot(SLOT).state = msgspec.structs.replace(state, alpha=AlphaState())
    assert added(before_its_ramp) == 2 * seed + 2 * rest
    # On its way out: no gradient of the weights.
    leaving = reported(work, Stage.HOLDING)
    leaving.slot(SLOT).schedule_prune(Ramp(num_steps=3), PruneCause())
    assert added(leaving) == 2 * seed


def test_cost_of_a_trial_is_a_forward_pass_of_the_host_and_one_of_the_rest_for_each_share(
    work: TrainingWork,
) -> None:
    def cost(stage: Stage) -> float:
        return meter_of(work).per_target(tuple(reported(work, stage).reports().values())).trial

    model = build_model(work.context, 0, 0)
    size, host = 8, []
    for module in model.host.modules():
        if isinstance(module, nn.Conv2d):
            host.append(2 * module.weight.numel() * size * size)
            size //= 2
        if isinstance(module, nn.Linear):
            host.append(2 * module.weight.numel())
    seed = 2 * model.slot(SLOT).channels ** 2 * 8 * 8

    assert cost(Stage.TRAINING) == sum(host) + len(SHARES) * (seed + sum(host[1:]))
    assert cost(Stage.HOLDING) == 0


def test_counting_puts_no_hook_where_other_threads_would_run_into_it(
    work: TrainingWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def looking(model: MorphogeneticModel, batch: Batch) -> object:
        seen.append(len(_global_forward_pre_hooks))
        return backpropagate(model, batch)

    monkeypatch.setattr(flops, "backpropagate", looking)

    assert meter_of(work).per_target([]).train > 0
    assert seen == [0, 0]  # once before counting begins


def test_alpha_changes_no_cost(work: TrainingWork) -> None:
    meter = meter_of(work)
    costs = set()
    for alpha in (0.5, 1.0):
        model = build_model(work.context, 0, 0)
        plant(model, planted(Stage.HOLDING, alpha=alpha), torch.Generator().manual_seed(1))
        costs.add(meter.per_target(tuple(model.reports().values())))

    assert len(costs) == 1
