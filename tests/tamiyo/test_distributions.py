"""The action distribution: masks, floors, sampling, entropy."""

import itertools

import pytest
import torch
from tests.tamiyo.policies import NUM_SLOTS, generator, legal_ops, random_masks
from torch import Tensor

from esper.leyline.actions import HEAD_SPECS, HEADS, Head, Op, causal_heads, head_sizes
from esper.tamiyo.distributions import NUM_HEADS, OP_ROW, ActionSpace

SPACE = ActionSpace(NUM_SLOTS)


def random_logits(*shape: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    return scale * torch.randn((*shape, NUM_HEADS, SPACE.width), generator=generator(seed))


def random_choice_masks(gen: torch.Generator, num_envs: int) -> Tensor:
    masks = random_masks(gen, num_envs)
    return SPACE.choice_masks(masks, legal_ops(masks, gen))


def floored_by_hand(logits: list[float], valid: list[int], mixture: float) -> list[float]:
    """Compute the mixture choice by choice, in Python floats."""
    exps = {index: torch.tensor(logits[index], dtype=torch.float64).exp() for index in valid}
    total = sum(exps.values())
    return [
        float((1 - mixture) * exps[index] / total + mixture / len(valid)) if index in exps else 0.0
        for index in range(len(logits))
    ]


def test_probabilities_are_a_mixture_of_softmax_and_uniform_over_valid_choices() -> None:
    masks = random_choice_masks(generator(1), 20)
    logits = random_logits(20)

    probs = SPACE.distributions(logits, masks).probs

    for env, (row, head) in itertools.product(range(20), enumerate(HEADS)):
        valid = masks[env, row].nonzero().flatten().tolist()
        expected = floored_by_hand(logits[env, row].tolist(), valid, HEAD_SPECS[head].mixture)
        assert probs[env, row].tolist() == pytest.approx(expected, abs=1e-6)


def test_a_million_samples_contain_no_masked_choice() -> None:
    gen = generator(2)
    for seed in range(5):
        num_envs = 25_000  # times eight heads times five seeds
        masks = random_choice_masks(gen, num_envs)
        chosen = SPACE.distributions(random_logits(num_envs, seed=seed, scale=20.0), masks)
        uniforms = torch.rand((num_envs, NUM_HEADS), generator=gen)

        actions = chosen.choose(uniforms)

        assert bool(masks.gather(-1, actions.unsqueeze(-1)).all())


def test_masked_choices_have_a_probability_and_a_gradient_of_exactly_zero() -> None:
    masks = random_choice_masks(generator(4), 200)
    logits = random_logits(200, scale=20.0).requires_grad_()
    chosen = SPACE.distributions(logits, masks)
    actions = chosen.choose(torch.rand((200, NUM_HEADS), generator=generator(5)))

    assert bool((chosen.probs[~masks] == 0.0).all())
    (chosen.log_prob(actions).sum() + chosen.entropy().sum()).backward()
    assert bool((logits.grad[~masks] == 0.0).all())
    assert bool(logits.grad[masks].any())


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-24])
def test_the_ends_of_the_unit_interval_fall_on_valid_choices(uniform: float) -> None:
    masks = random_choice_masks(generator(3), 6000)
    chosen = SPACE.distributions(random_logits(6000, scale=20.0), masks)

    actions = chosen.choose(torch.full((6000, NUM_HEADS), uniform))

    assert bool(masks.gather(-1, actions.unsqueeze(-1)).all())


def test_sampled_frequencies_follow_the_probabilities() -> None:
    num_samples = 200_000
    masks = random_choice_masks(generator(4), 1)
    chosen = SPACE.distributions(random_logits(1), masks)
    uniforms = torch.rand((num_samples, NUM_HEADS), generator=generator(5))

    actions = chosen.choose(uniforms)

    counts = torch.nn.functional.one_hot(actions, SPACE.width).sum(0)
    spread = (chosen.probs[0] * (1 - chosen.probs[0]) / num_samples).sqrt()
    assert bool(((counts / num_samples - chosen.probs[0]).abs() <= 5 * spread + 1e-9).all())


