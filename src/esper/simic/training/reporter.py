"""The reporter: turns what a run does into events and publishes them in program order."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from esper.leyline.config import TelemetryConfig
from esper.leyline.messages import (
    EnvFailure,
    PenaltyOutcome,
    StepDecision,
    StepEvidence,
    StepOutcome,
    StepRecord,
)
from esper.leyline.payloads import (
    AllocatorStats,
    BatchStats,
    DegradationDetected,
    ImprovementDetected,
    LayerGradient,
    MemoryWarning,
    ObservationStats,
    Payload,
    PlateauDetected,
    PPOUpdateCompleted,
    TrendDetected,
)
from esper.leyline.reports import BatchSummary, EpisodeRecord
from esper.leyline.telemetry import RUN_SCOPE, Draft, EventScope, EventType
from esper.nissa.hub import Hub
from esper.simic.seed_management import (
    Escalation,
    emit_anomaly_diagnostics,
    handle_telemetry_escalation,
)
from esper.simic.telemetry.emitters import (
    check_performance_degradation,
    emit_action_distribution,
    emit_batch_completed,
    emit_mask_hit_rates,
    emit_ppo_update_event,
    emit_reward_summary,
    emit_throughput,
)
from esper.simic.telemetry.phases import PhaseProfiler
from esper.simic.telemetry.step_events import evidence_events, failure_events, outcome_events
from esper.simic.training.control import RoundResult
from esper.simic.training.run_state import RunState
from esper.tolaria.fences import MemoryStats

__all__ = ["Reporter", "RoundFigures"]

T = TypeVar("T")

MEMORY_WARNING_FRACTION = 0.85


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundFigures:
    """What a round's tail of events is made of, beside the result itself."""

    summary: BatchSummary
    update: PPOUpdateCompleted | None
    alarms: tuple[Payload, ...]
    collect_layers: Callable[[], tuple[LayerGradient, ...]]
    state_before: RunState
    progress: float
    memory: tuple[tuple[str, MemoryStats], ...]


