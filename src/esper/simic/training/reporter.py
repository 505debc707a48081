"""The reporter: builds the events of a run and publishes them in program order."""

from dataclasses import dataclass, field

from esper.leyline.config import TelemetryConfig
from esper.leyline.messages import MemoryStats, StepDecision, StepEvidence, StepOutcome, StepRecord
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
from esper.leyline.reports import BatchSummary
from esper.leyline.telemetry import Draft, EventScope, EventType
from esper.nissa.bus.hub import Hub
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
from esper.simic.telemetry.step_events import StepRules, step_events
from esper.simic.training.checkpoints.run_state import RunState
from esper.simic.training.control import RoundResult

__all__ = ["Reporter", "RoundFigures"]

MEMORY_WARNING_FRACTION = 0.85


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundFigures:
    """Inputs of the events at the end of a round, in addition to its result."""

    summary: BatchSummary
    update: PPOUpdateCompleted | None
    alarms: tuple[Payload, ...]
    layers: tuple[LayerGradient, ...]
    """The policy's gradients layer by layer; empty if no listener wants them."""
    state_before: RunState
    progress: float
    memory: tuple[tuple[str, MemoryStats], ...]


@dataclass(eq=False, slots=True)
class Reporter:
    """Publishes all events of a run."""

    hub: Hub
    config: TelemetryConfig
    plateau_threshold_pp: float
    improvement_threshold_pp: float
    step_rules: StepRules
    profiler: PhaseProfiler = field(default_factory=PhaseProfiler)
    escalation: Escalation = field(default_factory=Escalation)
    train_samples: int = 0
    val_samples: int = 0
    env_steps: int = 0
    feeder_wait_s: float = 0.0

    def __post_init__(self) -> None:
        """Continue an escalation restored from a checkpoint."""
        self.escalate(has_anomaly=False)

    def wants(self, event_type: EventType) -> bool:
        """Return whether an event of this type would be emitted now."""
        return self.hub.wants(event_type)

    async def publish(self, drafts: list[Draft]) -> None:
        """Publish events, waiting for queue space without blocking the event loop."""
        await self.hub.room()
        self.hub.publish(drafts)

    async def emit(self, payload: Payload) -> None:
        """Publish one run-level event."""
        await self.publish([Draft(payload)])

    def escalate(self, *, has_anomaly: bool) -> None:
        """Raise the event verbosity for some steps after an anomaly, then restore it."""
        self.escalation = handle_telemetry_escalation(
            self.hub, self.escalation, has_anomaly=has_anomaly, config=self.config
        )

    async def step(
        self,
        evidence: StepEvidence,
        decision: StepDecision,
        outcome: StepOutcome,
        record: StepRecord,
        observation_stats: ObservationStats | None,
    ) -> None:
        """Publish the events of a step."""
        drafts = step_events(
            evidence,
            decision,
            outcome,
            record,
            rules=self.step_rules,
            observation_stats=observation_stats,
        )
        self._emit_profile(drafts, EventScope(round=evidence.round, step=evidence.step))
        await self.publish(drafts)
        self._count(evidence)
        self.escalation = self.escalation.after_step()
        self.escalate(has_anomaly=False)

    async def round(self, result: RoundResult, figures: RoundFigures) -> None:
        """Publish the events at the end of a round: alarms, update, statistics, trend, summary."""
        drafts: list[Draft] = []
        emit, summary, before = drafts.append, figures.summary, figures.state_before
        tally, scope = result.tally, EventScope(round=figures.summary.round)
        num_episodes = before.episodes_completed + len(summary.episodes)
        self._emit_profile(drafts, scope)
        emit_anomaly_diagnostics(emit, figures.alarms, figures.layers, summary.round)
        if figures.update is not None:
            emit_ppo_update_event(emit, figures.update, summary.round)
        emit(Draft(_batch_stats(result), scope))
        self._emit_trend(drafts, figures)
        emit_batch_completed(emit, summary, num_episodes)
        emit_action_distribution(emit, tally.action_distribution(result.slots), summary.round)
        emit_mask_hit_rates(emit, tally.mask_hit_rates(), summary.round)
        emit_reward_summary(
            emit,
            tally.mean_components(),
            tally.total_reward / max(tally.num_rewards, 1),
            result.reward_scale,
            summary.round,
        )
        self._emit_throughput(drafts, summary)
        if before.scoreboard.blueprints:
            emit(Draft(before.scoreboard.event(num_hosts=num_episodes), scope))
        check_performance_degradation(
            emit,
            summary,
            rolling_before_pct=before.rolling_accuracy_pct,
            progress=figures.progress,
        )
        _emit_memory(drafts, figures.memory, scope)
        await self.publish(drafts)

    def _emit_profile(self, drafts: list[Draft], scope: EventScope) -> None:
        profile = self.profiler.drain()
        if profile is not None:
            drafts.append(Draft(profile, scope))

    def _count(self, evidence: StepEvidence) -> None:
        present = [env for env in evidence.envs if env is not None]
        self.env_steps += len(present)
        self.train_samples += sum(env.train_samples for env in present)
        self.val_samples += sum(env.val_samples for env in present)
        self.feeder_wait_s += evidence.feeder_wait_s

    def _emit_throughput(self, drafts: list[Draft], summary: BatchSummary) -> None:
        emit_throughput(
            drafts.append,
            round_index=summary.round,
            env_steps=self.env_steps,
            train_samples=self.train_samples,
            val_samples=self.val_samples,
            feeder_wait_s=self.feeder_wait_s,
            duration_s=summary.duration_s,
        )
        # Throughput is of one round; the counters start again with the next.
        self.env_steps = self.train_samples = self.val_samples = 0
        self.feeder_wait_s = 0.0

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
