"""The convolutional host: its grid, its layout, its shapes."""

import msgspec
import pytest
import torch
from tests.kasmina.hosts.specs import SMALL_CNN, batch
from tests.kasmina.tools import generator, normal

from esper.kasmina.hosts import build_host
from esper.leyline.errors import InvalidValueError
from esper.leyline.slots import Surface
from esper.leyline.tasks import CnnHostSpec, task_named


def cifar_baseline() -> CnnHostSpec:
    spec = task_named("cifar_baseline").host
    assert isinstance(spec, CnnHostSpec)
    return spec


def test_features_have_the_known_shapes() -> None:
    host = build_host(cifar_baseline(), generator()).eval()
    x = normal(2, 3, 32, 32)
    shapes = {
        segment: tuple(host.forward_to_segment(segment, x).shape[1:])
        for segment in host.execution_order()
    }
    assert shapes == {
        "r0c0": (8, 32, 32),
        "r1c0": (8, 16, 16),
        "r0c1": (16, 16, 16),
        "r1c1": (16, 8, 8),
        "r0c2": (32, 8, 8),
        "r1c2": (32, 4, 4),
    }


def test_blocks_without_a_pool_offer_one_slot() -> None:
    spec = msgspec.structs.replace(SMALL_CNN, num_pools=1)
    assert build_host(spec, generator()).execution_order() == ("r0c0", "r1c0", "r0c1", "r0c2")


def test_injection_specs_say_where_a_slot_sits() -> None:
    specs = build_host(cifar_baseline(), generator()).injection_specs()
    assert [spec.surface for spec in specs] == 3 * [Surface.PRE_POOL] + 3 * [Surface.POST_POOL]
    assert [spec.layer_range for spec in specs] == 2 * [(0, 1), (1, 2), (2, 3)]
    positions = {spec.slot_id: spec.position for spec in specs}
    order = build_host(cifar_baseline(), generator()).execution_order()
    assert [positions[slot_id] for slot_id in order] == [rank / 6 for rank in range(1, 7)]


def test_features_stay_channels_last_from_entry_to_exit() -> None:
    host, x = build_host(SMALL_CNN, generator()), batch(SMALL_CNN)
    assert not x.is_contiguous(memory_format=torch.channels_last)
    for segment in host.execution_order()[:-1]:  # one pixel is left behind the last pool
        features = host.forward_to_segment(segment, x)
        assert features.is_contiguous(memory_format=torch.channels_last), segment


def test_input_in_either_layout_gives_the_same_logits() -> None:
    host, x = build_host(SMALL_CNN, generator()).eval(), batch(SMALL_CNN)
    assert torch.equal(host(x), host(x.contiguous(memory_format=torch.channels_last)))


def test_training_moves_the_running_statistics_and_evaluation_does_not() -> None:
    host, x = build_host(SMALL_CNN, generator()), batch(SMALL_CNN)
    before = [buffer.clone() for buffer in host.buffers()]
    host.eval()(x)
    assert all(map(torch.equal, before, host.buffers()))
    host.train()(x)
    assert not any(map(torch.equal, before, host.buffers()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_blocks": 1}, "num_blocks = 1: must be at least 2"),
        ({"kernel_size": 2}, "kernel_size = 2: must be odd"),
        ({"base_channels": 0}, "base_channels = 0: must be positive"),
        ({"num_pools": 4}, "num_pools = 4: must be from 0 to the 3 blocks"),
        ({"image_size": 4}, "num_pools = 3: is too many for 4 pixels"),
    ],
)
def test_specs_that_cannot_be_built_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        build_host(msgspec.structs.replace(SMALL_CNN, **changes), generator())