@dataclass(eq=False, slots=True)
class Reporter:
    """Everything a run says goes through here."""

    hub: Hub
    config: TelemetryConfig
    num_envs: int
    plateau_threshold_pp: float
    improvement_threshold_pp: float
    death_penalty: float
    required_stable_steps: int
    profiler: PhaseProfiler = field(default_factory=PhaseProfiler)
    escalation: Escalation = field(default_factory=Escalation)
    train_samples: int = 0
    val_samples: int = 0
    env_steps: int = 0

    def __post_init__(self) -> None:
        """Go on with an escalation that a checkpoint brought along."""
        self.escalation = handle_telemetry_escalation(
            self.hub, self.escalation, has_anomaly=False, config=self.config
        )

    async def timed(self, phase: str, work: Awaitable[T]) -> T:
        """Await a phase of a step and measure it."""
        with self.profiler.phase(phase):
            return await work

    async def publish(self, drafts: list[Draft]) -> None:
        """Send events, waiting for room without blocking the loop."""
        await self.hub.room()
        self.hub.publish(drafts)

    async def tell(self, payload: Payload, scope: EventScope = RUN_SCOPE) -> None:
        """Send one event."""
        await self.publish([Draft(payload, scope)])

    async def failures(
        self, round_index: int, failures: tuple[EnvFailure, ...], episodes: dict[int, EpisodeRecord]
    ) -> None:
        """Tell which envs broke."""
        drafts: list[Draft] = []
        failure_events(
            drafts.append,
            failures,
            round_index=round_index,
            num_envs=self.num_envs,
            episodes=episodes,
        )
        await self.publish(drafts)

    async def step(
        self,
        evidence: StepEvidence,
        decision: StepDecision,
        outcome: StepOutcome,
        record: StepRecord,
        *,
        penalties: dict[int, PenaltyOutcome],
        episodes: dict[int, EpisodeRecord],
        observation_stats: Callable[[], ObservationStats | None],
    ) -> None:
        """Tell a step."""
        drafts: list[Draft] = []
        scope = EventScope(round=evidence.round, step=evidence.step)
        evidence_events(drafts.append, evidence, required_stable_steps=self.required_stable_steps)
        stats = observation_stats() if self.hub.wants(EventType.OBSERVATION_STATS) else None
        if stats is not None:
            drafts.append(Draft(stats, scope))
        outcome_events(
            drafts.append,
            decision,
            outcome,
            record,
            penalties=penalties,
            death_penalty=self.death_penalty,
            episodes=episodes,
        )
        self._count(evidence)
        profile = self.profiler.drain()
        if profile is not None:
            drafts.append(Draft(profile, scope))
        await self.publish(drafts)
        self.escalation = handle_telemetry_escalation(
            self.hub, self.escalation.after_step(), has_anomaly=False, config=self.config
        )

    async def round(self, result: RoundResult, figures: RoundFigures) -> None:
        """Tell a round's tail: alarms, update, stats, trend, end, and what it was made of."""
        drafts: list[Draft] = []
        emit = drafts.append
        summary = figures.summary
        scope = EventScope(round=summary.round)
        profile = self.profiler.drain()
        if profile is not None:
            emit(Draft(profile, scope))
        self.escalation = handle_telemetry_escalation(
            self.hub, self.escalation, has_anomaly=bool(figures.alarms), config=self.config
        )
        if figures.update is not None:
            emit_anomaly_diagnostics(
                emit, self.hub, figures.alarms, figures.collect_layers, summary.round
            )
            emit_ppo_update_event(emit, figures.update, summary.round)
        else:
            drafts += [Draft(alarm, scope) for alarm in figures.alarms]
        emit(Draft(_batch_stats(result), scope))
        self._emit_trend(drafts, figures)
        completed = figures.state_before.episodes_completed + len(summary.episodes)
        emit_batch_completed(emit, summary, completed)
        emit_action_distribution(emit, result.tally.action_distribution(), summary.round)
        emit_mask_hit_rates(emit, result.tally.materialize_mask_hit_rates(), summary.round)
        emit_reward_summary(
            emit,
            result.tally.mean_components(),
            result.tally.total_reward / max(result.tally.num_rewards, 1),
            result.reward_std,
            summary.round,
        )
        self._emit_throughput(drafts, summary)
        scoreboard = figures.state_before.scoreboard
        if scoreboard.blueprints:
            emit(Draft(scoreboard.event(), scope))
        check_performance_degradation(
            emit,
            summary,
            rolling_before_pct=figures.state_before.rolling_accuracy_pct,
            progress=figures.progress,
        )
        _emit_memory(drafts, figures.memory, scope)
        await self.publish(drafts)

    def _count(self, evidence: StepEvidence) -> None:
        present = [env for env in evidence.envs if env is not None]
        self.env_steps += len(present)
        self.train_samples += sum(env.train_samples for env in present)
        self.val_samples += sum(env.val_samples for env in present)

    def _emit_throughput(self, drafts: list[Draft], summary: BatchSummary) -> None:
        emit_throughput(
            drafts.append,
            round_index=summary.round,
            env_steps=self.env_steps,
            train_samples=self.train_samples,
            val_samples=self.val_samples,
            feeder_wait_s=0.0,
            duration_s=summary.duration_s,
        )
        self.env_steps = self.train_samples = self.val_samples = 0

    def _emit_trend(self, drafts: list[Draft], figures: RoundFigures) -> None:
        before = figures.state_before.rolling_accuracy_pct
        now = figures.summary.rolling_accuracy_pct
        trend = None if before is None or now is None else self._trend(before, now)
        if trend is not None:
            drafts.append(Draft(trend, EventScope(round=figures.summary.round)))

    def _trend(self, before_pct: float, now_pct: float) -> TrendDetected | None:
        delta_pp = now_pct - before_pct
        facts = {
            "rolling_delta_pp": delta_pp,
            "rolling_accuracy_pct": now_pct,
            "previous_rolling_accuracy_pct": before_pct,
        }
        if abs(delta_pp) < self.plateau_threshold_pp:
            return PlateauDetected(**facts)
        if delta_pp > self.improvement_threshold_pp:
            return ImprovementDetected(**facts)
        if delta_pp < -self.improvement_threshold_pp:
            return DegradationDetected(**facts)
        return None


def _batch_stats(result: RoundResult) -> BatchStats:
    episodes = result.episodes
    metrics = result.metrics
    return BatchStats(
        seeds_germinated=sum(record.num_germinated for record in episodes),
        seeds_fossilized=sum(record.num_fossilized for record in episodes),
        seeds_pruned=sum(record.num_pruned for record in episodes),
        rollback_attempts=result.rollback_attempts,
        unattributed_penalties=result.unattributed_penalties,
        update_performed=metrics is not None and metrics.has_learned,
        skip_reason="controller_does_not_learn" if metrics is None else metrics.skip_reason,
    )


def _emit_memory(
    drafts: list[Draft], memory: tuple[tuple[str, MemoryStats], ...], scope: EventScope
) -> None:
    for device, stats in memory:
        payload = AllocatorStats(
            device=device,
            allocated_bytes=stats.allocated_bytes,
            reserved_bytes=stats.reserved_bytes,
            num_retries=stats.num_retries,
            num_ooms=stats.num_ooms,
        )
        drafts.append(Draft(payload, scope))
        if stats.used_fraction >= MEMORY_WARNING_FRACTION:
            warning = MemoryWarning(
                device=device,
                used_fraction=stats.used_fraction,
                threshold_fraction=MEMORY_WARNING_FRACTION,
                total_bytes=stats.total_bytes,
            )
            drafts.append(Draft(warning, scope))
