"""The policy network: sizes, initial weights, memory, decisions."""

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from tests.tamiyo.policies import (
    SPEC,
    generator,
    random_inputs,
    random_masks,
    sharpened,
    small_network,
)
from torch import Tensor

from esper.leyline.actions import HEADS, NUM_OPS, Head, Op
from esper.leyline.config import TrainingConfig
from esper.tamiyo.distributions import OP_ROW
from esper.tamiyo.network import (
    LstmState,
    PolicyNetwork,
    PolicyOutput,
    PolicySpec,
    draw_uniforms,
)


@pytest.mark.parametrize(
    ("num_slots", "num_params"),
    [(1, 3_969_890), (3, 4_006_502), (6, 4_061_420), (10, 4_134_644)],
)
def test_reference_sizes_have_the_published_number_of_parameters(
    num_slots: int, num_params: int
) -> None:
    defaults = TrainingConfig()
    spec = PolicySpec(
        obs_dim=23 + 31 * num_slots,
        num_slots=num_slots,
        feature_dim=defaults.feature_dim,
        hidden_dim=defaults.lstm_hidden_dim,
    )
    network = small_network(spec=spec)

    assert sum(parameter.numel() for parameter in network.parameters()) == num_params


def test_building_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()

    small_network()

    assert torch.equal(before, torch.get_rng_state())


def test_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    one, same, other = (small_network(seed).state_dict() for seed in (1, 1, 2))

    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["features.0.weight"], other["features.0.weight"])


def gain_of(weight: Tensor) -> float:
    """Return the gain of an orthogonal matrix; fail if it is none."""
    weight = weight.detach()
    narrow = weight if weight.shape[0] <= weight.shape[1] else weight.T
    gram = narrow @ narrow.T
    gain = gram.diagonal().mean().sqrt()
    torch.testing.assert_close(gram, gain**2 * torch.eye(len(gram)), atol=1e-4, rtol=1e-4)
    return float(gain)


def test_initial_weights_are_orthogonal_with_the_stated_gains() -> None:
    network = small_network()

    for head in network.heads.values():
        assert gain_of(head[-1].weight) == pytest.approx(0.01, rel=1e-3)
        assert gain_of(head[0].weight) == pytest.approx(2**0.5, rel=1e-3)
    for critic in (network.value, network.q, network.contribution):
        assert gain_of(critic[-1].weight) == pytest.approx(0.1, rel=1e-3)
    assert gain_of(network.lstm.weight_hh_l0) == pytest.approx(1.0, rel=1e-3)


def test_initial_weights_can_be_uniform_within_the_bound_of_their_inputs() -> None:
    network = small_network(spec=msgspec.structs.replace(SPEC, is_orthogonal=False))
    layers = [item for item in network.modules() if isinstance(item, torch.nn.Linear)]
    hidden = network.features[0]

    bound = math.sqrt(2) / math.sqrt(hidden.in_features)
    assert 0.95 * bound < float(hidden.weight.detach().abs().max()) <= bound
    last = network.heads[Head.OP][-1]
    assert float(last.weight.detach().abs().max()) <= 0.01 / math.sqrt(last.in_features)
    assert all(not bool(layer.bias.any()) for layer in layers)


def test_lstm_starts_by_remembering() -> None:
    lstm, hidden = small_network().lstm, 16

    for bias in (lstm.bias_ih_l0, lstm.bias_hh_l0):
        expected = torch.zeros(4 * hidden)
        expected[hidden : 2 * hidden] = 1.0
        assert torch.equal(bias, expected)


@pytest.mark.parametrize("index", [-2, 13])
def test_blueprint_outside_of_the_table_is_refused(index: int) -> None:
    network = small_network()
    obs, blueprints = random_inputs(generator(), 2)

    with pytest.raises(IndexError):
        network.step(obs, blueprints.fill_(index), network.initial_state(2))


