"""What grew in the envs of a run, step by step, so that a bare loop can train the same networks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import msgspec

from esper.kasmina.counterfactual import NOTHING_OFF
from esper.kasmina.seed import SeedState
from esper.leyline.attribution import Ablation
from esper.leyline.messages import EnvEvidence
from esper.simic.training.assembly import worker_assembly
from esper.simic.training.env_work import TrainingWork
from esper.simic.training.parallel_env_state import ParallelEnvState
from esper.simic.training.run_result import TrainingResult
from tools.bench.workloads import Workload, run_workload

__all__ = ["NOTHING_GROWS", "EnvStep", "Replay", "recorded_run"]


class EnvStep(msgspec.Struct, frozen=True, kw_only=True):
    """The seeds and configurations of an env during one step."""

    round: int
    env_id: int
    step: int
    seeds: dict[str, SeedState | None] = {}
    """By slot; empty if nothing changed."""
    ablations: tuple[Ablation, ...] = (NOTHING_OFF,)
    """The validated configurations, the unablated network first."""


class Replay(msgspec.Struct, frozen=True):
    """All steps of a run's envs, in no order."""

    steps: tuple[EnvStep, ...] = ()

    def by_place(self) -> dict[tuple[int, int, int], EnvStep]:
        """Return the steps by round, env and step."""
        return {(item.round, item.env_id, item.step): item for item in self.steps}

    @classmethod
    def read(cls, path: Path) -> "Replay":
        """Read what `write` has written."""
        return msgspec.json.decode(path.read_bytes(), type=cls)

    def write(self, path: Path) -> None:
        """Write it for another process."""
        path.write_bytes(msgspec.json.encode(self))


NOTHING_GROWS = Replay()
"""A run that only waits."""


@dataclass(eq=False, kw_only=True, slots=True)
class _RecordingWork(TrainingWork):
    """Training that notes what it validates."""

    noted: list[EnvStep]

    def validate(self, env: ParallelEnvState, step: int, beat: Callable[[], None]) -> EnvEvidence:
        """Note the env's seeds and configurations, then validate it."""
        self.noted.append(
            EnvStep(
                round=env.round_index,
                env_id=env.env_idx,
                step=step,
                seeds={slot.slot_id: slot.state for slot in env.model.all_slots()},
                ablations=self._plan(env, step).ablations,
            )
        )
        # Named, as a dataclass with slots is a new class that `super()` does not know.
        return TrainingWork.validate(self, env, step, beat)


def recorded_run(
    workload: Workload, *, command: str, lanes: int | None = None
) -> tuple[TrainingResult, Replay]:
    """Run a workload on threads; what it grew is the same whenever and wherever it is run again."""
    noted: list[EnvStep] = []
    with patch.object(worker_assembly, "TrainingWork", partial(_RecordingWork, noted=noted)):
        result = run_workload(workload, command=command, lanes=lanes)
    return result, Replay(tuple(noted))
