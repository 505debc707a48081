"""The action masks as tensors, shared by the masker, the policy and the rollout buffer."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionMasks:
    """Which choices are legal, for all envs at once."""

    op: Tensor  # bool [N, 6]
    slot_by_op: Tensor  # bool [N, 6, S]; the WAIT row contains the enabled slots
    blueprint: Tensor  # bool [N, blueprints]
    style: Tensor  # bool [N, 4]
    tempo: Tensor  # bool [N, 3]
    alpha_target: Tensor  # bool [N, 3]
    alpha_speed: Tensor  # bool [N, 4]
    alpha_curve: Tensor  # bool [N, 5]
