"""The trainer: rounds of steps; a train pass, a validation, a decision and what comes of it."""

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread
import msgspec

from esper.leyline.errors import (
    EsperError,
    InterruptedRunError,
    RunFailedError,
    TelemetryLostError,
)
from esper.leyline.messages import EnvFailure, StepDecision, StepEvidence, StepOutcome, StepRecord
from esper.leyline.payloads import (
    LayerGradient,
    ObservationStats,
    Payload,
    PPOUpdateCompleted,
    RunFinished,
    TrainingStarted,
)
from esper.leyline.reports import BatchSummary, EpisodeStatus
from esper.leyline.telemetry import EventType
from esper.simic.agent.ppo_metrics import ppo_update_event
from esper.simic.telemetry.anomaly import (
    RULES,
    detect_anomalies,
    note_idle_update,
    note_skipped_update,
)
from esper.simic.telemetry.traces import StepTracer
from esper.simic.training.checkpointer import Checkpointer
from esper.simic.training.control import Control, RoundResult
from esper.simic.training.reporter import Reporter, RoundFigures
from esper.simic.training.run_state import BestEnv, RunState, best_env_of
from esper.simic.training.schedule import Schedule
from esper.tolaria.engine import Engine
from esper.tolaria.fences import MemoryStats
from esper.tolaria.lanes import Lane

