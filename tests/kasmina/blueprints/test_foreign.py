"""Blueprints of users: what is refused in one sentence, and that the others are built alike."""

from importlib.metadata import EntryPoint

import pytest
import torch
from tests.kasmina.tools import generator, has_same_state, unchanged_global_rng
from torch import Tensor, nn

from esper.kasmina.blueprints import registry
from esper.kasmina.blueprints.registry import BlueprintRegistry, build_seed, register_blueprint
from esper.leyline.actions import Topology
from esper.leyline.errors import PluginError, UnknownNameError


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> BlueprintRegistry:
    """Stand in for the registry of the process."""
    fresh = BlueprintRegistry(find_plugins=list)
    monkeypatch.setattr(registry, "_REGISTRY", fresh)
    return fresh


class Residual(nn.Module):
    """x + g(x), where g ends in a layer of zeros."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Linear(channels, channels)
        self.last = nn.Linear(channels, channels)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def added(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))

    def forward(self, x: Tensor) -> Tensor:
        is_image = x.dim() == 4
        x = x.movedim(1, -1) if is_image else x
        x = x + self.added(x)
        return x.movedim(-1, 1) if is_image else x


class Cut(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[..., :-1]


class Pair(Residual):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x), x  # type: ignore[return-value]


class Loud(Residual):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        nn.init.constant_(self.last.bias, 0.5)


class InTraining(Residual):
    def added(self, x: Tensor) -> Tensor:
        return super().added(x) + 0.1 * self.training


class TwiceZero(Residual):
    def added(self, x: Tensor) -> Tensor:
        return super().added(x) * self.last.bias.sum()


class Unbounded(Residual):
    def added(self, x: Tensor) -> Tensor:
        # The square root has an infinite slope at zero.
        return self.last(x).abs().sqrt()


class Frozen(Residual):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.requires_grad_(False)


class Random(Residual):
    def added(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().added(x), training=self.training)


class FixedSize(Residual):
    def added(self, x: Tensor) -> Tensor:
        return super().added(x) + torch.zeros(4, 1)


def fail(channels: int) -> nn.Module:
    raise RuntimeError("no such layer")


@pytest.mark.parametrize("topology", Topology)
@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (Cut, r"maps shape \(2, .*\) to \(2, .*\); a seed must preserve the shape"),
        (Pair, r"maps shape \(2, .*\) to tuple; a seed must preserve the shape"),
        (Loud, "changes its input by up to 0.5 at birth"),
        (InTraining, "changes its input by up to 0.1 at birth"),
        (TwiceZero, "has no gradient at birth, so it could never learn"),
        (Unbounded, "has a gradient that is not finite at birth"),
        (Frozen, "has no trainable parameters"),
        (nn.Identity, "has no trainable parameters"),
        (Random, "draws from torch's global generator while it runs"),
        (FixedSize, r"fails on features of shape \(2, .*\): RuntimeError"),
        (fail, r"cannot be built for 8 channels: RuntimeError\('no such layer'\)"),
        (torch.zeros, "its builder returns a Tensor, not a module"),
    ],
)
def test_seed_that_could_not_grow_is_refused_in_one_sentence(
    build: registry.BuildSeed, reason: str, topology: Topology
) -> None:
    with pytest.raises(PluginError, match=f"^blueprint 'mine': {reason}") as caught:
        register_blueprint("mine", build, topology=topology)

    assert "\n" not in str(caught.value)
    with pytest.raises(UnknownNameError, match="blueprint 'mine'"):
        build_seed(topology, "mine", 8, generator())


@pytest.mark.parametrize("name", ["", "Mine", "my-own", "1st", "a" * 33, "mine\n"])
def test_name_that_could_not_be_typed_is_refused(name: str) -> None:
    with pytest.raises(PluginError, match="up to 32 lower-case letters"):
        register_blueprint(name, Residual)


@pytest.mark.parametrize("name", ["conv_light", "lora", "noop", "widen"])
def test_name_that_is_taken_is_refused(name: str) -> None:
    with pytest.raises(PluginError, match="already exists"):
        register_blueprint(name, Residual)


def test_seeds_of_a_user_depend_on_their_generator_alone() -> None:
    register_blueprint("mine", Residual)
    with unchanged_global_rng():
        first, again = (build_seed(Topology.CNN, "mine", 6, generator(3)) for _ in range(2))
        other = build_seed(Topology.CNN, "mine", 6, generator(4))

    assert has_same_state(first, again)
    assert not has_same_state(first, other)


def test_one_name_may_grow_in_both_kinds_of_hosts_and_each_is_registered() -> None:
    register_blueprint("mine", Residual, topology=Topology.TRANSFORMER)
    with pytest.raises(UnknownNameError, match="unknown cnn blueprint 'mine'"):
        build_seed(Topology.CNN, "mine", 8, generator())
    register_blueprint("mine", Residual)

    assert registry.blueprint_params(Topology.CNN, "mine", 8) == 2 * (8 * 8 + 8)
    assert registry.blueprint_params(Topology.TRANSFORMER, "mine", 8) == 2 * (8 * 8 + 8)


def register_by_plugin() -> None:
    register_blueprint("plugged", Residual)


def test_blueprints_of_plugins_are_in_every_process_and_those_of_a_script_are_not(
    fresh: BlueprintRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = f"{__name__}:register_by_plugin"
    entry = EntryPoint(name="plugged", value=value, group=registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(fresh, "find_plugins", lambda: [entry])
    register_blueprint("mine", Residual)

    installed = {name: fresh.is_installed(name) for name in ("mine", "plugged", "widen")}
    assert installed == {"mine": False, "plugged": True, "widen": True}
    build_seed(Topology.CNN, "plugged", 8, generator())


def break_down() -> None:
    raise RuntimeError("no such layer")


def test_plugin_that_breaks_is_named(
    fresh: BlueprintRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = f"{__name__}:break_down"
    entry = EntryPoint(name="broken", value=value, group=registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(fresh, "find_plugins", lambda: [entry])

    with pytest.raises(PluginError, match=f"blueprint 'broken': {value} failed: .*uninstall"):
        registry.check_registered(Topology.CNN, ("mine",))
