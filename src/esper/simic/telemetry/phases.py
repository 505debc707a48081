"""The phase profiler: wall and CPU time of each phase of a step, without device synchronization."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from esper.leyline.payloads import PhaseProfileCompleted, PhaseTime

__all__ = ["PhaseProfiler"]


@dataclass(eq=False, slots=True)
class PhaseProfiler:
    """Measures named phases; does nothing when disabled."""

    is_on: bool = True
    _times: dict[str, tuple[float, float]] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a block; CPU time is that of the whole process, including lanes."""
        if not self.is_on:
            yield
            return
        # Without waiting for a device: a phase that only queues GPU work looks short, and the one
        # that waits for it long.
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            known_wall, known_cpu = self._times.get(name, (0.0, 0.0))
            self._times[name] = (
                known_wall + time.perf_counter() - wall,
                known_cpu + time.process_time() - cpu,
            )

    def drain(self) -> PhaseProfileCompleted | None:
        """Return the measurements since the last call, or None when disabled."""
        if not self.is_on:
            return None
        phases = tuple(
            PhaseTime(phase=name, wall_ms=1e3 * wall, cpu_ms=1e3 * cpu)
            for name, (wall, cpu) in self._times.items()
        )
        self._times.clear()
        return PhaseProfileCompleted(phases=phases)
