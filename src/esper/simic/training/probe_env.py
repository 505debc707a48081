"""The envs of a probe and the work that lanes do on them: the engine's EnvWork without networks."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from esper.kasmina.seed import GerminationRequest
from esper.leyline.actions import Blueprint, Tempo
from esper.leyline.config import TrainingConfig
from esper.leyline.episodes import episode_id_of, is_last_step
from esper.leyline.messages import (
    EnvEvidence,
    EnvTestResult,
    MemoryStats,
    Panic,
)
from esper.leyline.payloads import Payload
from esper.leyline.probes import ProbeHostSpec
from esper.leyline.reports import SeedReport
from esper.leyline.tasks import TaskSpec
from esper.simic.attribution.evidence import attribute_contributions
from esper.simic.control.context import HandlerContext
from esper.simic.probes.body import ProbeBody, ProbeSlot
from esper.simic.probes.growth import Fate, draw_fate, loss_of, noise_of
from esper.simic.training.action_execution import ActionWork
from esper.simic.training.contexts import context_of
from esper.simic.training.counterfactual_eval import build_ablation_plan
from esper.simic.training.env_episode import EnvEpisode
from esper.simic.training.pass_evidence import PassReadings, observe_pass
from esper.tamiyo.tracker import SignalTracker
from esper.tolaria.vital_signs import VitalSigns, after_rollback, check_vital_signs

__all__ = ["ProbeEnv", "ProbeWork"]

NUM_READINGS: Final = 1
"""A pass reads one number; it has no samples."""


@dataclass(eq=False, kw_only=True, slots=True)
class ProbeEnv(EnvEpisode):
    """An env of one round whose body is an analytic model."""

    model: ProbeBody
    signs: VitalSigns = field(default_factory=VitalSigns)
    train_accuracy_pct: float = 0.0

    def __post_init__(self) -> None:
        """Start the episode."""
        self.reset_counters()
        self.reset_lstm_hidden()

    @property
    def reports(self) -> tuple[SeedReport, ...]:
        """Return the occupied slots, in action order."""
        return self.model.reports()

    def slots(self) -> Iterable[ProbeSlot]:
        """Return all slots, in action order."""
        return self.model.slots.values()

    def handler_context(self) -> HandlerContext[None]:
        """Return what an op handler needs besides the action."""
        return HandlerContext(
            model=self.model,
            seed_id=self.next_seed_id,
            generator=None,
            accuracy_pct=self.seen.signals.val_accuracy_pct,
            step=self.seen.signals.step,
        )

    def acting(self) -> AbstractContextManager[object]:
        """Enter nothing: there is no device."""
        return nullcontext()

    def secure_fossil(self) -> None:
        """Do nothing: a rollback restores no weights."""

    def roll_back(self, panic: Panic) -> tuple[str, ...]:
        """Prune all seeds that are not fossilized, and return their slots."""
        self.signs = after_rollback(self.signs)
        return self.model.roll_back(panic)

    def scramble(self, slot_id: str) -> None:
        """Let a seed cost what it was worth."""
        slot = self.model.slot(slot_id)
        slot.worth = -abs(slot.worth)

    def tick(self) -> None:
        """Advance every slot by one step."""
        self.model.tick()


@dataclass(eq=False, kw_only=True, slots=True)
class ProbeWork(ActionWork):
    """Runs the passes of a probe's envs; implements the engine's EnvWork without torch."""

    config: TrainingConfig
    spec: ProbeHostSpec
    task: TaskSpec

    def build(self, round_index: int, env_id: int) -> ProbeEnv:
        """Build an env whose hidden draws come from its own stream."""
        config = self.config
        drawn = context_of(self.task, config, round_index, env_id)
        # Drawn for the whole episode at its start, so that no draw depends on a decision.
        fate = draw_fate(
            self.spec,
            run_seed=config.seed,
            round_index=round_index,
            env_id=env_id,
            num_seeds=config.max_epochs,
            kind=None if drawn is None else self.task.contexts.index(drawn),
        )
        return self.build_with(fate, round_index, env_id)

    def build_with(self, fate: Fate, round_index: int, env_id: int) -> ProbeEnv:
        """Build an env with given hidden draws."""
        config = self.config
        outbox: list[Payload] = []
        slots = {
            slot_id: ProbeSlot(slot_id, config.lifecycle, outbox.append) for slot_id in config.slots
        }
        env = ProbeEnv(
            env_idx=env_id,
            round_index=round_index,
            episode_id=episode_id_of(round_index, env_id, num_envs=config.n_envs),
            slot_ids=config.slots,
            signal_tracker=SignalTracker(),
            outbox=outbox,
            model=ProbeBody(
                spec=self.spec.of_kind(fate.kind),
                fate=fate,
                slots=slots,
                noise=noise_of(run_seed=config.seed, round_index=round_index, env_id=env_id),
            ),
        )
        if self.spec.starts_with_seed:
            _plant_first(env)
        return env

    def begin_train(self, env: ProbeEnv, step: int) -> None:
        """Train for one step: read the accuracy before it."""
        env.train_accuracy_pct = env.model.accuracy_pct(step)

    def train_batch(self, env: ProbeEnv, batch_index: int, batch: object) -> None:
        """Do nothing: a train pass has no batches."""

    def finish_train(self, env: ProbeEnv) -> None:
        """Read the gradients of all seeds."""
        env.model.record_gradients()
        env.host_gradient_norm = 1.0

    def validate(self, env: ProbeEnv, step: int, beat: Callable[[], None]) -> EnvEvidence:
        """Evaluate the model under every ablation, and update the env's tracker and governor."""
        self.sabotage(env, step)
        config = self.config
        plan = build_ablation_plan(
            env.reports,
            is_last_step=is_last_step(step, config.max_epochs),
            reward_mode=config.reward_mode,
            seed=config.seed,
            round_index=env.round_index,
            env_id=env.env_idx,
        )
        accuracies = [env.model.measured_pct(step, ablation.off) for ablation in plan.ablations]
        losses = [loss_of(self.spec, accuracy) for accuracy in accuracies]
        env.signs, panic = check_vital_signs(
            env.signs,
            losses[0],
            random_guess_loss=loss_of(self.spec, 0.0),
            config=config.governor,
        )
        readings = PassReadings(
            losses=losses,
            accuracies_pct=accuracies,
            attribution=attribute_contributions(plan, accuracies),
            train_loss=loss_of(self.spec, env.train_accuracy_pct),
            train_accuracy_pct=env.train_accuracy_pct,
            host_params=self.spec.num_params,
            seed_params=env.model.num_seed_params,
            train_samples=NUM_READINGS,
            trial_samples=0,
            val_samples=NUM_READINGS,
            panic=panic,
        )
        beat()
        window = config.reward.escrow_stable_window
        return observe_pass(env, step, plan, readings, stable_window=window)

    def test(self, env: ProbeEnv, beat: Callable[[], None]) -> EnvTestResult:
        """Return the accuracy that validation has seen: a probe has no splits."""
        beat()
        signals = env.seen.signals
        return EnvTestResult(
            env_id=env.env_idx,
            loss=signals.val_loss,
            accuracy_pct=signals.val_accuracy_pct,
            num_samples=NUM_READINGS,
        )

    def snapshot(self, env: ProbeEnv) -> None:
        """Return None: there is no network to save."""

    def memory(self, envs: Sequence[ProbeEnv]) -> dict[str, MemoryStats]:
        """Return nothing: a probe uses no device."""
        return {}

    def release(self, env: ProbeEnv) -> None:
        """Do nothing: an env holds no resources."""


def _plant_first(env: ProbeEnv) -> None:
    """Plant the seed that an env starts with; its events leave with the first step."""
    request = GerminationRequest(
        seed_id=env.next_seed_id, blueprint=Blueprint.CONV_LIGHT, tempo_steps=Tempo.FAST.steps
    )
    planted = env.model.germinate(env.slot_ids[0], request, None)
    assert planted.succeeded, "the slots of a new env are empty"
    env.num_germinated += 1
