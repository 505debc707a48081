"""The factored action distribution: op-conditioned masks, mixture floors, sampling, entropy.

All eight heads are rows of one padded tensor, so that a decision takes a few tensor operations in
total instead of a few per head. Shapes: `...` any leading dims, K heads in canonical order, W the
width of the widest head.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from esper.leyline.actions import HEAD_SPECS, HEADS, Head, Op, causal_heads, head_sizes
from esper.tamiyo.mask_types import ActionMasks

__all__ = [
    "DEFAULT_MIXTURES",
    "NUM_HEADS",
    "OP_ROW",
    "SLOT_ROW",
    "ActionSpace",
    "AvailableMasks",
    "HeadDistributions",
]

MASKED_LOGIT: Final = -1e4
NUM_HEADS: Final = len(HEADS)
OP_ROW: Final = HEADS.index(Head.OP)
SLOT_ROW: Final = HEADS.index(Head.SLOT)
DEFAULT_MIXTURES: Final = tuple(HEAD_SPECS[head].mixture for head in HEADS)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadDistributions:
    """The eight distributions that are sampled from, after masking and mixing with the uniform."""

    masks: Tensor  # bool [..., K, W]
    probs: Tensor  # [..., K, W]
    log_probs: Tensor  # [..., K, W]

    def log_prob(self, actions: Tensor) -> Tensor:
        """Return the log-probability of each head's choice; exactly 0 for a forced choice."""
        return self.log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def confidence(self, actions: Tensor) -> Tensor:
        """Return the probability of each head's choice."""
        return self.probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        """Return each head's entropy, divided by its maximum; exactly 0 for a forced choice."""
        # log 1 is 0: a head with one choice would give 0 / 0.
        num_valid = self.masks.sum(-1).clamp_min(2)
        # 0 - x instead of -x avoids a negative zero.
        return (0.0 - (self.probs * self.log_probs).sum(-1)) / num_valid.log()

    def choose(self, uniforms: Tensor | None) -> Tensor:
        """Sample each head by inverse transform sampling; without uniforms, return the argmax.

        A masked choice adds nothing to the cumulative sum, so it is never the first to exceed the
        threshold. u·total < total holds for float32 numbers drawn by torch.rand.

        Args:
            uniforms: numbers in [0, 1), [..., heads]; the last ones belong to these heads.
        """
        if uniforms is None:
            return self.probs.argmax(-1)
        cumulative = self.probs.cumsum(-1)
        own = uniforms[..., -self.probs.shape[-2] :]
        threshold = own.unsqueeze(-1) * cumulative[..., -1:]
        return (cumulative <= threshold).sum(-1)


@dataclass(frozen=True, kw_only=True, slots=True)
class AvailableMasks:
    """The choices of each head under any legal op, independent of the sampled op."""

    masks: Tensor  # bool [..., K, W]
    has_choice: Tensor  # bool [..., K]
    """Whether some legal op uses the head, and the head has at least two choices."""


