"""Every blueprint: its size, its birth as the identity, and a gradient to learn from."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from tests.kasmina.tools import (
    generator,
    has_same_bits,
    has_same_state,
    normal,
    num_params,
    unchanged_global_rng,
)
from torch import Tensor, nn

from esper.kasmina.blending import (
    GateNetwork,
    blend_add,
    blend_gate,
    blend_multiply,
)
from esper.kasmina.blueprints import OPTIONAL_SEEDS, SEEDS, blueprint_params, build_seed
from esper.leyline.actions import BLUEPRINTS_BY_TOPOLOGY, Blueprint, Topology
from esper.leyline.errors import InvalidValueError, UnknownNameError

CLASSES = {topology: {**SEEDS[topology], **OPTIONAL_SEEDS[topology]} for topology in Topology}
BUILDABLE = [(topology, blueprint) for topology in Topology for blueprint in CLASSES[topology]]
GROWING = [pair for pair in BUILDABLE if pair[1] != Blueprint.NOOP]


def name_of(value: object) -> str:
    return str(value)


buildable = pytest.mark.parametrize(("topology", "blueprint"), BUILDABLE, ids=name_of)
growing = pytest.mark.parametrize(("topology", "blueprint"), GROWING, ids=name_of)


def features(topology: Topology, channels: int, seed: int = 1) -> Tensor:
    """Return what a host hands to a slot: after a ReLU, or a residual stream."""
    if topology is Topology.CNN:
        x = normal(4, channels, 6, 6, seed=seed).relu()
        return x.contiguous(memory_format=torch.channels_last)
    return normal(4, 6, channels, seed=seed)


def channel_counts(topology: Topology) -> list[int]:
    # The smallest are those of hosts that are too small on purpose.
    return [1, 2, 4, 7, 8, 48] if topology is Topology.CNN else [4, 8, 32]


Style = Callable[[Tensor, Tensor, GateNetwork, float], Tensor]


def add(x: Tensor, s: Tensor, gate: GateNetwork, alpha: float) -> Tensor:
    return blend_add(x, s, torch.tensor(alpha))


def multiply(x: Tensor, s: Tensor, gate: GateNetwork, alpha: float) -> Tensor:
    return blend_multiply(x, s, x, torch.tensor(alpha))


def gated(x: Tensor, s: Tensor, gate: GateNetwork, alpha: float) -> Tensor:
    return blend_gate(x, s, gate(x), torch.tensor(alpha))


styles = pytest.mark.parametrize("style", [add, multiply, gated])


def gradient_norms(seed: nn.Module) -> list[float]:
    return [float(torch.linalg.vector_norm(part.grad.double())) for part in seed.parameters()]


def health(norms: list[float]) -> float:
    """Score gradients as the gate to BLENDING does."""
    num_vanishing = sum(norm < 1e-7 for norm in norms)
    num_exploding = sum(not norm <= 10.0 for norm in norms)
    return 1 - 0.5 * num_vanishing / len(norms) - 0.8 * num_exploding / len(norms)


def readings(
    topology: Topology, blueprint: str, channels: int, style: Style, alpha: float
) -> list[list[float]]:
    """Return the gradient norms of three SGD steps of a seed that learns a random target."""
    seed = build_seed(topology, blueprint, channels, generator())
    gate = GateNetwork(channels, topology, generator(5))
    optimizer = torch.optim.SGD(seed.parameters(), lr=0.01, momentum=0.9)
    x = features(topology, channels)
    target = x + normal(*x.shape, seed=9)
    norms = []
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.mse_loss(style(x, seed(x), gate, alpha), target).backward()
        norms.append(gradient_norms(seed))
        optimizer.step()
    return norms


def test_the_registry_holds_what_the_action_space_offers_and_the_placeholder() -> None:
    for topology, blueprints in BLUEPRINTS_BY_TOPOLOGY.items():
        assert set(SEEDS[topology]) == {Blueprint.NOOP, *blueprints}


@buildable
def test_every_blueprint_says_what_is_zero_at_birth(topology: Topology, blueprint: str) -> None:
    seed_class = CLASSES[topology][blueprint]
    assert seed_class.structure.startswith("x")
    assert seed_class.birth.endswith(".")
    assert seed_class.birth.count(".") == 1


@buildable
def test_the_closed_form_equals_the_built_seeds_size(topology: Topology, blueprint: str) -> None:
    counts = range(4, 132, 4) if topology is Topology.TRANSFORMER else range(1, 70)
    for channels in counts:
        seed = build_seed(topology, blueprint, channels, generator())
        assert num_params(seed) == blueprint_params(topology, blueprint, channels)


@pytest.mark.parametrize(
    ("topology", "channels", "sizes"),
    [
        (
            Topology.CNN,
            8,
            {
                "norm": 17,
                "attention": 40,
                "conv_small": 80,
                "depthwise": 152,
                "conv_light": 592,
                "bottleneck": 720,
                "conv_heavy": 1168,
            },
        ),
        (
            Topology.TRANSFORMER,
            384,
            {
                "norm": 769,
                "lora": 6_144,
                "lora_large": 24_576,
                "mlp_small": 590_976,
                "attention": 591_360,
                "flex_attention": 591_360,
                "mlp": 1_181_568,
            },
        ),
    ],
)
def test_known_sizes(topology: Topology, channels: int, sizes: dict[str, int]) -> None:
    assert sizes == {
        blueprint: blueprint_params(topology, blueprint, channels)
        for blueprint in BLUEPRINTS_BY_TOPOLOGY[topology]
    }


@buildable
@pytest.mark.parametrize("is_training", [True, False])
def test_a_seed_is_the_identity_at_birth(
    topology: Topology, blueprint: str, is_training: bool
) -> None:
    for channels in channel_counts(topology):
        seed = build_seed(topology, blueprint, channels, generator()).train(is_training)
        x = features(topology, channels)
        assert has_same_bits(seed(x), x), f"{channels} channels"


@growing
@styles
@pytest.mark.parametrize("alpha", [0.02, 1.0])
def test_a_seed_is_the_identity_at_birth_in_every_style(
    topology: Topology, blueprint: str, style: Style, alpha: float
) -> None:
    x = features(topology, 8)
    seed = build_seed(topology, blueprint, 8, generator())
    gate = GateNetwork(8, topology, generator())
    assert has_same_bits(style(x, seed(x), gate, alpha), x)


@growing
@styles
@pytest.mark.parametrize("alpha", [0.02, 1.0])
def test_a_seed_learns_from_birth_in_every_style(
    topology: Topology, blueprint: str, style: Style, alpha: float
) -> None:
    for channels in channel_counts(topology):
        birth, second, third = readings(topology, blueprint, channels, style, alpha)
        for norms in (birth, second, third):
            assert health(norms) >= 0.7, f"{channels} channels: {norms}"
        assert min(second) > 0, f"{channels} channels: {second}"


@growing
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_seed_is_the_identity_at_birth_under_autocast(
    topology: Topology, blueprint: str, dtype: torch.dtype
) -> None:
    seed = build_seed(topology, blueprint, 16, generator())
    x = features(topology, 16).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        blended = blend_add(x, seed(x), torch.tensor(0.5))
    blended.float().square().sum().backward()
    assert has_same_bits(blended, x)
    assert all(part.grad.isfinite().all() for part in seed.parameters())


@growing
def test_gradients_at_birth_are_of_ordinary_size(topology: Topology, blueprint: str) -> None:
    # A zeroed layer right before a norm would multiply them by 1/sqrt(eps), about 316.
    for scale in (1e-2, 1.0, 1e2):
        x = scale * features(topology, 32)
        seed = build_seed(topology, blueprint, 32, generator())
        cotangent = nn.functional.normalize(normal(*x.shape, seed=4), dim=None)
        (seed(x) * cotangent).sum().backward()
        assert max(gradient_norms(seed)) <= 3 * max(1.0, float(x.norm()))


@growing
def test_a_trained_seed_keeps_the_shape_and_no_longer_is_the_identity(
    topology: Topology, blueprint: str
) -> None:
    seed = build_seed(topology, blueprint, 8, generator())
    x = features(topology, 8)
    seed(x).square().sum().backward()
    torch.optim.SGD(seed.parameters(), lr=0.01).step()
    assert seed(x).shape == x.shape
    assert not torch.equal(seed(x), x)


@pytest.mark.parametrize("blueprint", [*CLASSES[Topology.CNN]][1:], ids=name_of)
def test_image_seeds_work_at_any_resolution(blueprint: str) -> None:
    seed = build_seed(Topology.CNN, blueprint, 16, generator())
    for height, width in ((1, 1), (2, 3), (9, 4)):
        x = normal(2, 16, height, width)
        assert torch.equal(seed(x), x)


@pytest.mark.parametrize("blueprint", [*CLASSES[Topology.CNN]][1:], ids=name_of)
@pytest.mark.parametrize("is_isolated", [True, False])
def test_backward_works_for_channels_last_features(blueprint: str, is_isolated: bool) -> None:
    h = features(Topology.CNN, 8).requires_grad_()
    seed = build_seed(Topology.CNN, blueprint, 8, generator())
    seed(h.detach() if is_isolated else h).square().sum().backward()
    assert (h.grad is None) is is_isolated
    assert all(part.grad is not None for part in seed.parameters())


@pytest.mark.parametrize("blueprint", [*CLASSES[Topology.TRANSFORMER]][1:], ids=name_of)
def test_text_seeds_never_look_ahead(blueprint: str) -> None:
    seed = build_seed(Topology.TRANSFORMER, blueprint, 8, generator())
    for parameter in seed.parameters():
        parameter.data += 0.1 * normal(*parameter.shape, seed=3)
    x = normal(2, 6, 8)
    changed = x.clone()
    changed[:, 4:] += 1
    torch.testing.assert_close(seed(x)[:, :4], seed(changed)[:, :4])
    assert not torch.allclose(seed(x)[:, 4:], seed(changed)[:, 4:])


@buildable
def test_seeds_are_drawn_from_their_generator_alone(topology: Topology, blueprint: str) -> None:
    with unchanged_global_rng():
        first, second = (build_seed(topology, blueprint, 8, generator(3)) for _ in range(2))
    assert has_same_state(first, second)


@growing
def test_another_generator_gives_another_seed(topology: Topology, blueprint: str) -> None:
    seeds = [build_seed(topology, blueprint, 8, generator(number)) for number in (0, 1)]
    is_random = blueprint != Blueprint.NORM
    assert has_same_state(*seeds) is not is_random


def test_a_blueprint_of_the_other_topology_is_refused_by_name() -> None:
    with pytest.raises(UnknownNameError, match="unknown cnn blueprint 'lora'"):
        build_seed(Topology.CNN, Blueprint.LORA, 8, generator())
    with pytest.raises(UnknownNameError, match="unknown transformer blueprint 'conv_light'"):
        blueprint_params(Topology.TRANSFORMER, Blueprint.CONV_LIGHT, 8)


def test_channels_that_cannot_be_built_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="divisible by the 4 heads"):
        build_seed(Topology.TRANSFORMER, Blueprint.ATTENTION, 6, generator())
    with pytest.raises(InvalidValueError, match="must be positive"):
        blueprint_params(Topology.CNN, Blueprint.NORM, 0)


def test_flex_attention_is_not_loaded_with_the_registry() -> None:
    code = (
        "import sys, esper.kasmina.blueprints;"
        "sys.exit('torch.nn.attention.flex_attention' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
