"""What an overlay shows of a run: a point per round and the events counted, read as it grows."""

import re
from pathlib import Path
from typing import Final

import msgspec

from esper.karn.view.followed_log import FollowedLog
from esper.karn.view.snapshot import Measured
from esper.leyline.errors import EventDecodeError
from esper.leyline.payloads import BatchEpochCompleted, ScoreboardUpdated, Throughput
from esper.leyline.telemetry import Event, EventType, decode_event
from esper.nissa.storage.journal import EVENTS_FILE

__all__ = ["MAX_POINTS", "RoundPoint", "RunCurves"]

MAX_POINTS: Final = 500
"""Points of one run; beyond it, every second one of the older half is left out."""
GIGA: Final = 1e9

_HEAD: Final = re.compile(rb'^\{"event_type":"([A-Z_]{1,64})"', re.MULTILINE)
_WANTED: Final = re.compile(
    rb'^\{"event_type":"(?:BATCH_EPOCH_COMPLETED|THROUGHPUT|SCOREBOARD_UPDATED)".*$', re.MULTILINE
)


class RoundPoint(msgspec.Struct, kw_only=True, gc=False):
    """One finished round; `env_steps`, `wall_s` and `gflop` are sums from the run's beginning."""

    round: int
    accuracy_pct: Measured = None
    reward: Measured = None
    task_return: Measured = None
    env_steps: int | None = None
    wall_s: Measured = None
    gflop: Measured = None
    """Estimated FLOP of training the hosts; None if the host's cost is not known."""


class RunCurves:
    """Reads a log once, in parts; blocks on file access, so use it in a worker thread."""

    def __init__(self, run_dir: Path, flop_per_sample: float | None) -> None:
        """Read nothing yet.

        Args:
            run_dir: the run.
            flop_per_sample: training FLOP of a host without seeds, if known.
        """
        self._log = FollowedLog(run_dir / EVENTS_FILE)
        self._flop_per_sample = flop_per_sample
        self._points: dict[int, RoundPoint] = {}
        self._cost = 1.0
        self._env_steps = 0
        self._wall_s = 0.0
        self._gflop = 0.0
        self.counts: dict[str, int] = {}
        """Events by type; types that this version does not know are left out."""

    def read_more(self) -> bool:
        """Read the next part of the log; return False at its end.

        Raises:
            UnreadableFileError: if the log cannot be read, or was cut back by a resumed run.
        """
        block = self._log.read_more()
        if block is None:
            return False
        for head in _HEAD.findall(block.data):
            name = head.decode()
            if name in EventType.__members__:
                self.counts[name] = self.counts.get(name, 0) + 1
        for line in _WANTED.findall(block.data):
            try:
                self._apply(decode_event(line))
            except EventDecodeError:
                continue  # `validate` reports damage
        return True

    def points(self) -> tuple[RoundPoint, ...]:
        """Return the finished rounds, in the order of the log."""
        return tuple(
            point
            for point in self._points.values()
            if point.accuracy_pct is not None or point.reward is not None
        )

    def _apply(self, event: Event) -> None:
        if event.round is None:
            return
        point = self._points.setdefault(event.round, RoundPoint(round=event.round))
        match event.data:
            case BatchEpochCompleted() as done:
                point.accuracy_pct = done.mean_accuracy_pct
                point.reward = done.mean_reward
                point.task_return = done.mean_task_return
            case Throughput() as spent:
                self._add(spent, point)
            case ScoreboardUpdated(compute_cost=cost):
                self._cost = cost
        if len(self._points) > MAX_POINTS:
            for key in list(self._points)[1 : MAX_POINTS // 2 : 2]:
                del self._points[key]

    def _add(self, spent: Throughput, point: RoundPoint) -> None:
        self._env_steps += spent.env_steps
        self._wall_s += spent.duration_s or 0.0
        point.env_steps, point.wall_s = self._env_steps, self._wall_s
        if self._flop_per_sample is not None:
            self._gflop += spent.train_samples * self._flop_per_sample * self._cost / GIGA
            point.gflop = self._gflop
