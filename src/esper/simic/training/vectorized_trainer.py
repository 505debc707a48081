"""The trainer: runs rounds of steps and updates, publishes their events and saves checkpoints."""

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio
import msgspec

from esper.leyline.errors import (
    EsperError,
    InterruptedRunError,
    RunFailedError,
    TelemetryLostError,
)
from esper.leyline.messages import EnvFailure, StepEvidence, StepOutcome
from esper.leyline.payloads import (
    Payload,
    PPOUpdateCompleted,
    RunFinished,
    TrainingStarted,
)
from esper.leyline.reports import BatchSummary, EpisodeStatus
from esper.leyline.telemetry import Draft, EventType
from esper.simic.agent.ppo_metrics import ppo_update_event
from esper.simic.telemetry.anomaly import (
    RULES,
    detect_anomalies,
    note_idle_update,
    note_skipped_update,
)
from esper.simic.telemetry.traces import StepTracer
from esper.simic.training.checkpoints.checkpointer import Checkpointer
from esper.simic.training.checkpoints.run_state import RunState
from esper.simic.training.control import RoundResult
from esper.simic.training.diagnostics import RunDiagnostics
from esper.simic.training.reporter import Reporter, RoundFigures
from esper.simic.training.schedule import Schedule
from esper.simic.training.step import ControlThread, StepResult, run_step
from esper.tolaria.engine import WorkerEngine
from esper.tolaria.event_loop import run_blocking

__all__ = ["VectorizedPPOTrainer"]

T = TypeVar("T")


