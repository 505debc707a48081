"""Dropout from a generator handed in."""

import pytest
import torch
from tests.kasmina.tools import generator, has_same_bits, normal, unchanged_global_rng

from esper.kasmina.hosts.dropout import SeededDropout
from esper.leyline.errors import ContractError


def seeded(probability: float, seed: int = 0) -> SeededDropout:
    dropout = SeededDropout(probability)
    dropout.generator = generator(seed)
    return dropout


def test_dropout_zeroes_its_share_and_scales_up_the_rest() -> None:
    dropped = seeded(0.25)(torch.ones(200, 200))
    kept = dropped[dropped != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 4 / 3))
    assert kept.numel() / dropped.numel() == pytest.approx(0.75, abs=0.01)


def test_every_part_of_a_drawn_word_drops_the_same_share() -> None:
    dropped = seeded(0.25)(torch.ones(20_000, 4)) == 0
    assert dropped.float().mean(dim=0).tolist() == pytest.approx(4 * [0.25], abs=0.01)


def test_elements_are_dropped_independently() -> None:
    dropped = (seeded(0.5)(torch.ones(20_000, 4)) == 0).float()
    torch.testing.assert_close(torch.corrcoef(dropped.T), torch.eye(4), rtol=0, atol=0.03)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 7)])
def test_any_shape_can_be_dropped(shape: tuple[int, ...]) -> None:
    assert seeded(0.5)(torch.ones(shape)).shape == shape


def test_dropout_draws_from_its_generator_alone() -> None:
    x = normal(50, 50)
    with unchanged_global_rng():
        first, second, other = (seeded(0.5, seed)(x) for seed in (0, 0, 1))
    assert has_same_bits(first, second)
    assert not torch.equal(first, other)


def test_each_call_draws_a_new_mask() -> None:
    dropout, x = seeded(0.5), torch.ones(50, 50)
    assert not torch.equal(dropout(x), dropout(x))


def test_gradients_are_masked_like_the_output() -> None:
    x = torch.ones(50, 50, requires_grad=True)
    dropped = seeded(0.5)(x)
    dropped.sum().backward()
    assert x.grad is not None
    assert has_same_bits(x.grad, dropped.detach())


def test_evaluation_and_a_chance_of_zero_return_the_input_itself() -> None:
    x = normal(5, 5)
    assert SeededDropout(0.5).eval()(x) is x
    assert SeededDropout(0.0)(x) is x


def test_dropout_without_a_generator_is_refused() -> None:
    with pytest.raises(ContractError, match="call set_dropout_generator first"):
        SeededDropout(0.5)(normal(5, 5))


def test_the_probability_is_shown() -> None:
    assert repr(SeededDropout(0.5)) == "SeededDropout(probability=0.5)"


def test_mask_follows_the_input_to_another_device() -> None:
    dropout = SeededDropout(0.5)
    dropout.generator = generator()

    assert dropout(torch.ones(3, 5, device="meta")).device.type == "meta"
