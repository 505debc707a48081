"""The transformer host: causality, seeded dropout, a tied head, its limits."""

import copy

import msgspec
import pytest
import torch
from tests.kasmina.hosts.specs import SMALL_TRANSFORMER, batch
from tests.kasmina.tools import generator, has_same_bits, unchanged_global_rng
from torch import Tensor

from esper.kasmina.hosts import SegmentedHost, build_host
from esper.leyline.errors import ContractError, InvalidValueError

X = batch(SMALL_TRANSFORMER)


def host(dropout: float = 0.1) -> SegmentedHost:
    return build_host(msgspec.structs.replace(SMALL_TRANSFORMER, dropout=dropout), generator())


def trained_gradients(host: SegmentedHost, seed: int) -> list[Tensor]:
    host.zero_grad()
    host.set_dropout_generator(generator(seed))
    host.train()(X).square().sum().backward()
    return [parameter.grad.clone() for parameter in host.parameters()]


def test_logits_never_depend_on_later_tokens() -> None:
    subject = host().eval()
    changed = X.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % SMALL_TRANSFORMER.vocab_size
    torch.testing.assert_close(subject(X)[:, :5], subject(changed)[:, :5])
    assert not torch.allclose(subject(X)[:, 5:], subject(changed)[:, 5:])


def test_training_attention_never_looks_ahead() -> None:
    subject = host(dropout=0.5)
    changed = X.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % SMALL_TRANSFORMER.vocab_size
    logits = []
    for tokens in (X, changed):
        subject.set_dropout_generator(generator(3))
        logits.append(subject.train()(tokens)[:, :5])
    torch.testing.assert_close(*logits)


def test_the_explicit_attention_equals_the_fused_one_where_nothing_is_dropped() -> None:
    # A chance too small for the mask: only the path differs.
    subject = host(dropout=1e-12)
    subject.set_dropout_generator(generator())
    torch.testing.assert_close(subject.train()(X), subject.eval()(X))


def test_training_draws_nothing_from_the_global_generator() -> None:
    subject = host()
    with unchanged_global_rng():
        trained_gradients(subject, 0)


def test_equal_dropout_generators_give_equal_bits() -> None:
    first, second = trained_gradients(host(), 5), trained_gradients(host(), 5)
    assert all(map(has_same_bits, first, second))


def test_other_dropout_generators_give_other_gradients() -> None:
    first, second = trained_gradients(host(), 5), trained_gradients(host(), 6)
    assert not any(map(torch.equal, first, second))


def test_attention_weights_are_dropped_too() -> None:
    subject = host(dropout=0.5)
    attention = subject.get_submodule("stages.0.0.attention").train()
    x = torch.ones(64, 8, 8)
    subject.set_dropout_generator(generator())
    is_random = not torch.allclose(attention(x)[0], attention(x)[1])
    assert is_random
    assert torch.allclose(attention.eval()(x)[0], attention(x)[1])


def test_training_without_a_dropout_generator_is_refused() -> None:
    with pytest.raises(ContractError, match="call set_dropout_generator first"):
        host().train()(X)


def test_training_without_dropout_needs_no_generator() -> None:
    subject = host(dropout=0.0)
    assert has_same_bits(subject.train()(X), subject.eval()(X))


def test_copies_draw_from_streams_of_their_own() -> None:
    subject = host()
    subject.set_dropout_generator(generator())
    twin = copy.deepcopy(subject)
    assert has_same_bits(subject(X), twin(X))


def test_the_head_is_the_token_embedding() -> None:
    subject = host().eval()
    assert [name for name in subject.state_dict() if "head" in name] == []
    before = subject(X)
    with torch.no_grad():
        subject.get_parameter("tokens.weight")[3] *= -1
    unseen = (X != 3).all(dim=1)  # rows whose features the change cannot reach
    assert unseen.any()
    changed = subject(X)
    torch.testing.assert_close(changed[unseen][..., 3], -before[unseen][..., 3])


def test_only_parameters_are_stored() -> None:
    subject = host()
    assert set(subject.state_dict()) == {name for name, _ in subject.named_parameters()}


def test_longer_sequences_than_the_block_are_refused() -> None:
    subject = host().eval()
    too_long = torch.zeros(1, SMALL_TRANSFORMER.block_size + 1, dtype=torch.long)
    with pytest.raises(ContractError, match="sequence of 9 tokens: this host takes at most 8"):
        subject(too_long)
    with pytest.raises(ContractError, match="sequence of 9 tokens"):
        subject.forward_to_segment("r0c0", too_long)


def test_shorter_sequences_are_prefixes() -> None:
    subject = host().eval()
    torch.testing.assert_close(subject(X[:, :3]), subject(X)[:, :3])


def test_segments_divide_the_layers_evenly() -> None:
    specs = host().injection_specs()
    assert [spec.layer_range for spec in specs] == [(0, 2), (2, 4)]
    assert [spec.position for spec in specs] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_segments": 0}, "num_segments = 0: must be positive"),
        ({"num_layers": 0}, "num_layers = 0: must be positive"),
        ({"num_layers": 3}, "num_layers = 3: must divide into 2 segments"),
        ({"num_heads": 0}, "num_heads = 0: must be positive"),
        ({"num_heads": 3}, "embed_dim = 8: must divide into 3 heads"),
        ({"dropout": 1.0}, "dropout = 1.0: must be from 0 to below 1"),
    ],
)
def test_specs_that_cannot_be_built_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        build_host(msgspec.structs.replace(SMALL_TRANSFORMER, **changes), generator())
