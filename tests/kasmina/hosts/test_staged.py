"""Networks of the user's own as hosts: cut exactly, or refused in one sentence."""

import copy
from collections.abc import Callable
from threading import Thread

import msgspec
import pytest
import torch
from tests.kasmina.tools import generator, normal, unchanged_global_rng
from torch import Tensor, nn
from torch.nn import functional

from esper.kasmina.hosts import build_host, make_host, staged
from esper.kasmina.model import MorphogeneticModel
from esper.leyline.actions import Blueprint, Style, Topology
from esper.leyline.attribution import Ablation
from esper.leyline.errors import UsageError
from esper.leyline.stages import LifecycleRules, Stage
from esper.leyline.tasks import ModuleHostSpec
from esper.runtime.batches import Batch
from esper.simic.training.batch_ops import backpropagate
from esper.simic.training.static_work import PlantedSeed, plant


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.norm(self.conv(x)))


class Plain(nn.Module):
    """A residual network as its author would write it."""

    def __init__(self, *, in_place: bool = False, probability: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.layer1 = nn.Sequential(nn.ReLU(inplace=in_place), Residual(4))
        self.layer2 = nn.Sequential(nn.ReLU(inplace=in_place), nn.Conv2d(4, 6, 3, stride=2))
        self.dropout = nn.Dropout(probability)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer2(self.layer1(self.stem(x)))
        return self.head(self.dropout(h.mean(dim=(2, 3))))


def plain() -> nn.Module:
    return Plain()


SAMPLE = normal(4, 1, 8, 8)
SPEC = ModuleHostSpec(
    factory=f"{__name__}:plain",
    after=("stem", "layer1", "layer2"),
    sample_shape=(1, 8, 8),
    num_classes=3,
)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("is_training", [False, True])
def test_host_is_the_network_bit_for_bit_in_one_run_and_in_segments(
    in_place: bool, is_training: bool
) -> None:
    model = Plain(in_place=in_place).train(is_training)
    host = make_host(model, after=["layer1", "stem", "layer2"], sample=SAMPLE).train(is_training)
    x = SAMPLE.clone()

    expected = model(x.clone())

    assert torch.equal(host(x), expected)
    assert torch.equal(x, SAMPLE), "the batch was changed"
    assert [spec.channels for spec in host.injection_specs()] == [4, 4, 6]
    if not is_training:
        for slot_id in host.execution_order():
            h = host.forward_to_segment(slot_id, x)
            before = h.clone()
            assert torch.equal(host.forward_from_segment(slot_id, h), expected)
            assert torch.equal(h, before), "the features were changed"


def test_parameters_are_all_there_once_and_the_model_is_left_alone() -> None:
    model = Plain()
    host = make_host(model, after=["layer1"], sample=SAMPLE)

    ours = sorted(parameter.numel() for parameter in host.parameters())
    assert ours == sorted(parameter.numel() for parameter in model.parameters())
    functional.cross_entropy(host(SAMPLE), torch.zeros(4, dtype=torch.long)).backward()
    assert all(parameter.grad is not None for parameter in host.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_dropout_draws_from_the_hosts_generator_alone() -> None:
    host = make_host(Plain(probability=0.5), after=["stem"], sample=SAMPLE).train()
    host.set_dropout_generator(generator(1))

    with unchanged_global_rng():
        first = host(SAMPLE)
    assert not torch.equal(host(SAMPLE), first)


@pytest.mark.parametrize("stage", [Stage.TRAINING, Stage.HOLDING])
def test_seeds_grow_in_every_slot(stage: Stage) -> None:
    host = build_host(SPEC, generator())
    model = MorphogeneticModel(host, SPEC.slot_ids, LifecycleRules())
    for slot_id in SPEC.slot_ids:
        seed = PlantedSeed(slot_id, Blueprint.CONV_LIGHT, Style.GATED_GATE, 1.0, stage)
        plant(model, seed, generator())

    backpropagate(model.train(), Batch(SAMPLE, torch.arange(4) % 3))

    for slot in model.all_slots():
        found = [parameter.grad for parameter in slot.seed_parameters()]
        assert any(gradient is not None and gradient.any() for gradient in found)


@pytest.mark.parametrize("after", [["stem"], ["layer1"], ["layer2"]])
def test_ablation_uses_statistics_of_the_batch_and_leaves_the_running_ones(
    after: list[str],
) -> None:
    host = make_host(Plain(), after=after, sample=SAMPLE)
    reference = copy.deepcopy(host)
    model = MorphogeneticModel(host, ["r0c0"], LifecycleRules()).eval()
    seed = PlantedSeed("r0c0", Blueprint.CONV_LIGHT, Style.SIGMOID_ADD, 1.0, Stage.HOLDING)
    plant(model, seed, generator())
    before = {name: tensor.clone() for name, tensor in host.state_dict().items()}

    (logits,) = model.fused_forward(SAMPLE, [Ablation(frozenset(["r0c0"]))]).logits

    # Before the slot nothing differs from the network with the seed; behind it everything may.
    reference.stages.eval()
    reference.head.train()
    assert torch.equal(logits, reference(SAMPLE))
    assert all(torch.equal(before[name], now) for name, now in host.state_dict().items())


def test_same_generator_gives_the_same_host_without_the_global_one() -> None:
    with unchanged_global_rng():
        hosts = [build_host(SPEC, generator(seed)) for seed in (1, 1, 2)]

    first, same, other = (torch.cat([p.flatten() for p in host.parameters()]) for host in hosts)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert hosts[0].topology is Topology.CNN


class Skipping(Plain):
    def forward(self, x: Tensor) -> Tensor:
        early = self.stem(x)
        return self.head((self.layer2(self.layer1(early)).mean() + early.mean()).expand(4, 6))


class Branching(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class Pairing(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer1(self.layer1(self.stem(x)))


class Functional(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(super().forward(x))


class DependingOnMode(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(super().forward(x), training=self.training)


class FixedBatch(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer2(self.layer1(self.stem(x))).reshape(4, -1)


class Halving(nn.Module):
    """Puts out fewer rows in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.training else x[:, :, ::2]


class Folding(nn.Module):
    """Puts the columns of each image where the batch belongs."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(3, 1, 2, 0)


def before_a_head(*parts: nn.Module) -> Callable[[], nn.Module]:
    """Return a factory of networks with `parts` behind a convolution, the first of them named 1."""
    stem = nn.Conv2d(1, 2, 3)
    return lambda: nn.Sequential(stem, *parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())


REFUSED: dict[str, tuple[Callable[[], nn.Module], list[str], str]] = {
    "no name": (Plain, [], "at least one submodule"),
    "unknown": (Plain, ["layer9"], "no submodule 'layer9'"),
    "reused": (Skipping, ["layer1"], "cannot be cut behind 'layer1': 'stem' from before"),
    "control flow": (Branching, ["stem"], "cannot be cut into stages"),
    "twice": (Pairing, ["layer1"], "runs 'layer1' more than once"),
    "inside": (Plain, ["layer1", "layer1.1"], "'layer1.1' runs inside of another stage"),
    "flat": (Plain, ["stem", "dropout"], r"not \(4, 6\)"),
    "function": (Functional, ["stem"], "global generator"),
    "channels": (lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Dropout2d()), ["0"], "Dropout2d"),
    "tuple": (lambda: nn.Sequential(nn.Flatten(2), nn.LSTM(64, 3)), ["0"], "puts out a tuple"),
    "tuple in a slot": (
        lambda: nn.Sequential(nn.Flatten(2), nn.LSTM(64, 3), nn.Identity()),
        ["1"],
        "'1' puts out a tuple; a slot needs one tensor",
    ),
    "mode": (DependingOnMode, ["stem"], r"depends on self\.training"),
    "leaf that draws": (before_a_head(nn.RReLU()), ["1"], "draws from torch's global generator"),
    "head that draws": (before_a_head(nn.RReLU()), ["0"], "draws from torch's global generator"),
    "fixed batch": (FixedBatch, ["stem"], "one row per sample"),
    "folded batch": (before_a_head(Folding()), ["1"], "for a batch of 4"),
    "shape of a mode": (before_a_head(Halving()), ["1"], r"changes from .* with training"),
    "other images": (lambda: nn.Sequential(nn.Conv2d(3, 2, 1)), ["0"], "cannot run a batch of"),
    "two kinds": (lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(2)), ["0", "1"], "kind"),
    "statistics": (
        before_a_head(nn.InstanceNorm2d(2, track_running_stats=True)),
        ["0"],
        "1: the running statistics of InstanceNorm2d",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_cut_is_refused_in_one_sentence(case: str) -> None:
    build, after, reason = REFUSED[case]

    with pytest.raises(UsageError, match=reason):
        make_host(build(), after=after, sample=SAMPLE)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_classes": 4}, "puts out 3 logits, and its spec says num_classes = 4"),
        ({"topology": Topology.TRANSFORMER}, "its spec says transformer"),
        ({"sample_shape": (3, 8, 8)}, r"cannot run a batch of shape \(2, 3, 8, 8\)"),
    ],
)
def test_spec_that_differs_from_its_network_is_refused(
    change: dict[str, object], reason: str
) -> None:
    with pytest.raises(UsageError, match=f"plain'.*{reason}"):
        build_host(msgspec.structs.replace(SPEC, **change), generator())


@pytest.mark.parametrize("factory", ["no_such_package:build", f"{__name__}:nothing", "plain"])
def test_factory_that_cannot_be_imported_is_refused(factory: str) -> None:
    spec = ModuleHostSpec(factory=factory, after=("a",), sample_shape=(1, 8, 8), num_classes=3)

    with pytest.raises(
        UsageError, match=r"cannot be imported and called as package.module:function"
    ):
        build_host(spec, generator())


class RunsAnother(nn.Module):
    """While it is traced, another thread uses a network of its own, as control does."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.head = nn.Linear(4, 2)
        self.outputs: list[Tensor] = []
        self._other = [other]  # in a list, so that it is no submodule

    def forward(self, x: Tensor) -> Tensor:
        thread = Thread(target=lambda: self.outputs.append(self._other[0](torch.ones(1, 3))))
        thread.start()
        thread.join()
        return self.head(self.first(x).mean(dim=(2, 3)))


def test_other_threads_run_their_modules_while_one_is_cut() -> None:
    other = nn.Linear(3, 2)
    model = RunsAnother(other)

    staged._trace(model, ["first"])

    (output,) = model.outputs
    assert torch.equal(output, other(torch.ones(1, 3)))
