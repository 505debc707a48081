"""The per-env work of lanes, pass by pass: the engine's EnvWork for training."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from esper.leyline.episodes import is_last_step
from esper.leyline.messages import (
    EnvEvidence,
    EnvTestResult,
    MemoryStats,
)
from esper.runtime.batches import Batch
from esper.simic.attribution.configurations import AblationPlan
from esper.simic.telemetry.gradients import seed_anomalies
from esper.simic.training.action_execution import ActionWork
from esper.simic.training.batch_ops import (
    TrainRules,
    materialize_train_pass,
    process_train_batch,
    process_trial,
    process_val_batch,
)
from esper.simic.training.checkpoints.grown import materialize_grown_state
from esper.simic.training.counterfactual_eval import (
    build_ablation_plan,
    materialize_attribution,
    process_fused_val_batch,
)
from esper.simic.training.env_factory import EnvFactoryContext, create_env_state
from esper.simic.training.parallel_env_state import ParallelEnvState
from esper.simic.training.pass_evidence import PassReadings, observe_pass
from esper.tolaria.fences import drain

__all__ = ["TrainingWork"]

HeldOutBatches = Callable[[int], Iterable[Sequence[Batch]]]
"""Iterates over a whole split in a round; each item has one sub-batch per env."""


@dataclass(eq=False, kw_only=True, slots=True)
class TrainingWork(ActionWork):
    """Runs the passes of training; implements the engine's EnvWork."""

    context: EnvFactoryContext
    rules: TrainRules
    validation: HeldOutBatches
    testing: HeldOutBatches | None = None
    """Iterates over the test split; None in training, which never uses it."""

    def build(self, round_index: int, env_id: int) -> ParallelEnvState:
        """Build an env."""
        return create_env_state(self.context, round_index, env_id)

    def begin_train(self, env: ParallelEnvState, step: int) -> None:
        """Reset the step's accumulators and put the network into training mode."""
        env.zero_accumulators()
        env.model.train()
        # A seed may have been planted when the env was built, before the first tick.
        env.seed_optimizers.sync_with(env.model)
        env.host_schedule.begin_pass(step, env.model.blended_slots())

    def train_batch(self, env: ParallelEnvState, batch_index: int, batch: Batch) -> None:
        """Train on the env's sub-batch."""
        process_train_batch(env, batch, batch_index, self.rules)

    def finish_train(self, env: ParallelEnvState) -> None:
        """Try the seeds in isolation, synchronize once, and read the results of the pass."""
        process_trial(env, self.rules.autocast)
        readings = materialize_train_pass(env)
        for slot_id, reading in readings.items():
            env.model.slot(slot_id).record_gradient(reading)
        env.alarms = seed_anomalies(readings, env.host_gradient_norm)

    def validate(self, env: ParallelEnvState, step: int, beat: Callable[[], None]) -> EnvEvidence:
        """Validate the network and its ablations, and update the env's tracker and governor."""
        self.sabotage(env, step)
        plan = self._plan(env, step)
        env.model.eval()
        env.start_validation(num_configs=len(plan.ablations))
        for shares in self.validation(env.round_index):
            process_fused_val_batch(env, shares[env.env_idx], plan, self.rules.autocast)
            beat()
        losses, accuracies, attribution = materialize_attribution(env, plan)
        # The governor checks the weights before it takes them as its snapshot.
        panic = env.governor.check(losses[0])
        if panic is None and env.governor.is_snapshot_due(step):
            with env.fence.entered(is_training=True):
                env.governor.take_snapshot()
        readings = PassReadings(
            losses=losses,
            accuracies_pct=accuracies,
            attribution=attribution,
            train_loss=env.train_loss,
            train_accuracy_pct=env.train_accuracy_pct,
            host_params=env.model.num_host_params,
            seed_params=env.model.num_seed_params,
            train_samples=env.train.total,
            trial_samples=env.num_tried,
            val_samples=env.val.total,
            panic=panic,
        )
        window = self.context.config.reward.escrow_stable_window
        return observe_pass(env, step, plan, readings, stable_window=window)

    def test(self, env: ParallelEnvState, beat: Callable[[], None]) -> EnvTestResult:
        """Measure the network on the test split, which no decision has used."""
        assert self.testing is not None, "no test data was passed"
        env.model.eval()
        env.start_validation(num_configs=1)
        for shares in self.testing(env.round_index):
            process_val_batch(env, shares[env.env_idx], self.rules.autocast)
            beat()
        return materialize_test_result(env)

    def snapshot(self, env: ParallelEnvState) -> dict[str, Any]:
        """Copy the state from which the network can be rebuilt."""
        return materialize_snapshot(env)

    def memory(self, envs: Sequence[ParallelEnvState]) -> dict[str, MemoryStats]:
        """Return the allocator statistics of the envs' devices."""
        by_device = {str(env.device): env.fence for env in envs}
        found = ((device, fence.memory()) for device, fence in by_device.items())
        return {device: stats for device, stats in found if stats is not None}

    def release(self, env: ParallelEnvState) -> None:
        """Synchronize with the device, so that the env's memory can be reused."""
        drain(env.fence)

    def _plan(self, env: ParallelEnvState, step: int) -> AblationPlan:
        config = self.context.config
        return build_ablation_plan(
            env.reports,
            is_last_step=is_last_step(step, config.max_epochs),
            reward_mode=config.reward_mode,
            seed=self.context.run_seed,
            round_index=env.round_index,
            env_id=env.env_idx,
        )


def materialize_test_result(env: ParallelEnvState) -> EnvTestResult:
    """Synchronize with the device once and read the accumulated results of the test pass."""
    env.fence.synchronize()
    losses, accuracies = env.val.materialize_means()
    return EnvTestResult(
        env_id=env.env_idx,
        loss=losses[0],
        accuracy_pct=accuracies[0],
        num_samples=env.val.total,
    )


def materialize_snapshot(env: ParallelEnvState) -> dict[str, Any]:
    """Synchronize with the device once and copy the network."""
    env.fence.synchronize()
    return materialize_grown_state(env.model)
