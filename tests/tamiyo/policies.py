"""Small policies and random masks for tests."""

import torch
from torch import Tensor

from esper.leyline.actions import Head, Op, head_sizes
from esper.tamiyo.mask_types import ActionMasks
from esper.tamiyo.network import PolicyNetwork, PolicySpec

# Small tensors gain nothing from threads, and lose a lot where cores are busy.
torch.set_num_threads(1)

NUM_SLOTS = 3
OBS_DIM = 10
SPEC = PolicySpec(obs_dim=OBS_DIM, num_slots=NUM_SLOTS, feature_dim=24, hidden_dim=16)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_network(seed: int = 0, spec: PolicySpec = SPEC) -> PolicyNetwork:
    return PolicyNetwork(spec, generator(seed))


def sharpened(network: PolicyNetwork, factor: float = 300.0) -> PolicyNetwork:
    """Make a new network opinionated: its initial policy is close to uniform."""
    with torch.no_grad():
        for head in network.heads.values():
            head[-1].weight *= factor
    return network


def some_of(shape: tuple[int, ...], gen: torch.Generator) -> Tensor:
    """Return random flags of which each last row has at least one set."""
    flags = torch.rand(shape, generator=gen) < 0.5
    chosen = torch.randint(shape[-1], (*shape[:-1], 1), generator=gen)
    return flags.scatter(-1, chosen, True)


def random_masks(gen: torch.Generator, *shape: int, num_slots: int = NUM_SLOTS) -> ActionMasks:
    """Return masks as legality makes them: WAIT always legal, no legal op without a slot."""
    sizes = head_sizes(num_slots)
    slot_by_op = torch.rand((*shape, len(Op), num_slots), generator=gen) < 0.4
    slot_by_op[..., Op.WAIT, :] = True
    blueprint = some_of((*shape, sizes[Head.BLUEPRINT] - 1), gen)
    return ActionMasks(
        op=slot_by_op.any(-1),
        slot_by_op=slot_by_op,
        blueprint=torch.cat((torch.zeros((*shape, 1), dtype=torch.bool), blueprint), -1),
        style=some_of((*shape, sizes[Head.STYLE]), gen),
        tempo=some_of((*shape, sizes[Head.TEMPO]), gen),
        alpha_target=some_of((*shape, sizes[Head.ALPHA_TARGET]), gen),
        alpha_speed=some_of((*shape, sizes[Head.ALPHA_SPEED]), gen),
        alpha_curve=some_of((*shape, sizes[Head.ALPHA_CURVE]), gen),
    )


def legal_ops(masks: ActionMasks, gen: torch.Generator) -> Tensor:
    """Return one legal op for each env."""
    return torch.multinomial(masks.op.float(), 1, generator=gen).squeeze(-1)


def random_inputs(gen: torch.Generator, *shape: int) -> tuple[Tensor, Tensor]:
    """Return observations and blueprint indices."""
    obs = torch.randn((*shape, OBS_DIM), generator=gen)
    return obs, torch.randint(-1, 13, (*shape, NUM_SLOTS), generator=gen)
