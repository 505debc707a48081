"""Order rules: constraints on the order of events in the log of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from esper.nissa.analysis.facts import Fact

__all__ = ["OrderWatch"]

STARTS_FIRST: Final = "TRAINING_STARTED is the first event"
FINISHES_LAST: Final = "RUN_FINISHED is the last event"
EPOCH_BEFORE_ACTION: Final = "EPOCH_COMPLETED precedes the LAST_ACTION of its env and step"
ROUND_TAIL: Final = (
    "a round ends with PPO_UPDATE_COMPLETED, BATCH_STATS, BATCH_EPOCH_COMPLETED, "
    "ACTION_DISTRIBUTION in this order"
)
OUTCOME_BEFORE_BARRIER: Final = "EPISODE_OUTCOME precedes BATCH_EPOCH_COMPLETED of its round"
STAGE_BEFORE_FATE: Final = "SEED_FOSSILIZED and SEED_PRUNED follow their SEED_STAGE_CHANGED"

_TAIL_RANKS: Final[Mapping[str, int]] = {
    "PPO_UPDATE_COMPLETED": 0,
    "BATCH_STATS": 1,
    "BATCH_EPOCH_COMPLETED": 2,
    "ACTION_DISTRIBUTION": 3,
}
_FATES: Final = {"SEED_FOSSILIZED": "FOSSILIZED", "SEED_PRUNED": "PRUNED"}


class _Finish(NamedTuple):
    """The position of RUN_FINISHED."""

    line: int
    num_events: int


@dataclass(eq=False, slots=True)
class OrderWatch:
    """Checks the order rules event by event and records the first violation of each."""

    broken: dict[str, int] = field(default_factory=dict)
    _finish: _Finish | None = None
    _open_steps: set[bytes] = field(default_factory=set)
    _tail_ranks: dict[int, int] = field(default_factory=dict)
    _stages: dict[tuple[int | None, str | None], str | None] = field(default_factory=dict)

    def see_start(self, line: int, num_events: int) -> None:
        """Process a TRAINING_STARTED, the `num_events`th event of its log."""
        if num_events != 1:
            self._break(STARTS_FIRST, line)

    def see_finish(self, line: int, num_events: int) -> None:
        """Process a RUN_FINISHED, the `num_events`th event of its log."""
        self._finish = _Finish(line, num_events)

    def see_step(self, event_type: bytes, scope: bytes, line: int) -> None:
        """Process an EPOCH_COMPLETED or LAST_ACTION; `scope` identifies its env and step."""
        if event_type == b"EPOCH_COMPLETED":
            self._open_steps.add(scope)
        elif scope in self._open_steps:
            self._open_steps.discard(scope)
        else:
            self._break(EPOCH_BEFORE_ACTION, line)

    def see_fact(self, fact: Fact, line: int) -> None:
        """Process an event that was decoded as a fact."""
        event_type = fact.event_type
        if event_type in _TAIL_RANKS:
            self._see_tail(event_type, fact.round or 0, line)
        elif event_type == "EPISODE_OUTCOME":
            if self._tail_ranks.get(fact.round or 0, -1) >= _TAIL_RANKS["BATCH_EPOCH_COMPLETED"]:
                self._break(OUTCOME_BEFORE_BARRIER, line)
        elif event_type == "SEED_STAGE_CHANGED":
            self._stages[fact.env_id, fact.data.slot_id] = fact.data.to_stage
        elif event_type in _FATES:
            stage = self._stages.pop((fact.env_id, fact.data.slot_id), None)
            if stage != _FATES[event_type]:
                self._break(STAGE_BEFORE_FATE, line)

    def _see_tail(self, event_type: str, round_index: int, line: int) -> None:
        rank = _TAIL_RANKS[event_type]
        if self._tail_ranks.get(round_index, -1) >= rank:
            self._break(ROUND_TAIL, line)
        self._tail_ranks[round_index] = rank

    def end(self, num_events: int) -> None:
        """Process the end of the log."""
        if self._finish is not None and self._finish.num_events != num_events:
            self._break(FINISHES_LAST, self._finish.line)

    def _break(self, rule: str, line: int) -> None:
        self.broken.setdefault(rule, line)