class ActionSpace(nn.Module):
    """The constant tensors of the eight heads; conditions the masks on the op."""

    causal: Tensor  # bool [ops, K]: whether the op uses the head
    neutral: Tensor  # bool [K, W]: one-hot, the value of a head that the op does not use
    mixtures: Tensor  # [K, 1]: weight of the uniform distribution
    _full_mixtures: Tensor  # [K, 1]: the same before annealing
    columns: Tensor  # int64 [K * W]: index of each padded choice in the concatenated outputs

    def __init__(
        self,
        num_slots: int,
        mixtures: tuple[float, ...] = DEFAULT_MIXTURES,
        *,
        num_added: int = 0,
    ) -> None:
        super().__init__()
        self.sizes = head_sizes(num_slots, num_added)
        self.width = max(self.sizes.values())
        causal = [[head in causal_heads(op) for head in HEADS] for op in Op]
        neutral = torch.zeros(NUM_HEADS, self.width, dtype=torch.bool)
        columns = torch.zeros(NUM_HEADS, self.width, dtype=torch.long)
        first = 0
        for row, (head, size) in enumerate(self.sizes.items()):
            neutral[row, HEAD_SPECS[head].neutral] = True
            columns[row, :size] = torch.arange(first, first + size)
            first += size
        # Buffers move with the network; none is saved, as all follow from the number of slots.
        self.register_buffer("causal", torch.tensor(causal), persistent=False)
        self.register_buffer("neutral", neutral, persistent=False)
        weights = torch.tensor(mixtures).unsqueeze(-1)
        self.register_buffer("mixtures", weights.clone(), persistent=False)
        self.register_buffer("_full_mixtures", weights, persistent=False)
        self.register_buffer("columns", columns.flatten(), persistent=False)

    def scale_mixtures(self, factor: float) -> None:
        """Set the weights of the uniform distribution to this multiple of their initial ones."""
        self.mixtures.copy_(factor * self._full_mixtures)

    def pad(self, outputs: Tensor) -> Tensor:
        """Return the heads' concatenated outputs as float32 rows [..., K, W].

        Padding repeats the first output, which is harmless because it is always masked.
        """
        rows = outputs.float().index_select(-1, self.columns)
        return rows.view(*outputs.shape[:-1], NUM_HEADS, self.width)

    def choice_masks(self, masks: ActionMasks, ops: Tensor) -> Tensor:
        """Return the masks given the op, [..., K, W].

        A head that the op does not use has its neutral value as the only choice, even if its mask
        excludes that value. The slot head's neutral value is the first legal slot of the op.
        """
        row = ops[..., None, None].expand(*ops.shape, 1, masks.slot_by_op.shape[-1])
        slots = masks.slot_by_op.gather(-2, row).squeeze(-2)
        base = self._base_masks(masks, slots)
        neutral = self.neutral.expand_as(base).clone()
        first_slot = base[..., SLOT_ROW, :]
        neutral[..., SLOT_ROW, :] = first_slot & (first_slot.cumsum(-1) == 1)
        return torch.where(self.causal[ops].unsqueeze(-1), base, neutral)

    def available_masks(self, masks: ActionMasks) -> AvailableMasks:
        """Return the union of each head's masks over the legal ops that use it."""
        legal = masks.op.unsqueeze(-1) & self.causal  # [..., ops, K]
        slots = (masks.slot_by_op & legal[..., SLOT_ROW].unsqueeze(-1)).any(-2)
        base = self._base_masks(masks, slots)
        has_choice = legal.any(-2) & (base.sum(-1) >= 2)
        return AvailableMasks(
            masks=torch.where(has_choice.unsqueeze(-1), base, self.neutral), has_choice=has_choice
        )

    def distributions(self, logits: Tensor, masks: Tensor) -> HeadDistributions:
        """Return (1 - ε)·softmax + ε·uniform over the unmasked choices; masks are [..., K, W]."""
        return _mix(logits, masks, self.mixtures)

    def op_distribution(self, logits: Tensor, masks: ActionMasks) -> HeadDistributions:
        """Return the op's distribution, [..., 1, W]; it is sampled first to mask the others."""
        padding = self.width - masks.op.shape[-1]
        mask = nn.functional.pad(masks.op, (0, padding)).unsqueeze(-2)
        return _mix(logits[..., OP_ROW:, :], mask, self.mixtures[OP_ROW:])

    def _base_masks(self, masks: ActionMasks, slots: Tensor) -> Tensor:
        by_head = {Head.SLOT: slots} | {
            head: getattr(masks, head) for head in HEADS if head is not Head.SLOT
        }
        base = masks.op.new_zeros(*masks.op.shape[:-1], NUM_HEADS, self.width)
        for row, head in enumerate(HEADS):
            base[..., row, : self.sizes[head]] = by_head[head]
        return base


def _mix(logits: Tensor, masks: Tensor, mixtures: Tensor) -> HeadDistributions:
    # A finite number rather than -inf: softmax over a row of only -inf is NaN.
    soft = logits.masked_fill(~masks, MASKED_LOGIT).softmax(-1)
    # Every legal choice keeps at least ε / n: its probability, and so its gradient, never vanishes.
    uniform = masks / masks.sum(-1, keepdim=True).clamp_min(1)
    # lerp adds ε·(uniform - soft), which is exactly 0 for a forced choice, where both are 1.
    probs = torch.lerp(soft, uniform, mixtures)
    # log(0) would be -inf and its gradient NaN, even where the result is masked afterwards.
    safe = torch.where(masks, probs, 1.0)
    return HeadDistributions(
        masks=masks, probs=probs, log_probs=torch.where(masks, safe.log(), MASKED_LOGIT)
    )
