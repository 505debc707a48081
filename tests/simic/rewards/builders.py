"""Schemes, seeds and inputs of which a test says only what matters to it."""

from esper.leyline.actions import Op
from esper.leyline.config import TrainingConfig
from esper.leyline.rewards import (
    LossRewardConfig,
    RewardComponents,
    RewardConfig,
    RewardFamily,
    RewardInputs,
    RewardMemory,
    RewardMode,
    RewardResult,
    SeedRewardInputs,
    SlotMemory,
)
from esper.leyline.stages import Stage
from esper.leyline.tasks import task_named
from esper.simic.rewards.dispatcher import compute_reward
from esper.simic.rewards.scheme import RewardScheme, scheme_of

GAMMA = 0.995


def scheme(
    mode: RewardMode = RewardMode.SHAPED,
    family: RewardFamily = RewardFamily.CONTRIBUTION,
    loss: LossRewardConfig | None = None,
    **constants,
) -> RewardScheme:
    """Return the scheme of the digits task with some constants replaced."""
    config = TrainingConfig(
        reward_family=family,
        reward_mode=mode,
        reward=RewardConfig(**constants),
        loss_reward=loss or LossRewardConfig(),
    )
    return scheme_of(config, task_named("digits"))


def seed(slot_id: str = "r0c0", stage: Stage = Stage.HOLDING, **changes) -> SeedRewardInputs:
    """Return a seed that started late enough for no timing discount."""
    facts = {
        "slot_id": slot_id,
        "seed_id": f"seed in {slot_id}",
        "stage": stage,
        "steps_in_stage": 1,
        "age_steps": 20,
        "alpha": 0.0,
        "num_params": 0,
    }
    return SeedRewardInputs(**{**facts, **changes})


def worth(x: float, slot_id: str = "r0c0", stage: Stage = Stage.HOLDING, **changes):
    """Return a seed whose contribution and own share are both x, with more progress than that."""
    facts = {
        "contribution_pp": x,
        "attributed_pp": x,
        "progress_since_germination_pp": abs(x) + 10.0,
    }
    return seed(slot_id, stage, **{**facts, **changes})


def inputs(*seeds: SeedRewardInputs, **changes) -> RewardInputs:
    """Return the inputs of a step in the middle of an episode that waits."""
    facts = {
        "op": Op.WAIT,
        "step": 50,
        "num_steps": 100,
        "val_accuracy_pct": 60.0,
        "stable_accuracy_pct": 60.0,
        "val_loss": 1.0,
        "committed_accuracy_pct": 50.0,
        "host_params": 1000,
        "seeds": seeds,
    }
    return RewardInputs(**{**facts, **changes})


def acting(op: Op, *seeds: SeedRewardInputs, **changes) -> RewardInputs:
    """Return the inputs of a step that acts on the first slot."""
    return inputs(*seeds, **{"op": op, "target_slot": "r0c0", **changes})


def remembered(slot_id: str = "r0c0", **changes) -> RewardMemory:
    """Return a memory of one seed."""
    facts = {"slot_id": slot_id, "seed_id": f"seed in {slot_id}", "alpha": 0.0, "num_params": 0}
    return RewardMemory(slots=(SlotMemory(**{**facts, **changes}),))


def result(of: RewardInputs, mode: RewardMode = RewardMode.SHAPED, **constants) -> RewardResult:
    """Compute the reward of a mode of the contribution family."""
    return compute_reward(of, scheme(mode, **constants))


def terms(of: RewardInputs, mode: RewardMode = RewardMode.SHAPED, **constants) -> RewardComponents:
    """Return the components of that reward."""
    return result(of, mode, **constants).components
