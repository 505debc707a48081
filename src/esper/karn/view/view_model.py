"""The view model: turns events into snapshots and patches, incrementally and in bounded memory."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from msgspec import UNSET, UnsetType, structs

from esper.karn.view.alarms import AlarmBoard, is_alarm
from esper.karn.view.attention import rank_envs
from esper.karn.view.change_versions import ChangeVersions
from esper.karn.view.env_track import EnvTrack
from esper.karn.view.progress import ProgressTrack
from esper.karn.view.round_track import RoundTrack, StepTrack
from esper.karn.view.seed_track import SeedTrack
from esper.karn.view.snapshot import (
    ActionMix,
    BusView,
    EnvDetail,
    EnvView,
    GrowthView,
    Patch,
    PhaseView,
    ProgressView,
    ResourceView,
    RunView,
    Snapshot,
    Verdict,
)
from esper.karn.view.thresholds import LIMITS, THRESHOLDS
from esper.karn.view.verdict import Evidence, judge
from esper.leyline import payloads
from esper.leyline.context_payloads import EpisodeContextDrawn
from esper.leyline.payloads import Payload
from esper.leyline.telemetry import EVENT_SPECS, Channel, Event

__all__ = ["ViewModel"]

T = TypeVar("T")

START: Final = -1
"""The version of a client that has not received anything."""


class ViewModel:
    """The state of one run: `apply` events in order, take snapshots or patches at any time."""

    def __init__(self) -> None:
        self.version = 0
        """Incremented with every event; a patch takes a client from one version to another."""
        self._run: RunView | None = None
        self._resumed: payloads.CheckpointLoaded | None = None
        """The last resume from a checkpoint."""
        self._progress = ProgressTrack()
        self._rounds = RoundTrack()
        self._steps = StepTrack()
        self._seeds = SeedTrack()
        self._envs: dict[int, EnvTrack] = {}
        self._env_marks = ChangeVersions()
        self._alarms = AlarmBoard()
        self._live_counts: dict[str, int] = {}
        self._live_successes: dict[str, int] = {}
        self._live_round: int | None = None
        self._growth = {"num_germinated": 0, "num_fossilized": 0, "num_pruned": 0}
        self._live_growth = dict(self._growth)
        """Counted from seed events in the current round, until its BATCH_STATS arrives."""
        self._scoreboard: payloads.ScoreboardUpdated | None = None
        self._phases: dict[str, PhaseView] = {}
        self._allocators: dict[str, payloads.AllocatorStats] = {}
        self._counts: dict[str, int] = {}
        self._next_seq: int | None = None
        self._num_missed = 0
        self._num_unreadable = 0
        self._num_dropped = 0
        self._recent: deque[float] = deque(maxlen=LIMITS.max_recent_events)
        self._changed: dict[str, int] = {}
        """Version at which each section without entries last changed."""

    # --- Events ----------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Process one event of either channel."""
        self.version += 1
        event_type = event.event_type
        self._counts[event_type.value] = self._counts.get(event_type.value, 0) + 1
        self._recent.append(event.ts)
        # Operational events have numbers of their own and may be read late: they say nothing about
        # the position in the run.
        if EVENT_SPECS[event_type].channel is Channel.RUN:
            self._follow(event)
        if is_alarm(event):
            self._alarms.note(event)
            self._touch("alarms")
        handle = _HANDLERS.get(type(event.data))
        if handle is not None:
            handle(self, event, event.data)

    def note_unreadable(self) -> None:
        """Count a line that is not an event."""
        self.version += 1
        self._num_unreadable += 1

    def _follow(self, event: Event) -> None:
        """Check the sequence and update position, episode and round."""
        # A view may begin in the middle of a log; only gaps after its first event are missing
        # events.
        expected = event.seq if self._next_seq is None else self._next_seq
        self._num_missed += max(event.seq - expected, 0)
        self._next_seq = event.seq + 1
        if event.round is not None and event.round != self._live_round:
            self._live_round = event.round
            # Counted per step until the round's own summary arrives; a new round starts from
            # nothing.
            self._live_counts, self._live_successes = {}, {}
            self._touch("live_actions")
        self._progress.note(event)
        if event.env_id is not None:
            self._env(event).enter(event.episode_id, event.round, event.step)

    def _touch(self, section: str) -> None:
        self._changed[section] = self.version

    def _env(self, event: Event) -> EnvTrack:
        """Return the track of an event's env, marked as changed."""
        env_id = event.env_id or 0
        if env_id not in self._envs:
            slot_ids = self._run.facts.slot_ids if self._run else ()
            self._envs[env_id] = EnvTrack(env_id, slot_ids)
        self._env_marks.touch(env_id, self.version)
        return self._envs[env_id]

    def _on_started(self, event: Event, data: payloads.TrainingStarted) -> None:
        self._run = RunView(run_id=event.run_id, group=event.group, started_ts=event.ts, facts=data)
        self._put_in_force()

    def _on_resumed(self, _: Event, data: payloads.CheckpointLoaded) -> None:
        # The operational log may be read before TRAINING_STARTED is read from the event log.
        self._resumed = data
        self._put_in_force()

    def _put_in_force(self) -> None:
        """Merge the values of the last resume into the run's facts."""
        run, resumed = self._run, self._resumed
        if run is None:
            return
        if resumed is not None:
            facts = structs.replace(
                run.facts,
                num_rounds=resumed.num_rounds or run.facts.num_rounds,
                resumed_from_round=resumed.rounds_completed,
            )
            self._run = run = structs.replace(run, facts=facts)
        self._progress.facts = run.facts
        self._touch("run")

    def _on_finished(self, _: Event, data: payloads.RunFinished) -> None:
        self._progress.finish = data
        self._progress.rounds_completed = data.rounds_completed
        self._progress.episodes_completed = data.episodes_completed

    def _on_checkpoint(self, event: Event, data: payloads.CheckpointSaved) -> None:
        self._progress.last_checkpoint_round = data.rounds_completed
        self._progress.complete_rounds(data.rounds_completed, event.ts)

    def _on_epoch(self, event: Event, data: payloads.EpochCompleted) -> None:
        self._env(event).note_epoch(data)
        self._seeds.note_epoch(event, data, self.version)
        self._steps.note(event.round or 0, event.step or 0, data.val_accuracy_pct, self.version)

    def _on_action(self, event: Event, data: payloads.LastAction) -> None:
        self._env(event).note_action(data)
        self._live_counts[data.op] = self._live_counts.get(data.op, 0) + 1
        if data.succeeded:
            self._live_successes[data.op] = self._live_successes.get(data.op, 0) + 1
        self._touch("live_actions")

    def _on_matrix(self, event: Event, data: payloads.CounterfactualMatrixComputed) -> None:
        self._env(event).note_matrix(data)

    def _on_unavailable(self, event: Event, data: payloads.CounterfactualUnavailable) -> None:
        self._env(event).note_unavailable(data)

    def _on_shapley(self, event: Event, data: payloads.ShapleyComputed) -> None:
        self._env(event).note_shapley(data)

    def _on_germinated(self, event: Event, data: payloads.SeedGerminated) -> None:
        self._env(event).note_germinated(data)
        self._seeds.germinate(event, data, self.version)
        self._count_growth("num_germinated")

    def _on_stage(self, event: Event, data: payloads.SeedStageChanged) -> None:
        self._env(event).note_stage(data)
        self._seeds.change_stage(event, data, self.version)

    def _on_fossilized(self, event: Event, data: payloads.SeedFossilized) -> None:
        self._env(event).note_fossilized()
        self._seeds.fossilize(event, data, self.version)
        self._count_growth("num_fossilized")

    def _on_pruned(self, event: Event, data: payloads.SeedPruned) -> None:
        self._env(event).note_pruned()
        self._seeds.prune(event, data, self.version)
        self._count_growth("num_pruned")

    def _count_growth(self, name: str) -> None:
        self._live_growth[name] += 1
        self._touch("growth")

    def _on_rollback(self, event: Event, _: payloads.GovernorRollback) -> None:
        self._env(event).note_rollback()
        self._rounds.count_rollback(event.round or 0, self.version)

    def _on_env_failed(self, event: Event, data: payloads.EnvFailed) -> None:
        self._env(event).note_failure(data)
        self._rounds.count_failure(event.round or 0, self.version)

    def _on_context(self, event: Event, data: EpisodeContextDrawn) -> None:
        self._env(event).note_context(data)

    def _on_outcome(self, event: Event, data: payloads.EpisodeOutcome) -> None:
        self._env(event).note_outcome(data)
        self._seeds.end_episode(event, self.version)

    def _on_batch(self, event: Event, data: payloads.BatchEpochCompleted) -> None:
        round_index = event.round or 0
        self._rounds.note_batch(round_index, data, self.version)
        self._progress.episodes_completed = data.episodes_completed
        self._progress.complete_rounds(round_index + 1, event.ts)

    def _on_stats(self, event: Event, data: payloads.BatchStats) -> None:
        self._rounds.note_stats(event.round or 0, data, self.version)
        self._growth["num_germinated"] += data.seeds_germinated
        self._growth["num_fossilized"] += data.seeds_fossilized
        self._growth["num_pruned"] += data.seeds_pruned
        # The round's totals include what was counted live.
        self._live_growth = dict.fromkeys(self._live_growth, 0)
        self._touch("growth")

    def _on_actions(self, event: Event, data: payloads.ActionDistribution) -> None:
        self._rounds.note_actions(event.round or 0, data, self.version)

    def _on_update(self, event: Event, data: payloads.PPOUpdateCompleted) -> None:
        self._rounds.note_update(event.round or 0, data, self.version)

    def _on_throughput(self, event: Event, data: payloads.Throughput) -> None:
        self._rounds.note_throughput(event.round or 0, data, self.version)

    def _on_scoreboard(self, _: Event, data: payloads.ScoreboardUpdated) -> None:
        self._scoreboard = data
        self._touch("growth")

    def _on_profile(self, _: Event, data: payloads.PhaseProfileCompleted) -> None:
        for item in data.phases:
            self._phases[item.phase] = PhaseView(
                phase=item.phase, wall_ms=item.wall_ms, cpu_ms=item.cpu_ms
            )
        self._touch("resources")

    def _on_allocator(self, _: Event, data: payloads.AllocatorStats) -> None:
        self._allocators[data.device] = data
        self._touch("resources")

    def _on_lagged(self, _: Event, data: payloads.SubscriberLagged) -> None:
        self._num_dropped += data.num_dropped

    # --- Views -----------------------------------------------------------------------------------

    def snapshot(self, now: float | None = None) -> Snapshot:
        """Return the whole view at time `now`; None uses the time of the last event."""
        envs = self._env_views()
        progress, bus = self._progress_view(), self._bus_view()
        # A finished log is shown as it was at its last event: no silence grows while it is looked
        # at.
        now = progress.last_event_ts or 0.0 if now is None else now
        return Snapshot(
            version=self.version,
            now=now,
            run=self._run,
            progress=progress,
            verdict=self._verdict(now, progress, bus),
            rounds=tuple(self._rounds.rows.values()),
            steps=tuple(self._steps.rows.values()),
            live_actions=self._action_mix(),
            envs=tuple(envs.values()),
            attention=rank_envs(envs.values()),
            seeds=tuple(self._seeds.view(number) for number in self._seeds.numbers()),
            growth=self._growth_view(),
            alarms=self._alarms.view(),
            resources=self._resource_view(),
            bus=bus,
        )

    def patch(self, since: int, now: float, selected_env: int | None = None) -> Patch:
        """Return the changes since version `since`; START returns everything.

        Args:
            since: the version of the client's last patch.
            now: the current time, from which the length of the silence is computed.
            selected_env: the env whose detail the client shows.
        """
        progress, bus = self._progress_view(), self._bus_view()
        envs = self._env_views()
        changed_envs = _news(self._env_marks, since, envs.__getitem__)
        detail = self.detail(selected_env) if selected_env is not None else None
        is_news = self.version > since
        return Patch(
            version=self.version,
            now=now,
            progress=progress,
            verdict=self._verdict(now, progress, bus),
            replaced=self._replaced(since),
            # Constant for a run, so they are part of the first patch only.
            thresholds=dict(THRESHOLDS) if since < 0 else UNSET,
            run=self._run if self._run is not None and self._is_new("run", since) else UNSET,
            rounds=_news(self._rounds.marks, since, self._rounds.rows.__getitem__),
            steps=_news(self._steps.marks, since, self._steps.rows.__getitem__),
            live_actions=self._action_mix() if self._is_new("live_actions", since) else UNSET,
            envs=changed_envs,
            # A rank depends on all envs, even if only one of them has changed.
            attention=UNSET if changed_envs is UNSET else rank_envs(envs.values()),
            seeds=_news(self._seeds.marks, since, self._seeds.view),
            growth=self._growth_view() if self._is_new("growth", since) else UNSET,
            alarms=self._alarms.view() if self._is_new("alarms", since) else UNSET,
            resources=self._resource_view() if self._is_new("resources", since) else UNSET,
            bus=bus if is_news else UNSET,
            detail=detail if detail is not None else UNSET,
        )

    def _replaced(self, since: int) -> tuple[str, ...]:
        """Return the sections that a client at this version must replace as a whole."""
        sections = {
            "rounds": self._rounds.marks,
            "steps": self._steps.marks,
            "envs": self._env_marks,
            "seeds": self._seeds.marks,
        }
        # Changes too old to be remembered: the client gets the section as a whole.
        return tuple(name for name, marks in sections.items() if marks.since(since) is None)

    def _is_new(self, section: str, since: int) -> bool:
        return since < 0 or self._changed.get(section, START) > since

    def detail(self, env_id: int) -> EnvDetail | None:
        """Return the drill-down of one env; None if there is no such env."""
        track = self._envs.get(env_id)
        return None if track is None else track.detail()

    def _env_views(self) -> dict[int, EnvView]:
        return {env_id: self._envs[env_id].view() for env_id in sorted(self._envs)}

    def _verdict(self, now: float, progress: ProgressView, bus: BusView) -> Verdict:
        return judge(
            Evidence(
                now=now,
                facts=self._run.facts if self._run else None,
                progress=progress,
                rounds=self._rounds.complete(),
                policy=self._rounds.latest_policy(),
                alarms=self._alarms.view(),
                bus=bus,
            )
        )

    def _progress_view(self) -> ProgressView:
        accuracies = [track.accuracy_pct for track in self._envs.values()]
        measured = [value for value in accuracies if value is not None]
        mean = sum(measured) / len(measured) if measured else None
        return self._progress.view(mean, self._rounds.best_mean_pct)

    def _action_mix(self) -> ActionMix:
        return ActionMix(counts=dict(self._live_counts), successes=dict(self._live_successes))

    def _growth_view(self) -> GrowthView:
        board = self._scoreboard
        totals = {name: count + self._live_growth[name] for name, count in self._growth.items()}
        return GrowthView(
            **totals,
            blueprints=board.blueprints if board else None,
            params_added=board.params_added if board else None,
            compute_cost=board.compute_cost if board else None,
        )

    def _resource_view(self) -> ResourceView:
        return ResourceView(
            phases=tuple(self._phases.values()), allocators=tuple(self._allocators.values())
        )

    def _bus_view(self) -> BusView:
        span_s = self._recent[-1] - self._recent[0] if self._recent else 0.0
        return BusView(
            num_events=sum(self._counts.values()),
            last_seq=None if self._next_seq is None else self._next_seq - 1,
            events_per_s=(len(self._recent) - 1) / span_s if span_s > 0 else None,
            num_missed=self._num_missed,
            num_unreadable=self._num_unreadable,
            num_dropped=self._num_dropped,
            counts=dict(sorted(self._counts.items())),
        )

    @property
    def alarm_counts(self) -> Mapping[str, int]:
        """Return the number of alarms by type over the whole run."""
        return self._alarms.counts


