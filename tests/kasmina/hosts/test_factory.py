"""The hosts of the shipped tasks: size by closed form, slots, and where their values come from."""

import pytest
import torch
from tests.kasmina.hosts.specs import SMALL_HOSTS, batch
from tests.kasmina.tools import generator, has_same_state, num_params, unchanged_global_rng

from esper.kasmina.hosts import build_host
from esper.leyline.errors import ContractError
from esper.leyline.probes import ProbeHostSpec
from esper.leyline.tasks import (
    TASKS,
    CnnHostSpec,
    HostSpec,
    ModuleHostSpec,
    TaskSpec,
    TransformerHostSpec,
)

PROBES = {name: task for name, task in TASKS.items() if isinstance(task.host, ProbeHostSpec)}
NETWORKS = {name: task for name, task in TASKS.items() if name not in PROBES}

tasks = pytest.mark.parametrize("task", NETWORKS.values(), ids=NETWORKS)
probes = pytest.mark.parametrize("task", PROBES.values(), ids=PROBES)
hosts = pytest.mark.parametrize("spec", SMALL_HOSTS.values(), ids=SMALL_HOSTS)

KNOWN_SIZES = {
    "cifar_baseline": 6_418,
    "cifar_multichannel": 6_418,
    "cifar_scale": 99_922,
    "cifar_deep_multichannel": 99_922,
    "cifar_impaired": 77,
    "cifar_minimal": 164,
    "cifar_postpool": 24_346,
    "cifar_highres": 24_346,
    "cifar_deep_impaired": 1_140,
    "tinystories": 10_844_160,
    "cifar_resnet20": 269_722,
    "digits_vit": 26_698,
}


def resnet_size() -> int:
    """Count a stem, 18 convolutions with norms (two per block, three blocks per width), a head."""
    widths = (16, 32, 64)
    pairs = [(3, 16), *((w, w) for w in widths for _ in range(5)), (16, 16), (16, 32), (32, 64)]
    return sum(9 * i * o + 2 * o for i, o in pairs) + 65 * 10


def vit_size(d: int = 32, depth: int = 3) -> int:
    """Count the patches with positions, the blocks with an MLP of twice the width, and the head."""
    return (4 + 1 + 16) * d + depth * (8 * d**2 + 11 * d) + 2 * d + (d + 1) * 10


FOREIGN_SIZES = {"resnet20": resnet_size(), "digits_vit": vit_size()}


def closed_form(spec: HostSpec) -> int:
    if isinstance(spec, CnnHostSpec):
        outputs = [spec.base_channels * 2**index for index in range(spec.num_blocks)]
        inputs = [spec.in_channels, *outputs[:-1]]
        blocks = zip(inputs, outputs, strict=True)
        convolutions = sum(spec.kernel_size**2 * i * o + 2 * o for i, o in blocks)
        return convolutions + (outputs[-1] + 1) * spec.num_classes
    if isinstance(spec, ModuleHostSpec):
        return FOREIGN_SIZES[spec.factory.partition(":")[2]]
    assert isinstance(spec, TransformerHostSpec)
    d = spec.embed_dim
    return (spec.vocab_size + spec.block_size + 2) * d + spec.num_layers * (12 * d**2 + 13 * d)


@tasks
def test_hosts_have_the_size_of_the_closed_form(task: TaskSpec) -> None:
    size = num_params(build_host(task.host, generator()))
    assert size == closed_form(task.host)
    assert size == KNOWN_SIZES.get(task.name, size)


@tasks
def test_hosts_offer_the_slots_their_spec_names(task: TaskSpec) -> None:
    host = build_host(task.host, generator())
    assert tuple(spec.slot_id for spec in host.injection_specs()) == task.host.slot_ids


@probes
def test_probe_has_no_network_to_build(task: TaskSpec) -> None:
    with pytest.raises(ContractError, match="a probe has no network"):
        build_host(task.host, generator())


def test_every_known_size_is_that_of_a_task_with_a_network() -> None:
    assert KNOWN_SIZES.keys() <= NETWORKS.keys()


@hosts
def test_hosts_are_drawn_from_their_generator_alone(spec: HostSpec) -> None:
    with unchanged_global_rng():
        first, second, other = (build_host(spec, generator(seed)) for seed in (0, 0, 1))
    assert has_same_state(first, second)
    assert not has_same_state(first, other)


@hosts
def test_logits_at_birth_are_finite_and_small(spec: HostSpec) -> None:
    logits = build_host(spec, generator()).eval()(batch(spec))
    assert logits.shape[-1] == spec.num_classes
    assert logits.abs().max() < 10
    assert torch.isfinite(logits).all()