@pytest.mark.parametrize("has_starts", [False, True])
def test_unrolled_rows_equal_single_steps(has_starts: bool) -> None:
    network = sharpened(small_network())
    num_envs, num_steps = 5, 12
    obs, blueprints = random_inputs(generator(1), num_envs, num_steps)
    starts = (torch.rand(num_envs, num_steps, generator=generator(2)) < 0.2) & has_starts
    starts[:, 0] = True
    cuts = starts[:, 1:].any(0).nonzero().flatten().add(1).tolist()

    whole = network.unroll(obs, blueprints, starts, cuts)

    state = network.initial_state(num_envs)
    for step in range(num_steps):
        state = state.cleared(starts[:, step])
        single = network.step(obs[:, step], blueprints[:, step], state)
        state = single.state
        torch.testing.assert_close(whole.logits[:, step], single.logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(whole.values[:, step], single.values, atol=1e-5, rtol=0)
    torch.testing.assert_close(whole.state.h, state.h, atol=1e-5, rtol=0)
    torch.testing.assert_close(whole.state.c, state.c, atol=1e-5, rtol=0)


def test_nothing_before_a_segment_start_reaches_behind_it() -> None:
    network = small_network()
    obs, blueprints = random_inputs(generator(1), 2, 6)
    starts = torch.zeros(2, 6, dtype=torch.bool)
    starts[:, 0] = starts[0, 3] = True
    changed = obs.clone()
    changed[:, :3] = float("nan")

    before = network.unroll(obs, blueprints, starts, [3]).values
    after = network.unroll(changed, blueprints, starts, [3]).values

    assert torch.equal(before[0, 3:], after[0, 3:])
    assert bool(after[1, 3:].isnan().all())


def decide(network: PolicyNetwork, *, seed: int | None, num_envs: int = 64):
    obs, blueprints = random_inputs(generator(1), num_envs)
    masks = random_masks(generator(2), num_envs)
    uniforms = None if seed is None else draw_uniforms(num_envs, generator(seed))
    state = network.initial_state(num_envs)
    return masks, network.decide(obs, blueprints, masks, state, uniforms=uniforms)


@pytest.mark.parametrize("num_envs", [2, 3, 8, 17, 64])
def test_decision_about_an_env_has_the_same_bits_whatever_stands_in_other_rows(
    num_envs: int,
) -> None:
    network = sharpened(small_network())
    masks, uniforms = random_masks(generator(2), num_envs), draw_uniforms(num_envs, generator(3))
    obs, blueprints = random_inputs(generator(1), num_envs)
    state = random_state(4, num_envs)
    expected = network.decide(obs, blueprints, masks, state, uniforms=uniforms)
    for seed in range(5, 15):
        kept = torch.rand(num_envs, generator=generator(seed)) < 0.5
        row = kept.unsqueeze(1)
        others, planted = random_inputs(generator(seed), num_envs)
        elsewhere = random_state(seed, num_envs).replaced(kept, state)
        found = network.decide(
            obs.where(row, 100.0 * others),
            blueprints.where(row, planted),
            masks,
            elsewhere,
            uniforms=uniforms,
        )

        for name in ("actions", "log_probs", "diagnostics"):
            assert torch.equal(getattr(found, name)[:, kept], getattr(expected, name)[:, kept])
        assert torch.equal(found.state.h[kept], expected.state.h[kept])
        assert torch.equal(found.state.c[kept], expected.state.c[kept])


def random_state(seed: int, num_envs: int) -> LstmState:
    size = (num_envs, SPEC.hidden_dim)
    return LstmState(
        h=torch.randn(size, generator=generator(seed)),
        c=torch.randn(size, generator=generator(seed + 1)),
    )


def test_decision_is_legal_in_every_head_under_its_own_op() -> None:
    network = sharpened(small_network())
    for seed in (None, 3, 4):
        masks, decision = decide(network, seed=seed)
        ops = decision.actions[OP_ROW]
        allowed = network.space.choice_masks(masks, ops)
        assert bool(masks.op.gather(1, ops.unsqueeze(1)).all())
        assert bool(allowed.gather(-1, decision.actions.T.unsqueeze(-1)).all())


def test_diagnostics_are_those_of_the_chosen_actions() -> None:
    network = sharpened(small_network())
    _, decision = decide(network, seed=3)

    confidences = decision.diagnostics[: len(HEADS)]
    num_valid = decision.diagnostics[2 * len(HEADS) : 3 * len(HEADS)]

    torch.testing.assert_close(confidences, decision.log_probs.exp())
    torch.testing.assert_close(decision.op_probabilities.sum(0), torch.ones(64))
    ops = decision.actions[OP_ROW].unsqueeze(0)
    torch.testing.assert_close(decision.op_probabilities.gather(0, ops)[0], confidences[OP_ROW])
    assert decision.diagnostics.shape == (3 * len(HEADS) + NUM_OPS + 1, 64)
    is_only_choice = num_valid == 1
    assert bool((num_valid >= 1).all())
    assert torch.equal(confidences[is_only_choice], torch.ones(int(is_only_choice.sum())))
    assert bool((decision.entropies <= 1 + 1e-6).all())


def test_value_does_not_depend_on_the_sampled_op() -> None:
    network = sharpened(small_network())
    _, one = decide(network, seed=3)
    _, other = decide(network, seed=4)

    assert not torch.equal(one.actions[OP_ROW], other.actions[OP_ROW])
    assert torch.equal(one.values, other.values)


def test_same_generator_state_gives_the_same_decision() -> None:
    network = sharpened(small_network())
    _, one = decide(network, seed=3)
    _, same = decide(network, seed=3)

    assert torch.equal(one.actions, same.actions)
    assert torch.equal(one.log_probs, same.log_probs)


def test_deciding_leaves_the_global_generator_alone() -> None:
    network = small_network()
    before = torch.get_rng_state()

    decide(network, seed=3)

    assert torch.equal(before, torch.get_rng_state())


def test_likeliest_decision_takes_the_likeliest_op() -> None:
    _, decision = decide(sharpened(small_network()), seed=None)

    assert torch.equal(decision.actions[OP_ROW], decision.op_probabilities.argmax(0))


def test_waiting_targets_the_first_enabled_slot() -> None:
    network = small_network()
    masks, decision = decide(network, seed=3)
    is_waiting = decision.actions[OP_ROW] == Op.WAIT

    first = masks.slot_by_op[:, Op.WAIT].int().argmax(-1)

    assert int(is_waiting.sum()) > 0
    slots = decision.actions[HEADS.index(Head.SLOT)]
    assert torch.equal(slots[is_waiting], first[is_waiting])


@pytest.mark.parametrize("name", ["q", "contribution"])
def test_no_gradient_of_telemetry_heads_reaches_the_shared_layers(name: str) -> None:
    network = small_network()
    obs, blueprints = random_inputs(generator(1), 3)
    output = network.step(obs, blueprints, network.initial_state(3))
    ops = torch.zeros(3, dtype=torch.long)
    result = (
        network.q_values(output.hidden, ops)
        if name == "q"
        else network.contributions(output.hidden)
    )

    result.sum().backward()

    reached = {
        key.split(".")[0] for key, item in network.named_parameters() if item.grad is not None
    }
    assert reached == {name}


def test_cleared_rows_forget_and_the_others_do_not() -> None:
    state = LstmState(h=torch.ones(3, 2), c=torch.full((3, 2), float("nan")))

    cleared = state.cleared(torch.tensor([False, True, False]))

    assert cleared.h.tolist() == [[1, 1], [0, 0], [1, 1]]
    assert cleared.c[1].tolist() == [0, 0]


def test_every_head_has_a_finite_gradient_under_autocast_after_a_decision() -> None:
    network = small_network()
    obs, blueprints = random_inputs(generator(1), 4)
    masks = random_masks(generator(2), 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        decision = network.decide(
            obs,
            blueprints,
            masks,
            network.initial_state(4),
            uniforms=draw_uniforms(4, generator(3)),
        )
        output = network.step(obs, blueprints, network.initial_state(4))
        chosen = network.space.distributions(output.logits, torch.ones_like(output.logits).bool())
        (chosen.entropy().sum() + output.values.sum()).backward()

    assert decision.log_probs.dtype == output.logits.dtype == torch.float32
    for head in network.heads.values():
        for parameter in head.parameters():
            assert parameter.grad is not None
            assert bool(torch.isfinite(parameter.grad).all())


def test_groups_of_parameters_are_the_parts_of_the_network_each_parameter_once() -> None:
    network = small_network()
    *heads, value, q, rest = network.parameter_groups
    parts = [*network.heads.values(), network.value, network.q]
    for group, part in zip((*heads, value, q), parts, strict=True):
        assert [id(item) for item in group] == [id(item) for item in part.parameters()]
    everything = [id(item) for group in network.parameter_groups for item in group]
    assert sorted(everything) == sorted(id(item) for item in network.parameters())
    assert id(network.lstm.weight_hh_l0) in [id(item) for item in rest]


class GraphDouble:
    """`torch.compile` as CUDA graphs do it: every call returns the same memory."""

    def __init__(self) -> None:
        self.num_rows: list[int] = []
        self._room: PolicyOutput | None = None

    def __call__(self, function: Callable[..., PolicyOutput], **options: object) -> Any:
        def replay(obs: Tensor, blueprints: Tensor, state: LstmState) -> PolicyOutput:
            self.num_rows.append(len(obs))
            output = function(obs, blueprints, state)
            if self._room is None:
                self._room = output
            for room, value in zip(tensors_of(self._room), tensors_of(output), strict=True):
                room.copy_(value)
            return self._room

        return replay


def tensors_of(output: PolicyOutput) -> tuple[Tensor, ...]:
    return (output.logits, output.values, output.hidden, output.state.h, output.state.c)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_a_state_from_a_cuda_graph_survives_the_next_decision(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fed_back(small_network())
    monkeypatch.setattr(torch, "compile", GraphDouble())
    compiled = small_network()
    compiled.compile_step(mode)

    for state, other in zip(fed_back(compiled), expected, strict=True):
        assert torch.equal(state.h, other.h)
        assert torch.equal(state.c, other.c)


def fed_back(network: PolicyNetwork) -> list[LstmState]:
    """Return the states of three decisions, each made with the state of the one before."""
    states = [network.initial_state(5)]
    masks = random_masks(generator(2), 5)
    for number in range(3):
        obs, blueprints = random_inputs(generator(number), 5)
        decision = network.decide(obs, blueprints, masks, states[-1], uniforms=None)
        states.append(decision.state)
    return states


def test_only_decisions_of_all_envs_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    network, double = small_network(), GraphDouble()
    monkeypatch.setattr(torch, "compile", double)
    network.compile_step("reduce-overhead")

    network.warm_up(5)
    decide(network, seed=0, num_envs=5)
    obs, blueprints = random_inputs(generator(), 3)
    network.step(obs, blueprints, network.initial_state(3))

    assert double.num_rows == [5, 5]
