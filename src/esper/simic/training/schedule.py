"""The schedule: which rounds a run has and how many steps each takes."""

from dataclasses import dataclass

from esper.leyline.episodes import is_last_step

__all__ = ["Schedule"]


@dataclass(eq=False, slots=True)
class Schedule:
    """The remaining rounds; a resumed run starts at `first_round`."""

    num_rounds: int
    num_steps: int
    first_round: int = 0

    def rounds(self) -> range:
        """Return the remaining rounds."""
        return range(self.first_round, self.num_rounds)

    def has_next(self, round_index: int) -> bool:
        """Return whether another round follows this one."""
        return round_index + 1 < self.num_rounds

    def steps(self) -> range:
        """Return the steps of a round."""
        return range(self.num_steps)

    def is_last(self, step: int) -> bool:
        """Return whether episodes end with this step."""
        return is_last_step(step, self.num_steps)

    def progress_after(self, round_index: int) -> float:
        """Return the completed fraction of the run after a round."""
        return (round_index + 1) / self.num_rounds