__all__ = ["ControlThread", "Probes", "VectorizedPPOTrainer"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ControlThread:
    """Control on a thread of its own, so that torch work never runs on the event loop."""

    control: Control
    lane: Lane

    async def begin_round(self, round_index: int) -> None:
        """Open the books of a round."""
        await self.lane.run(self.control.begin_round, round_index)

    async def decide(self, evidence: StepEvidence) -> StepDecision:
        """Choose one action per env."""
        return await self.lane.run(self.control.decide, evidence)

    async def record(
        self, evidence: StepEvidence, decision: StepDecision, outcome: StepOutcome
    ) -> StepRecord:
        """Reward what the decisions came to."""
        return await self.lane.run(self.control.record, evidence, decision, outcome)

    async def learn(self) -> RoundResult:
        """Let the controller learn from the finished round."""
        return await self.lane.run(self.control.learn)


class Probes(Protocol):
    """What may be asked about the running system for a closer look."""

    def layer_gradients(self) -> tuple[LayerGradient, ...]:
        """Look at the policy's gradients layer by layer."""

    def observation_stats(self) -> ObservationStats | None:
        """Sum up what the policy was last shown."""

    def unstable(self, update: PPOUpdateCompleted) -> tuple[str, ...]:
        """Return the names of an update's figures that are not finite."""

    def memory(self) -> tuple[tuple[str, MemoryStats], ...]:
        """Ask the devices' allocators."""


@dataclass(eq=False, kw_only=True, slots=True)
class VectorizedPPOTrainer:
    """Takes many envs through rounds; everything it does is done by a collaborator."""

    engine: Engine
    control: ControlThread
    schedule: Schedule
    reporter: Reporter
    checkpointer: Checkpointer
    probes: Probes
    tracer: StepTracer
    state: RunState
    _round_started_s: float = 0.0
    _unbuilt: tuple[EnvFailure, ...] = ()
    """Envs of the round that could not be built and were not told yet."""

    async def run(self, started: TrainingStarted) -> RunState:
        """Train from the first round to be done to the last."""
        began_s, timed = time.monotonic(), self.reporter.timed
        try:
            await self.begin(started)
            for round_index in self.schedule.rounds():
                await self.begin_round(round_index)
                for step in self.schedule.steps():
                    await timed("train", self.engine.train_pass(step))
                    evidence = await timed("validate", self.validate(step))
                    decision = await timed("decide", self.control.decide(evidence))
                    outcome = await timed("apply", self.engine.apply(decision))
                    record = await timed("record", self.control.record(evidence, decision, outcome))
                    await self.publish(evidence, decision, outcome, record)
                result = await timed("learn", self.control.learn())
                await self.finish_round(round_index, result)
        except BaseException as error:
            await self.end(*_ending_of(error), began_s)
            raise
        await self.end("completed", None, began_s)
        return self.state

    async def begin(self, started: TrainingStarted) -> None:
        """Tell what is about to happen, and make sure that there is a checkpoint to go back to."""
        await self.tracer.start()
        if self.checkpointer.resumed is None:
            await self.reporter.tell(started)
            await self.save(is_best=False)
            return
        announcement = self.checkpointer.announce_again()
        if announcement is not None:
            await self.reporter.tell(announcement)

    async def begin_round(self, round_index: int) -> None:
        """Open the round's books and build its envs; those that cannot be built are told later."""
        self._round_started_s = time.monotonic()
        await self.control.begin_round(round_index)
        self._unbuilt = await self.engine.build_round(round_index)

    async def validate(self, step: int) -> StepEvidence:
        """Validate all envs; in the last step, keep the network that is the run's best so far.

        It is kept as it was measured, before the step's decision.
        """
        evidence = await self.engine.validate_pass(step)
        if step == self.schedule.num_steps - 1:
            best = best_env_of(evidence, by_loss=self.checkpointer.is_judged_by_loss)
            known = self.state.best_env
            if best is not None and (known is None or best.score > known.score):
                await self._keep_grown(best)
        return evidence

    async def _keep_grown(self, best: BestEnv) -> None:
        network = await self.engine.snapshot(best.env_id)
        if network is not None:
            await self.control.lane.run(self.checkpointer.grown.save, network)
            self.state = msgspec.structs.replace(self.state, best_env=best)

    async def publish(
        self,
        evidence: StepEvidence,
        decision: StepDecision,
        outcome: StepOutcome,
        record: StepRecord,
    ) -> None:
        """Tell a step; a run without envs ends here."""
        failures = (*self._unbuilt, *evidence.failures)
        self._unbuilt = ()
        await self.reporter.step(
            msgspec.structs.replace(evidence, failures=failures),
            decision,
            outcome,
            record,
            await self._ask(EventType.OBSERVATION_STATS, self.probes.observation_stats),
        )
        self._note_seeds(outcome)
        await self.tracer.finish_step(outcome.round, outcome.step)
        if all(env is None for env in outcome.envs):
            raise RunFailedError(
                f"round {outcome.round}, step {outcome.step}: every env has failed; "
                "the ENV_FAILED events say why, and the last checkpoint is intact"
            )

    async def finish_round(self, round_index: int, result: RoundResult) -> None:
        """Sum the round up, tell it, and save a checkpoint where one is due."""
        update = self._update_event(result)
        alarms = self._judge(result, update)
        self.reporter.escalate(has_anomaly=bool(alarms))
        summary = self._summary(round_index, result, update)
        layers = await self._ask(EventType.LAYER_GRADIENTS_COLLECTED, self.probes.layer_gradients)
        figures = RoundFigures(
            summary=summary,
            update=update,
            alarms=alarms,
            layers=layers or (),
            state_before=self.state,
            progress=self.schedule.progress_after(round_index),
            memory=await self.control.lane.run(self.probes.memory),
        )
        await self.reporter.round(result, figures)
        is_best = self.state.is_best(summary, by_loss=self.checkpointer.is_judged_by_loss)
        self.state = msgspec.structs.replace(
            self.state.after_round(summary), escalation=self.reporter.escalation
        )
        if self.checkpointer.is_due(self.state.rounds_completed, self.schedule.num_rounds):
            await self.save(is_best=is_best)
        else:
            await self.control.lane.run(self.checkpointer.stage, self.state, is_best=is_best)
        self._halt_if_numbers_fail()

    async def save(self, *, is_best: bool) -> None:
        """Bring the log and a checkpoint to the disk, in this order, and tell it."""
        saved = await self.control.lane.run(self.checkpointer.save, self.state, is_best=is_best)
        await self.reporter.tell(saved)

    async def end(self, status: str, reason: str | None, began_s: float) -> None:
        """Keep the last finished round and tell how the run ended, even if it was cancelled.

        The reason it ended counts: a disk that is full, or a log that is lost, adds nothing to it.
        """
        finished = RunFinished(
            status=status,
            reason=reason,
            rounds_completed=self.state.rounds_completed,
            episodes_completed=self.state.episodes_completed,
            best_accuracy_pct=self.state.best_accuracy_pct,
            final_accuracy_pct=self.state.final_accuracy_pct,
            duration_s=time.monotonic() - began_s,
        )
        with anyio.CancelScope(shield=True), contextlib.suppress(EsperError):
            await anyio.to_thread.run_sync(self.checkpointer.commit_staged)
        with anyio.CancelScope(shield=True), contextlib.suppress(EsperError):
            await self.tracer.stop()
        with anyio.CancelScope(shield=True), contextlib.suppress(TelemetryLostError):
            await self.reporter.tell(finished)

    async def _ask(self, event_type: EventType, probe: Callable[[], T]) -> T | None:
        """Take a closer look, on the control thread, if anybody wants to hear of it."""
        if not self.reporter.hub.wants(event_type):
            return None
        return await self.control.lane.run(probe)

    def _update_event(self, result: RoundResult) -> PPOUpdateCompleted | None:
        metrics = result.metrics
        if metrics is None or not metrics.has_learned:
            return None
        return ppo_update_event(metrics, result.update_ms)

    def _judge(self, result: RoundResult, update: PPOUpdateCompleted | None) -> tuple[Payload, ...]:
        """Look for anomalies in the update, or in its absence."""
        metrics, known = result.metrics, self.state.anomalies
        alarms: tuple[Payload, ...]
        if metrics is None:
            return ()
        if update is not None:
            anomalies, alarms = detect_anomalies(known, update, self.probes.unstable(update))
        elif metrics.num_finiteness_skips:
            anomalies, alarm = note_skipped_update(known, metrics.nonfinite)
            alarms = (alarm,)
        else:
            anomalies, alarms = note_idle_update(known), ()
        self.state = msgspec.structs.replace(self.state, anomalies=anomalies)
        return alarms

    def _halt_if_numbers_fail(self) -> None:
        skips = self.state.anomalies.consecutive_skips
        if skips >= RULES.skips_to_halt:
            raise RunFailedError(
                f"{skips} updates in a row were skipped because their numbers were not finite; "
                "lower training.lr or look at the NUMERICAL_INSTABILITY_DETECTED events"
            )

    def _summary(
        self, round_index: int, result: RoundResult, update: PPOUpdateCompleted | None
    ) -> BatchSummary:
        accuracies = [
            record.final_accuracy_pct
            for record in result.episodes
            if record.final_accuracy_pct is not None and record.status is not EpisodeStatus.FAILED
        ]
        mean = statistics.fmean(accuracies) if accuracies else None
        return BatchSummary(
            round=round_index,
            episodes=result.episodes,
            mean_accuracy_pct=mean,
            rolling_accuracy_pct=self.state.rolling_with(mean),
            mean_reward=statistics.fmean(record.total_reward for record in result.episodes),
            update_performed=update is not None,
            policy_loss=None if update is None else update.policy_loss,
            value_loss=None if update is None else update.value_loss,
            entropy=None if update is None else update.entropy,
            kl_divergence=None if update is None else update.kl_divergence,
            duration_s=time.monotonic() - self._round_started_s,
        )

    def _note_seeds(self, outcome: StepOutcome) -> None:
        told = [
            payload
            for env in outcome.envs
            if env is not None
            for payload in (*env.action_events, *env.tick_events)
        ]
        scoreboard = self.state.scoreboard.noting(told)
        self.state = msgspec.structs.replace(self.state, scoreboard=scoreboard)


def _ending_of(error: BaseException) -> tuple[str, str]:
    if isinstance(error, InterruptedRunError):
        return "interrupted", str(error)
    if isinstance(error, anyio.get_cancelled_exc_class()):
        return "failed", "a task that runs beside the training has failed"
    return "failed", str(error) if isinstance(error, EsperError) else repr(error)