@dataclass(eq=False, kw_only=True, slots=True)
class VectorizedPPOTrainer:
    """Runs the rounds of many envs; its collaborators do the work."""

    engine: WorkerEngine
    control: ControlThread
    schedule: Schedule
    reporter: Reporter
    checkpointer: Checkpointer
    diagnostics: RunDiagnostics
    tracer: StepTracer
    contexts_of: Callable[[int], list[Draft]]
    """Returns the events that record the contexts of a round's episodes."""
    state: RunState
    _round_started_s: float = 0.0
    _unbuilt: tuple[EnvFailure, ...] = ()
    """Envs of the round that could not be built and were not reported yet."""

    async def run(self, started: TrainingStarted) -> RunState:
        """Train from the first remaining round to the last."""
        began_s = time.monotonic()
        try:
            await self.begin(started)
            for round_index in self.schedule.rounds():
                await self.begin_round(round_index)
                for step in self.schedule.steps():
                    await self.publish(await self.step(step))
                result = await self.learn(round_index)
                await self.finish_round(round_index, result)
        except BaseException as error:
            await self.end(*_ending_of(error), began_s)
            raise
        await self.end("completed", None, began_s)
        return self.state

    async def begin(self, started: TrainingStarted) -> None:
        """Emit the first event and save the initial checkpoint, unless the run is resumed."""
        await self.tracer.start()
        # Workers build the first envs while the initial weights are saved: neither needs the other.
        if rounds := self.schedule.rounds():
            self.engine.start_round(rounds[0])
        # A run that is killed in its first round can then be resumed from the initial weights.
        if self.checkpointer.resumed is None:
            await self.reporter.emit(started)
            await self.save(is_best=False)
            return
        # A run may end between a checkpoint and the event that announces it; the log gets the event
        # now, so that it equals that of a run that never stopped.
        announcement = self.checkpointer.announce_again()
        if announcement is not None:
            await self.reporter.emit(announcement)

    async def begin_round(self, round_index: int) -> None:
        """Build the round's envs; failures to build are reported with the first step."""
        self._round_started_s = time.monotonic()
        await self.control.begin_round(round_index)
        await self.reporter.publish(self.contexts_of(round_index))
        self._unbuilt = await self.engine.build_round(round_index)

    async def step(self, step: int) -> StepResult:
        """Take all envs through one step."""
        return await run_step(
            self.engine,
            self.control,
            step,
            profiler=self.reporter.profiler,
            before_decisions=self._save_best_network if self.schedule.is_last(step) else None,
        )

    async def learn(self, round_index: int) -> RoundResult:
        """Update the controller on the finished round, while the envs of the next one start."""
        # Workers build the envs of the next round while the policy learns: neither needs the other.
        if self.schedule.has_next(round_index):
            self.engine.start_round(round_index + 1)
        with self.reporter.profiler.phase("learn"):
            return await self.control.learn()

    async def _save_best_network(self, evidence: StepEvidence) -> None:
        """Save the round's best network as it was validated, if it is the run's best."""
        # Before the last decision: afterwards the network would no longer be the one that was
        # validated.
        best, known = self.checkpointer.best_env_of(evidence), self.state.best_env
        if best is None or (known is not None and best.score <= known.score):
            return
        network = await self.engine.snapshot(best.env_id)
        if network is not None:
            # On the control thread, as writing a file would block the event loop.
            await self.control.run(self.checkpointer.save_grown, network, best)
            self.state = msgspec.structs.replace(self.state, best_env=best)

    async def publish(self, done: StepResult) -> None:
        """Publish the events of a step; raise if no env is left."""
        evidence, outcome = done.evidence, done.outcome
        # Failures to build have no step of their own; a round without a step would lose them.
        failures = (*self._unbuilt, *evidence.failures)
        self._unbuilt = ()
        await self.reporter.step(
            msgspec.structs.replace(evidence, failures=failures),
            done.decision,
            outcome,
            done.record,
            await self._ask(EventType.OBSERVATION_STATS, self.diagnostics.observation_stats),
        )
        self._note_seeds(outcome)
        # After the step's events, so that a trace holds a whole step.
        await self.tracer.finish_step(outcome.round, outcome.step)
        if all(env is None for env in outcome.envs):
            raise RunFailedError(
                f"round {outcome.round}, step {outcome.step}: every env has failed; "
                "the ENV_FAILED events say why, and the last checkpoint is intact"
            )

    async def finish_round(self, round_index: int, result: RoundResult) -> None:
        """Summarize the round, publish its events, and save a checkpoint if one is due."""
        update = self._update_event(result)
        # Judged before the round is reported: an anomaly escalates the level that its own events
        # are emitted at.
        alarms = self._judge(result, update)
        self.reporter.escalate(has_anomaly=bool(alarms))
        summary = self._summary(round_index, result, update)
        layers = await self._ask(
            EventType.LAYER_GRADIENTS_COLLECTED, self.diagnostics.layer_gradients
        )
        figures = RoundFigures(
            summary=summary,
            update=update,
            alarms=alarms,
            layers=layers or (),
            state_before=self.state,
            progress=self.schedule.progress_after(round_index),
            memory=self.engine.memory(),
        )
        await self.reporter.round(result, figures)
        # Compared with the state before this round is part of it.
        is_best = self.checkpointer.is_best(summary, self.state)
        self.state = msgspec.structs.replace(
            self.state.after_round(summary), escalation=self.reporter.escalation
        )
        if self.checkpointer.is_due(self.state.rounds_completed, self.schedule.num_rounds):
            await self.save(is_best=is_best)
        else:
            # Kept in memory: if the run ends before the next checkpoint is due, this one is
            # written.
            await self.control.run(self.checkpointer.stage, self.state, is_best=is_best)
        # Last, so that the checkpoint of the round exists and its events are in the log.
        self._halt_if_numbers_fail()

    async def save(self, *, is_best: bool) -> None:
        """Flush the log, write a checkpoint that refers to it, and announce the checkpoint."""
        saved = await self.control.run(self.checkpointer.save, self.state, is_best=is_best)
        await self.reporter.emit(saved)

    async def end(self, status: str, reason: str | None, began_s: float) -> None:
        """Save the last finished round and emit RUN_FINISHED, even if the run was cancelled.

        Errors on the way are suppressed: the reason why the run ended is the one to report.
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
        # Each part has a scope of its own: if one fails or is cut off, the next is still tried.
        with contextlib.suppress(EsperError):
            await run_blocking(self.checkpointer.commit_staged)
        with anyio.CancelScope(shield=True), contextlib.suppress(EsperError):
            await self.tracer.stop()
        with anyio.CancelScope(shield=True), contextlib.suppress(TelemetryLostError):
            await self.reporter.emit(finished)

    async def _ask(self, event_type: EventType, diagnose: Callable[[], T]) -> T | None:
        """Run a diagnostic on the control thread if its event would be emitted."""
        if not self.reporter.wants(event_type):
            return None
        return await self.control.run(diagnose)

    def _update_event(self, result: RoundResult) -> PPOUpdateCompleted | None:
        metrics = result.metrics
        if metrics is None or not metrics.has_learned:
            return None
        return ppo_update_event(metrics, result.update_ms)

    def _judge(self, result: RoundResult, update: PPOUpdateCompleted | None) -> tuple[Payload, ...]:
        """Detect anomalies in the update, or in its absence."""
        metrics, known = result.metrics, self.state.anomalies
        alarms: tuple[Payload, ...]
        if metrics is None:
            return ()
        if update is not None:
            anomalies, alarms = detect_anomalies(known, update, self.diagnostics.unstable(update))
        # No optimizer step because of NaN or infinity, as opposed to a round without a decision.
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
            mean_task_return=statistics.fmean(record.task_return for record in result.episodes),
            update_performed=update is not None,
            policy_loss=None if update is None else update.policy_loss,
            value_loss=None if update is None else update.value_loss,
            entropy=None if update is None else update.entropy,
            kl_divergence=None if update is None else update.kl_divergence,
            duration_s=time.monotonic() - self._round_started_s,
        )

    def _note_seeds(self, outcome: StepOutcome) -> None:
        effects = [
            effect
            for env in outcome.envs
            if env is not None
            for effect in (*env.action_effects, *env.tick_effects)
        ]
        scoreboard = self.state.scoreboard.noting(effects)
        self.state = msgspec.structs.replace(self.state, scoreboard=scoreboard)


def _ending_of(error: BaseException) -> tuple[str, str]:
    if isinstance(error, InterruptedRunError):
        return "interrupted", str(error)
    # The trainer is cancelled only if its task group is, and that only by the failure of a sibling.
    if isinstance(error, anyio.get_cancelled_exc_class()):
        return "failed", "a task that runs beside the training has failed"
    return "failed", str(error) if isinstance(error, EsperError) else repr(error)
