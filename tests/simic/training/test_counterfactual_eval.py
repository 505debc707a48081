"""The fused validation pass: every ablation as by itself, on the whole split, once."""

from contextlib import nullcontext

import pytest
from tests.builders.messages import make_report
from tests.kasmina.tools import has_same_bits
from tests.simic.training.envs import (
    IMAGES,
    NUM_VAL,
    SLOTS,
    TASKS,
    TEXT,
    batch_of,
    grow,
    world_of,
)

from esper.leyline.alpha import AlphaState
from esper.leyline.reports import SeedReport
from esper.leyline.rewards import RewardMode
from esper.leyline.stages import Stage
from esper.leyline.tasks import TaskSpec
from esper.simic.attribution.configurations import AblationPlan, AblationStrategy
from esper.simic.training.batch_ops import loss_and_correct, process_val_batch
from esper.simic.training.counterfactual_eval import (
    build_ablation_plan,
    coalitions_of,
    materialize_attribution,
    process_fused_val_batch,
)
from esper.simic.training.parallel_env_state import ParallelEnvState

tasks = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def plan_for(
    reports: tuple[SeedReport, ...],
    *,
    is_last_step: bool = False,
    reward_mode: RewardMode = RewardMode.SHAPED,
    env_id: int = 0,
) -> AblationPlan:
    return build_ablation_plan(
        reports,
        is_last_step=is_last_step,
        reward_mode=reward_mode,
        seed=3,
        round_index=1,
        env_id=env_id,
    )


def grown_env(task: TaskSpec = IMAGES) -> ParallelEnvState:
    """Return an env with a fossil and two blended seeds."""
    env = world_of(task).env
    for slot_id, stage in zip(
        SLOTS, (Stage.FOSSILIZED, Stage.BLENDING, Stage.HOLDING), strict=True
    ):
        grow(env, slot_id, stage)
    env.model.eval()
    return env


@tasks
def test_every_ablation_is_measured_as_if_it_were_alone(task: TaskSpec) -> None:
    env = grown_env(task)
    plan = plan_for(env.reports, is_last_step=True)
    assert len(plan.ablations) == 5
    env.start_validation(len(plan.ablations))
    batches = [batch_of(task, seed=1), batch_of(task, num_rows=3, seed=2)]
    for batch in batches:
        process_fused_val_batch(env, batch, plan, nullcontext)
    for index, ablation in enumerate(plan.ablations):
        env_loss, env_correct = 0.0, 0.0
        for batch in batches:
            with env.fence.entered(is_training=False):
                logits = env.model(batch.inputs, ablation)
                loss, correct = loss_and_correct(logits, batch.targets)
            env_loss = env_loss + loss * batch.targets.numel()
            env_correct = env_correct + correct
        assert has_same_bits(env.val.loss[index], env_loss)
        assert env.val.correct[index] == env_correct


@tasks
def test_the_network_as_it_is_measures_the_same_with_and_without_ablations(task: TaskSpec) -> None:
    env = grown_env(task)
    plan = plan_for(env.reports, is_last_step=True)
    env.start_validation(len(plan.ablations))
    process_fused_val_batch(env, batch_of(task), plan, nullcontext)
    fused, total = env.val, env.val.total
    env.start_validation(1)
    process_val_batch(env, batch_of(task), nullcontext)
    assert has_same_bits(fused.loss[:1], env.val.loss)
    assert has_same_bits(fused.correct[:1], env.val.correct)
    assert total == env.val.total


@pytest.mark.parametrize("num_seeds", [0, 1, 3])
def test_the_watched_loss_does_not_depend_on_how_many_ablations_there_are(num_seeds: int) -> None:
    world = world_of()
    for slot_id in SLOTS[:num_seeds]:
        grow(world.env, slot_id, Stage.HOLDING)
    [evidence] = world.validate()
    assert len(evidence.coalitions) == (2**num_seeds if num_seeds else 0)
    world.env.start_validation(1)
    for [batch] in world.work.validation(0):
        process_val_batch(world.env, batch, nullcontext)
    [alone], _ = world.env.val.materialize_means()
    assert world.env.governor.signs.losses == (alone,) == (evidence.signals.val_loss,)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("val_batch_size", [4, 8, 64])
def test_every_env_validates_on_the_whole_split(n_envs: int, val_batch_size: int) -> None:
    world = world_of(n_envs=n_envs, val_batch_size=val_batch_size)
    assert [evidence.val_samples for evidence in world.validate()] == [NUM_VAL] * n_envs


