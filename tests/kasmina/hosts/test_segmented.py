"""The law of composition, and what a host refuses, for hosts of every shape."""

from itertools import combinations

import pytest
import torch
from tests.kasmina.hosts.specs import SMALL_CNN, SMALL_HOSTS, batch
from tests.kasmina.tools import generator, has_same_bits
from torch import nn

from esper.kasmina.hosts import HostProtocol, build_host
from esper.leyline.errors import ContractError, UnknownNameError
from esper.leyline.tasks import HostSpec

hosts = pytest.mark.parametrize("spec", SMALL_HOSTS.values(), ids=SMALL_HOSTS)


@hosts
def test_every_host_keeps_the_protocol(spec: HostSpec) -> None:
    host = build_host(spec, generator())
    assert isinstance(host, HostProtocol)
    assert host.topology is spec.topology


@hosts
def test_every_cut_composes_to_the_whole(spec: HostSpec) -> None:
    host, x = build_host(spec, generator()).eval(), batch(spec)
    whole = host(x)
    for segment in host.execution_order():
        features = host.forward_to_segment(segment, x)
        assert has_same_bits(host.forward_from_segment(segment, features), whole), segment


@hosts
def test_every_pair_of_cuts_composes_to_the_whole(spec: HostSpec) -> None:
    host, x = build_host(spec, generator()).eval(), batch(spec)
    whole = host(x)
    for first, second in combinations(host.execution_order(), 2):
        features = host.forward_to_segment(first, x)
        features = host.forward_to_segment(second, features, from_segment=first)
        assert has_same_bits(features, host.forward_to_segment(second, x))
        assert has_same_bits(host.forward_from_segment(second, features), whole)


@hosts
def test_pieces_train_like_the_whole(spec: HostSpec) -> None:
    whole, pieces = (build_host(spec, generator()) for _ in range(2))
    x = batch(spec)
    for host in (whole, pieces):
        host.set_dropout_generator(generator(7))
    whole(x).square().sum().backward()
    features, before = x, None
    for segment in pieces.execution_order():
        features = pieces.forward_to_segment(segment, features, from_segment=before)
        before = segment
    assert before is not None
    pieces.forward_from_segment(before, features).square().sum().backward()
    for (name, ours), theirs in zip(whole.named_parameters(), pieces.parameters(), strict=True):
        assert has_same_bits(ours.grad, theirs.grad), name
    for (name, ours), theirs in zip(whole.named_buffers(), pieces.buffers(), strict=True):
        assert torch.equal(ours, theirs), name


@hosts
def test_features_at_a_slot_have_its_channels_and_matter(spec: HostSpec) -> None:
    host, x = build_host(spec, generator()).eval(), batch(spec)
    channel_dim = 1 if spec.topology == "cnn" else 2
    for injection in host.injection_specs():
        features = host.forward_to_segment(injection.slot_id, x)
        assert features.shape[channel_dim] == injection.channels
        changed = host.forward_from_segment(injection.slot_id, features + 1 + features.square())
        assert not torch.allclose(changed, host(x))


@hosts
def test_unknown_segments_are_refused(spec: HostSpec) -> None:
    host, x = build_host(spec, generator()), batch(spec)
    first = host.execution_order()[0]
    with pytest.raises(UnknownNameError, match="unknown segment 'r9c9'"):
        host.forward_to_segment("r9c9", x)
    with pytest.raises(UnknownNameError, match="unknown segment 'mid'"):
        host.forward_to_segment(first, x, from_segment="mid")
    with pytest.raises(UnknownNameError, match="unknown segment 'r9c9'"):
        host.forward_from_segment("r9c9", x)


@hosts
def test_routes_backwards_or_on_the_spot_are_refused(spec: HostSpec) -> None:
    host = build_host(spec, generator())
    first, *_, last = host.execution_order()
    features = host.eval().forward_to_segment(first, batch(spec))
    for origin in (first, last):
        with pytest.raises(ContractError, match=f"'{first}': does not come after '{origin}'"):
            host.forward_to_segment(first, features, from_segment=origin)


@hosts
def test_orders_list_the_same_slots(spec: HostSpec) -> None:
    host = build_host(spec, generator())
    assert sorted(host.execution_order()) == sorted(spec.slot_ids)
    assert tuple(injection.slot_id for injection in host.injection_specs()) == spec.slot_ids
    assert [injection.order for injection in host.injection_specs()] == list(
        range(len(spec.slot_ids))
    )


def test_a_host_without_dropout_accepts_a_dropout_generator() -> None:
    host = build_host(SMALL_CNN, generator())
    host.set_dropout_generator(generator(1))
    assert isinstance(host(batch(SMALL_CNN)), torch.Tensor)


def test_the_protocol_is_not_kept_by_just_any_module() -> None:
    assert not isinstance(nn.Linear(1, 1), HostProtocol)
