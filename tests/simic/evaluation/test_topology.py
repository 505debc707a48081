"""Networks that are built whole, and what training costs."""

from pathlib import Path

import pytest
import torch
from tests.simic.training.runs import tiny_job
from torch import nn
from torch.nn.modules.module import _global_forward_pre_hooks

from esper.leyline.actions import BLUEPRINTS_BY_TOPOLOGY, Blueprint, Style, Topology
from esper.leyline.alpha import AlphaAlgorithm
from esper.leyline.comparison import Sprout
from esper.leyline.stages import Stage
from esper.runtime.batches import Batch
from esper.simic.evaluation import topology
from esper.simic.evaluation.topology import FlopMeter, StaticWork, plant, topology_of
from esper.simic.training.batch_ops import loss_and_correct
from esper.simic.training.env_factory import build_model
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.vectorized import build_work, plan_job
from esper.tolaria.stopping import StopFlag

SLOT = "r0c0"


@pytest.fixture
def work(tmp_path: Path) -> TrainingWork:
    return build_work(plan_job(tiny_job(tmp_path), "wait", None, StopFlag()))


def sprout(blueprint: Blueprint = Blueprint.CONV_SMALL, alpha: float = 0.7) -> Sprout:
    return Sprout(slot_id=SLOT, blueprint=blueprint, algorithm=AlphaAlgorithm.ADD, alpha=alpha)


def meter_of(work: TrainingWork, num_samples: int = 2) -> FlopMeter:
    inputs = torch.zeros(num_samples, 1, 8, 8)
    targets = torch.zeros(num_samples, dtype=torch.long)
    return FlopMeter(context=work.context, sample=Batch(inputs, targets))


def static_work(work: TrainingWork, planted: Sprout) -> StaticWork:
    return StaticWork(
        context=work.context,
        rules=work.rules,
        action_rules=work.action_rules,
        masker=work.masker,
        validation=work.validation,
        topologies={0: (planted,)},
    )


@pytest.mark.parametrize("algorithm", list(AlphaAlgorithm))
@pytest.mark.parametrize("blueprint", BLUEPRINTS_BY_TOPOLOGY[Topology.CNN])
def test_planted_seed_is_the_topology_that_was_asked_for(
    work: TrainingWork, blueprint: Blueprint, algorithm: AlphaAlgorithm
) -> None:
    model = build_model(work.context, 0, 0)
    wanted = Sprout(slot_id=SLOT, blueprint=blueprint, algorithm=algorithm, alpha=0.5)

    plant(model, wanted, Stage.FOSSILIZED, torch.Generator().manual_seed(1))

    assert topology_of(model.reports().values()) == (wanted,)


@pytest.mark.parametrize("style", list(Style))
def test_style_of_a_sprout_mixes_as_the_seed_did(style: Style) -> None:
    wanted = Sprout(slot_id=SLOT, blueprint=Blueprint.NORM, algorithm=style.algorithm, alpha=1.0)
    assert wanted.style.algorithm is style.algorithm


def test_seed_that_only_trains_is_no_part_of_the_topology(work: TrainingWork) -> None:
    model = build_model(work.context, 0, 0)

    plant(model, sprout(), Stage.TRAINING, torch.Generator().manual_seed(1))

    assert topology_of(model.reports().values()) == ()


def test_static_env_has_the_host_of_every_other_arm_and_learns_in_its_seed(
    work: TrainingWork,
) -> None:
    plain, static = work.build(0, 0), static_work(work, sprout()).build(0, 0)

    ours = dict(static.model.host.named_parameters())
    assert all(
        torch.equal(value, ours[name]) for name, value in plain.model.host.named_parameters()
    )
    assert static.model.num_fossils == 1
    assert static.outbox == []
    static_work(work, sprout()).begin_train(static, 0)
    assert list(static.seed_optimizers.by_slot()) == [SLOT]


def test_env_without_a_topology_is_the_host_alone(work: TrainingWork) -> None:
    assert static_work(work, sprout()).build(0, 1).model.num_fossils == 0


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

    assert meter_of(work).per_target(()) == expected


def test_cost_per_target_does_not_depend_on_the_sample(work: TrainingWork) -> None:
    assert meter_of(work, 2).per_target(()) == meter_of(work, 6).per_target(())


def test_seed_adds_to_the_cost_and_less_so_while_it_is_isolated(work: TrainingWork) -> None:
    costs = {}
    for stage in (Stage.GERMINATED, Stage.TRAINING, Stage.HOLDING):
        model = build_model(work.context, 0, 0)
        plant(model, sprout(), stage, torch.Generator().manual_seed(1))
        costs[stage] = meter_of(work).per_target(tuple(model.reports().values()))

    assert costs[Stage.GERMINATED] == meter_of(work).per_target(())
    assert costs[Stage.GERMINATED] < costs[Stage.TRAINING] < costs[Stage.HOLDING]


def test_counting_puts_no_hook_where_other_threads_would_run_into_it(
    work: TrainingWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def looking(outputs: torch.Tensor, targets: torch.Tensor) -> object:
        seen.append(len(_global_forward_pre_hooks))
        return loss_and_correct(outputs, targets)

    monkeypatch.setattr(topology, "loss_and_correct", looking)

    assert meter_of(work).per_target([]) > 0
    assert seen == [0]


def test_alpha_changes_no_cost(work: TrainingWork) -> None:
    meter = meter_of(work)
    costs = set()
    for alpha in (0.5, 1.0):
        model = build_model(work.context, 0, 0)
        plant(model, sprout(alpha=alpha), Stage.HOLDING, torch.Generator().manual_seed(1))
        costs.add(meter.per_target(tuple(model.reports().values())))

    assert len(costs) == 1