def _news(marks: ChangeVersions, since: int, view: Callable[[int], T]) -> dict[int, T] | UnsetType:
    """Return the entries changed since a version; UNSET if there are none."""
    keys = marks.since(since)
    if keys is None:
        keys = sorted(marks.versions)
    elif not keys:
        return UNSET
    return {key: view(key) for key in keys}


_Handler = Callable[[ViewModel, Event, Any], None]
_HANDLERS: Final[Mapping[type[Payload], _Handler]] = {
    payloads.TrainingStarted: ViewModel._on_started,
    payloads.RunFinished: ViewModel._on_finished,
    payloads.CheckpointSaved: ViewModel._on_checkpoint,
    payloads.CheckpointLoaded: ViewModel._on_resumed,
    payloads.EpochCompleted: ViewModel._on_epoch,
    payloads.LastAction: ViewModel._on_action,
    payloads.CounterfactualMatrixComputed: ViewModel._on_matrix,
    payloads.CounterfactualUnavailable: ViewModel._on_unavailable,
    payloads.ShapleyComputed: ViewModel._on_shapley,
    payloads.SeedGerminated: ViewModel._on_germinated,
    payloads.SeedStageChanged: ViewModel._on_stage,
    payloads.SeedFossilized: ViewModel._on_fossilized,
    payloads.SeedPruned: ViewModel._on_pruned,
    payloads.GovernorRollback: ViewModel._on_rollback,
    payloads.EnvFailed: ViewModel._on_env_failed,
    EpisodeContextDrawn: ViewModel._on_context,
    payloads.EpisodeOutcome: ViewModel._on_outcome,
    payloads.BatchEpochCompleted: ViewModel._on_batch,
    payloads.BatchStats: ViewModel._on_stats,
    payloads.ActionDistribution: ViewModel._on_actions,
    payloads.PPOUpdateCompleted: ViewModel._on_update,
    payloads.Throughput: ViewModel._on_throughput,
    payloads.ScoreboardUpdated: ViewModel._on_scoreboard,
    payloads.PhaseProfileCompleted: ViewModel._on_profile,
    payloads.AllocatorStats: ViewModel._on_allocator,
    payloads.SubscriberLagged: ViewModel._on_lagged,
}
"""Handlers by payload type; other types are only counted."""
