"""The rollout buffer: a round's transitions of all envs, divided into segments.

Row t of an env is its step t. A step lost to a governor's rollback, or missing because the env is
quarantined, leaves an invalid row. A segment is a run of consecutive valid rows through which LSTM
state and advantages propagate; it ends terminal or truncated, and the next row starts another.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

import torch
from torch import Tensor

from esper.leyline.actions import HEADS, Head, head_sizes
from esper.leyline.errors import ContractError
from esper.leyline.messages import PenaltyOutcome
from esper.tamiyo.mask_types import ActionMasks
from esper.tamiyo.network import Decision

__all__ = ["RolloutBatch", "RolloutBuffer", "StepRows"]

MASK_HEADS: Final = tuple(head for head in HEADS if head is not Head.SLOT)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRows:
    """The rows that one step of all envs adds."""

    obs: Tensor  # [N, D], normalised
    blueprints: Tensor  # int64 [N, S]
    masks: ActionMasks
    decision: Decision
    effective_ops: Sequence[int]
    is_forced: Sequence[bool]
    """Whether WAIT was the only legal op."""
    rewards: Sequence[float]
    """Raw rewards: the round is normalised as a whole."""
    contributions: Tensor  # [N, S], percentage points
    is_measured: Tensor  # bool [N, S]: contributions that were measured in this step


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutBatch:
    """The transitions of a round; every tensor is [N, T, ...]."""

    obs: Tensor
    blueprints: Tensor
    masks: ActionMasks
    actions: Tensor  # [N, T, K]
    log_probs: Tensor  # [N, T, K], as sampled
    values: Tensor
    effective_ops: Tensor
    is_forced: Tensor
    rewards: Tensor  # raw; where forfeited, 0 but for the penalty of a rollback
    is_forfeited: Tensor  # belongs to a segment that ended in a rollback
    contributions: Tensor
    is_measured: Tensor
    valid: Tensor
    starts: Tensor
    ends: Tensor
    is_truncated: Tensor  # an end after which the return goes on
    bootstrap_values: Tensor  # as the value head gives them; meaningless unless truncated

    def first_steps(self, num_steps: int) -> "RolloutBatch":
        """Return the batch without the steps that were not recorded."""
        return RolloutBatch(
            masks=_first_mask_steps(self.masks, num_steps),
            **{
                item.name: getattr(self, item.name)[:, :num_steps]
                for item in fields(self)
                if item.name != "masks"
            },
        )


def _first_mask_steps(masks: ActionMasks, num_steps: int) -> ActionMasks:
    return ActionMasks(
        slot_by_op=masks.slot_by_op[:, :num_steps],
        **{head: getattr(masks, head)[:, :num_steps] for head in MASK_HEADS},
    )


def _allocate(
    *,
    num_envs: int,
    num_steps: int,
    obs_dim: int,
    num_slots: int,
    num_added: int,
    device: torch.device | str,
) -> RolloutBatch:
    shape = (num_envs, num_steps)
    sizes = head_sizes(num_slots, num_added)
    flags = torch.zeros(*shape, dtype=torch.bool, device=device)
    numbers = torch.zeros(*shape, device=device)
    slots = numbers.new_zeros(*shape, num_slots)
    heads = numbers.new_zeros(*shape, len(HEADS))
    return RolloutBatch(
        obs=numbers.new_zeros(*shape, obs_dim),
        blueprints=slots.new_full(slots.shape, -1, dtype=torch.long),
        masks=ActionMasks(
            slot_by_op=flags.new_zeros(*shape, sizes[Head.OP], num_slots),
            **{head: flags.new_zeros(*shape, sizes[head]) for head in MASK_HEADS},
        ),
        actions=heads.long(),
        log_probs=heads,
        values=numbers.clone(),
        effective_ops=numbers.long(),
        is_forced=flags.clone(),
        rewards=numbers.clone(),
        is_forfeited=flags.clone(),
        contributions=slots.clone(),
        is_measured=slots.bool(),
        valid=flags.clone(),
        starts=flags.clone(),
        ends=flags.clone(),
        is_truncated=flags.clone(),
        bootstrap_values=numbers,
    )


@dataclass(eq=False, slots=True)
class RolloutBuffer:
    """Collects one round of all envs and closes their segments."""

    num_envs: int
    num_steps: int
    obs_dim: int
    num_slots: int
    num_added: int = 0
    """Blueprints that the run adds."""
    device: torch.device | str = "cpu"
    rollback_count: int = field(default=0, init=False)
    rollback_steps_forfeited: int = field(default=0, init=False)
    unattributed_penalties: int = field(default=0, init=False)
    num_recorded_steps: int = field(default=0, init=False)
    num_rows: int = field(default=0, init=False)
    """Number of valid rows so far."""
    _rows: RolloutBatch = field(init=False, repr=False)
    _segment_starts: list[list[int]] = field(init=False, repr=False)
    _open_since: list[int | None] = field(init=False, repr=False)
    _last_rows: list[int] = field(init=False, repr=False)
    _awaiting_bootstrap: set[tuple[int, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Clear the buffer for a new round."""
        # Fresh tensors: updates and diagnostics may still hold views of the last round's.
        self._rows = _allocate(
            num_envs=self.num_envs,
            num_steps=self.num_steps,
            obs_dim=self.obs_dim,
            num_slots=self.num_slots,
            num_added=self.num_added,
            device=self.device,
        )
        self._segment_starts = [[] for _ in range(self.num_envs)]
        self._open_since = [None] * self.num_envs
        self._last_rows = [-1] * self.num_envs
        self._awaiting_bootstrap = set()
        self.num_recorded_steps = 0
        self.num_rows = 0
        self.rollback_count = 0
        self.rollback_steps_forfeited = 0
        self.unattributed_penalties = 0

    def record(self, step: int, rows: StepRows, env_ids: Sequence[int]) -> None:
        """Add the next step of these envs; the rows of the others stay invalid."""
        if step != self.num_recorded_steps or step >= self.num_steps:
            raise ContractError(
                f"rollout buffer: got step {step}, expected step {self.num_recorded_steps} "
                f"of {self.num_steps}"
            )
        self.num_recorded_steps += 1
        self.num_rows += len(env_ids)
        for env_id in env_ids:
            self._open_row(env_id, step, rows.rewards[env_id])
        envs = torch.tensor(env_ids, dtype=torch.long, device=self.device)
        for name, source in self._columns(rows).items():
            getattr(self._rows, name)[envs, step] = source[envs]
        for head in MASK_HEADS:
            getattr(self._rows.masks, head)[envs, step] = getattr(rows.masks, head)[envs]
        self._rows.masks.slot_by_op[envs, step] = rows.masks.slot_by_op[envs]
        self._rows.valid[envs, step] = True

    def truncate(self, env_id: int) -> int | None:
        """Truncate the env's segment; return the step that needs a bootstrap value."""
        last = self._close(env_id)
        if last is not None:
            self._awaiting_bootstrap.add((env_id, last))
            # A truncated end without its bootstrap value would pass for a terminal one; `batch`
            # refuses it.
            self._rows.is_truncated[env_id, last] = True
        return last

    def terminate(self, env_id: int) -> int | None:
        """Terminate the env's segment: it has no bootstrap value."""
        return self._close(env_id)

    def end_segment_with_penalty(self, env_id: int, penalty: float) -> PenaltyOutcome:
        """End the env's segment by a rollback: its last reward is the penalty, the others are 0."""
        since = self._open_since[env_id]
        last = self.terminate(env_id)
        self.rollback_count += 1
        if since is None or last is None:
            # A panic before the first row of a segment: no decision led to it, so none is punished.
            self.unattributed_penalties += 1
            return PenaltyOutcome(blamed_step=None, num_steps_forfeited=0)
        self._rows.rewards[env_id, since : last + 1] = 0.0
        self._rows.is_forfeited[env_id, since : last + 1] = True
        self._rows.rewards[env_id, last] = penalty
        num_forfeited = last + 1 - since
        self.rollback_steps_forfeited += num_forfeited
        return PenaltyOutcome(blamed_step=last, num_steps_forfeited=num_forfeited)

    def discard_segment(self, env_id: int) -> None:
        """Discard the open segment of a failed env, whose outcome is unknown."""
        since = self._open_since[env_id]
        last = self._close(env_id)
        if since is not None and last is not None:
            for flags in (self._rows.valid, self._rows.starts, self._rows.ends):
                flags[env_id, since : last + 1] = False
            # The start of the discarded segment; the env has failed and will open no other.
            self._segment_starts[env_id].pop()
            self.num_rows -= last + 1 - since

    def set_bootstrap_values(self, targets: Sequence[tuple[int, int]], values: Tensor) -> None:
        """Store V of the state after each truncated (env, step), in the order of the targets."""
        unexpected = [target for target in targets if target not in self._awaiting_bootstrap]
        if unexpected or len(values) != len(targets):
            raise ContractError(
                f"rollout buffer: {len(values)} bootstrap values for {list(targets)}, "
                f"expected {sorted(self._awaiting_bootstrap)}"
            )
        envs, steps = torch.tensor(targets, dtype=torch.long).reshape(-1, 2).unbind(1)
        self._rows.bootstrap_values[envs, steps] = values.to(self._rows.values)
        self._awaiting_bootstrap.difference_update(targets)

    def num_open_steps(self, env_id: int) -> int:
        """Return the length of the env's open segment; 0 if none is open."""
        since = self._open_since[env_id]
        return 0 if since is None else self._last_rows[env_id] + 1 - since

    def batch(self) -> RolloutBatch:
        """Return the finished round."""
        unfinished = [env for env, since in enumerate(self._open_since) if since is not None]
        if unfinished or self._awaiting_bootstrap:
            raise ContractError(
                f"rollout buffer: envs {unfinished} have an open segment, "
                f"{sorted(self._awaiting_bootstrap)} lack a bootstrap value"
            )
        return self._rows.first_steps(self.num_recorded_steps)

    def cuts(self) -> list[list[int]]:
        """Return, for each env, the steps other than the first at which a segment starts."""
        return [[step for step in starts if step > 0] for starts in self._segment_starts]

    def _open_row(self, env_id: int, step: int, reward: float) -> None:
        if not math.isfinite(reward):
            raise ContractError(f"env {env_id}, step {step}: reward {reward} is not finite")
        if self._open_since[env_id] is None:
            self._open_since[env_id] = step
            self._segment_starts[env_id].append(step)
            self._rows.starts[env_id, step] = True
        elif self._last_rows[env_id] != step - 1:
            raise ContractError(
                f"env {env_id}, step {step}: the previous step is missing, but its segment is open"
            )
        self._last_rows[env_id] = step

    def _close(self, env_id: int) -> int | None:
        """End the open segment at its last row; return that row's step, or None if none is open."""
        if self._open_since[env_id] is None:
            return None
        self._open_since[env_id] = None
        last = self._last_rows[env_id]
        self._rows.ends[env_id, last] = True
        return last

    def _columns(self, rows: StepRows) -> Mapping[str, Tensor]:
        decision = rows.decision
        return {
            "obs": rows.obs,
            "blueprints": rows.blueprints,
            "actions": decision.actions.T,
            "log_probs": decision.log_probs.T,
            "values": decision.values,
            "effective_ops": torch.tensor(rows.effective_ops, device=self.device),
            "is_forced": torch.tensor(rows.is_forced, device=self.device),
            "rewards": torch.tensor(rows.rewards, dtype=torch.float32, device=self.device),
            "contributions": rows.contributions,
            "is_measured": rows.is_measured,
        }
