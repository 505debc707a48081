"""The trial of a seed in isolation: how much of what it learned helps the host of this moment."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from esper.kasmina.slot import SeedSlot

__all__ = ["SHARES", "TRIAL_BATCHES", "keep_what_helps"]

TRIAL_BATCHES: Final = 16
"""The last training batches of a pass, on which seeds are tried: 800 images on `digits`."""

SHARES: Final = (1.0, 0.5, 0.25)
"""How much of what it learned a seed may keep, besides nothing."""


@torch.no_grad()
def keep_what_helps(
    slot: SeedSlot, own_loss: Tensor, loss_switched_on: Callable[[], Tensor]
) -> None:
    """Move a seed's weights back towards their birth, to where the network's loss is lowest.

    A seed learns from the batches of a pass, beside a host that moves on with each of them. Without
    a look at the result, what it learned can be far off at the end, and stay so.

    Args:
        slot: has a seed in isolation.
        own_loss: the loss of the network without the seed, which a seed at its birth does not
            change.
        loss_switched_on: returns the loss, on the same data, of the network with the seed fully on.
    """
    learned = slot.weights()
    shares = torch.tensor((*SHARES, 0.0), device=own_loss.device)
    losses = []
    for share in shares[:-1]:
        slot.set_weights_between(learned, share)
        losses.append(loss_switched_on())
    # Chosen on the device, without synchronization. A loss that is not a number counts as the
    # lowest: a broken seed stays as it is, for the gates to see.
    best = torch.stack((*losses, own_loss)).argmin()
    slot.set_weights_between(learned, shares.take(best))