def test_every_valid_choice_keeps_a_gradient_where_there_are_two() -> None:
    masks = random_masks(generator(6), 30)
    logits = random_logits(30, scale=10.0).requires_grad_()
    for op in Op:
        allowed = SPACE.choice_masks(masks, torch.full((30,), op))
        log_probs = SPACE.distributions(logits, allowed).log_probs
        for row in range(NUM_HEADS):
            for choice in range(SPACE.width):
                is_asked = allowed[:, row, choice] & (allowed[:, row].sum(-1) >= 2)
                (gradient,) = torch.autograd.grad(
                    log_probs[is_asked, row, choice].sum(), logits, retain_graph=True
                )
                assert bool((gradient[is_asked, row].abs().sum(-1) > 0).all())
                assert bool(torch.isfinite(gradient).all())


def test_a_single_choice_has_log_prob_and_entropy_of_exactly_zero() -> None:
    masks = random_choice_masks(generator(7), 600)
    chosen = SPACE.distributions(random_logits(600, scale=30.0), masks)

    is_single = masks.sum(-1) == 1

    assert int(is_single.sum()) > 1000
    assert bool((chosen.log_prob(chosen.choose(None))[is_single] == 0.0).all())
    assert bool((chosen.entropy()[is_single] == 0.0).all())


def test_entropy_is_one_for_equal_logits_and_never_above() -> None:
    masks = random_choice_masks(generator(8), 50)
    has_choice = masks.sum(-1) >= 2

    equal = SPACE.distributions(torch.zeros(50, NUM_HEADS, SPACE.width), masks).entropy()
    other = SPACE.distributions(random_logits(50), masks).entropy()

    assert equal[has_choice].tolist() == pytest.approx([1.0] * int(has_choice.sum()), abs=1e-6)
    assert bool(((other >= 0) & (other <= 1 + 1e-6)).all())


@pytest.mark.parametrize("op", Op)
def test_heads_that_the_op_ignores_have_their_neutral_value_alone(op: Op) -> None:
    masks = random_masks(generator(9), 40)
    allowed = SPACE.choice_masks(masks, torch.full((40,), op))
    for row, (head, size) in enumerate(head_sizes(NUM_SLOTS).items()):
        base = masks.slot_by_op[:, op] if head is Head.SLOT else getattr(masks, head)
        if head in causal_heads(op):
            assert torch.equal(allowed[:, row, :size], base)
        else:
            neutral = base.int().argmax(-1) if head is Head.SLOT else HEAD_SPECS[head].neutral
            assert bool((allowed[:, row].sum(-1) == 1).all())
            assert bool((allowed[:, row].int().argmax(-1) == neutral).all())
        assert not bool(allowed[:, row, size:].any())


def test_available_masks_hold_what_some_legal_op_could_have_used() -> None:
    masks = random_masks(generator(10), 60)
    available = SPACE.available_masks(masks)
    for env, (row, head) in itertools.product(range(60), enumerate(HEADS)):
        users = [op for op in Op if bool(masks.op[env, op]) and head in causal_heads(op)]
        if head is Head.SLOT:
            rows = [masks.slot_by_op[env, op] for op in users]
            base = torch.stack(rows).any(0) if rows else masks.op.new_zeros(NUM_SLOTS)
        else:
            base = getattr(masks, head)[env]
        has_choice = bool(users) and int(base.sum()) >= 2
        assert bool(available.has_choice[env, row]) == has_choice
        if has_choice:
            assert torch.equal(available.masks[env, row, : len(base)], base)


def test_op_drawn_alone_has_the_distribution_it_has_among_all_heads() -> None:
    masks = random_masks(generator(11), 30)
    logits = random_logits(30)

    alone = SPACE.op_distribution(logits, masks)
    among = SPACE.distributions(logits, SPACE.choice_masks(masks, torch.zeros(30).long()))

    assert torch.equal(alone.probs[:, 0], among.probs[:, OP_ROW])


def test_rows_without_any_legal_choice_stay_finite() -> None:
    logits = random_logits(4).requires_grad_()
    chosen = SPACE.distributions(logits, torch.zeros(4, NUM_HEADS, SPACE.width).bool())

    (chosen.entropy().sum() + chosen.probs.sum()).backward()

    assert logits.grad is not None
    assert bool(torch.isfinite(logits.grad).all())