def test_a_language_model_validates_on_every_token_of_the_split() -> None:
    [evidence] = world_of(TEXT).validate()
    assert evidence.val_samples == NUM_VAL * TEXT.host.block_size


def test_accuracy_does_not_depend_on_how_the_split_is_cut() -> None:
    accuracies = {
        world_of(val_batch_size=size).validate()[0].signals.val_accuracy_pct for size in (5, 8, 21)
    }
    assert len(accuracies) == 1


@tasks
@pytest.mark.parametrize("val_batch_size", [5, 8, 20])
def test_losses_of_every_ablation_do_not_depend_on_how_the_split_is_cut(
    task: TaskSpec, val_batch_size: int
) -> None:
    whole, cut = (losses_of_split(task, val_batch_size=size) for size in (NUM_VAL, val_batch_size))
    assert len(whole) == 4
    # Behind a seed that is off, batch norms know their own batch only.
    num_independent = 1 if task is IMAGES else 4
    assert cut[:num_independent] == pytest.approx(whole[:num_independent], rel=1e-5)
    assert cut == pytest.approx(whole, rel=0.05)


def losses_of_split(task: TaskSpec, *, val_batch_size: int) -> list[float]:
    """Return the validation losses of two seeds' coalitions."""
    world = world_of(task, val_batch_size=val_batch_size)
    for slot_id in SLOTS[:2]:
        grow(world.env, slot_id, Stage.HOLDING)
    [evidence] = world.validate()
    assert evidence.signals.val_loss == evidence.coalitions[0].loss
    return [coalition.loss for coalition in evidence.coalitions]


def test_evidence_weighs_what_the_pass_measured() -> None:
    env = grown_env()
    plan = plan_for(env.reports)
    env.start_validation(len(plan.ablations))
    process_fused_val_batch(env, batch_of(), plan, nullcontext)
    losses, accuracies, attribution = materialize_attribution(env, plan)
    assert len(losses) == len(accuracies) == 4
    assert attribution.accuracy_pct == accuracies[0]
    for slot_id in SLOTS[1:]:
        off = next(i for i, it in enumerate(plan.ablations) if it.off == {slot_id})
        seed = attribution.of(slot_id)
        assert seed is not None
        assert seed.contribution_pp == accuracies[0] - accuracies[off]
    assert attribution.of(SLOTS[0]) is None
    coalitions = coalitions_of(plan, losses, accuracies)
    assert {result.seeds_on for result in coalitions} == {
        (),
        ("r0c1",),
        ("r0c2",),
        ("r0c1", "r0c2"),
    }


def test_without_seeds_there_are_no_coalitions() -> None:
    plan = plan_for(())
    assert len(plan.ablations) == 1
    assert coalitions_of(plan, [1.0], [50.0]) == ()


# --- Plans ---------------------------------------------------------------------------------------


def blended(*slot_ids: str, stage: Stage = Stage.HOLDING) -> tuple[SeedReport, ...]:
    alpha = AlphaState(alpha=1.0, target=1.0)
    return tuple(make_report(slot_id, stage, alpha=alpha) for slot_id in slot_ids)


@pytest.mark.parametrize(
    ("is_last_step", "mode", "is_measured"),
    [
        (False, RewardMode.SHAPED, False),
        (True, RewardMode.SHAPED, True),
        (False, RewardMode.BASIC_PLUS, True),
    ],
)
def test_fossils_are_left_out_at_the_end_and_where_they_are_paid_by_the_step(
    is_last_step: bool, mode: RewardMode, is_measured: bool
) -> None:
    reports = blended("r0c0", stage=Stage.FOSSILIZED)
    plan = plan_for(reports, is_last_step=is_last_step, reward_mode=mode)
    assert plan.fossils == (("r0c0",) if is_measured else ())


MANY = tuple(f"r0c{index}" for index in range(5))


def test_orders_of_joining_are_sampled_at_the_end_where_there_are_too_many_seeds() -> None:
    reports = blended(*MANY)
    assert plan_for(reports).permutations == ()
    plan = plan_for(reports, is_last_step=True)
    assert plan.strategy is AblationStrategy.LEAVE_ONE_OUT
    assert len(plan.permutations) == 20
    assert all(sorted(order) == sorted(MANY) for order in plan.permutations)
    assert {order[::-1] for order in plan.permutations} == set(plan.permutations)


def test_the_sampled_orders_belong_to_the_env() -> None:
    reports = blended(*MANY)
    first, again, other = (
        plan_for(reports, is_last_step=True, env_id=env_id).permutations for env_id in (0, 0, 1)
    )
    assert first == again != other
