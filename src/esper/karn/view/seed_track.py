"""Lifecycles of seeds, from germination to their final state."""

from dataclasses import dataclass, field

from esper.karn.view.change_versions import ChangeVersions
from esper.karn.view.snapshot import SeedView
from esper.karn.view.thresholds import LIMITS
from esper.leyline import payloads
from esper.leyline.stages import Stage
from esper.leyline.telemetry import Event

__all__ = ["SeedTrack"]

MAX_STAGES = 64
"""Stages stored per seed; a seed may alternate between BLENDING and HOLDING many times."""


@dataclass(eq=False, slots=True)
class _Life:
    seed_id: str
    env_id: int
    episode_id: int | None
    round: int
    slot_id: str
    blueprint: str
    num_params: int
    last_step: int
    stages: list[tuple[str, int]]
    fate: str = "growing"
    reason: str | None = None
    contribution_pp: float | None = None


@dataclass(eq=False, slots=True)
class SeedTrack:
    """Tracks the most recent seeds, numbered in order of germination."""

    marks: ChangeVersions = field(default_factory=ChangeVersions)
    _lives: dict[int, _Life] = field(default_factory=dict)
    _growing: dict[tuple[int, str], int] = field(default_factory=dict)
    """Number of the current seed by env and slot."""
    _next: int = 0

    def germinate(self, event: Event, data: payloads.SeedGerminated, version: int) -> None:
        """Record a new seed."""
        env_id, step = event.env_id or 0, event.step or 0
        number, self._next = self._next, self._next + 1
        self._lives[number] = _Life(
            seed_id=data.seed_id,
            env_id=env_id,
            episode_id=event.episode_id,
            round=event.round or 0,
            slot_id=data.slot_id,
            blueprint=data.blueprint,
            num_params=data.num_params,
            last_step=step,
            stages=[(Stage.GERMINATED.name, step)],
        )
        self._growing[env_id, data.slot_id] = number
        self.marks.touch(number, version)
        if len(self._lives) > LIMITS.max_seeds:
            self._forget(version)

    def _forget(self, version: int) -> None:
        """Drop the oldest quarter at once, so that clients rarely need the whole section again."""
        oldest = list(self._lives)[: LIMITS.max_seeds // 4]
        for number in oldest:
            del self._lives[number]
        self._growing = {key: item for key, item in self._growing.items() if item in self._lives}
        self.marks.drop(oldest, version)

    def change_stage(self, event: Event, data: payloads.SeedStageChanged, version: int) -> None:
        """Record a stage change."""
        life = self._touched(event, data.slot_id, version)
        # Stages after a prune belong to the slot's cooldown, not to the seed.
        if life is not None and life.fate != "pruned" and len(life.stages) < MAX_STAGES:
            life.stages.append((data.to_stage, event.step or 0))
        if data.to_stage == Stage.DORMANT.name:
            self._growing.pop((event.env_id or 0, data.slot_id), None)

    def fossilize(self, event: Event, data: payloads.SeedFossilized, version: int) -> None:
        """Record that a seed was fossilized."""
        life = self._touched(event, data.slot_id, version)
        if life is not None:
            life.fate, life.contribution_pp = "fossilized", data.contribution_pp

    def prune(self, event: Event, data: payloads.SeedPruned, version: int) -> None:
        """Record that a seed was pruned."""
        life = self._touched(event, data.slot_id, version)
        if life is not None:
            life.fate, life.contribution_pp = "pruned", data.contribution_pp
            life.reason = f"{data.initiator}: {data.reason}"

    def note_epoch(self, event: Event, data: payloads.EpochCompleted, version: int) -> None:
        """Update the contributions of an env's seeds."""
        for seed in data.seeds:
            life = self._touched(event, seed.slot_id, version)
            if life is not None and life.fate != "pruned":
                life.contribution_pp = seed.contribution_pp

    def end_episode(self, event: Event, version: int) -> None:
        """Mark seeds that were still growing as ended with their episode."""
        for env_id, slot_id in list(self._growing):
            if env_id == event.env_id:
                life = self._touched(event, slot_id, version)
                if life is not None and life.fate == "growing":
                    life.fate = "ended"
                del self._growing[env_id, slot_id]

    def _touched(self, event: Event, slot_id: str, version: int) -> _Life | None:
        number = self._growing.get((event.env_id or 0, slot_id))
        life = None if number is None else self._lives.get(number)
        if number is None or life is None or life.episode_id != event.episode_id:
            return None
        if life.fate != "pruned":
            life.last_step = max(life.last_step, event.step or 0)
        self.marks.touch(number, version)
        return life

    def view(self, number: int) -> SeedView:
        """Return the lifecycle of one seed."""
        life = self._lives[number]
        return SeedView(
            seed_id=life.seed_id,
            env_id=life.env_id,
            round=life.round,
            slot_id=life.slot_id,
            blueprint=life.blueprint,
            num_params=life.num_params,
            stages=tuple(life.stages),
            last_step=life.last_step,
            fate=life.fate,
            reason=life.reason,
            contribution_pp=life.contribution_pp,
        )

    def numbers(self) -> list[int]:
        """Return the numbers of the tracked seeds, oldest first."""
        return list(self._lives)
