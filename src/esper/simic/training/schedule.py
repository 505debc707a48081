"""The schedule: which rounds a run has and how many steps each takes."""

from dataclasses import dataclass

__all__ = ["Schedule"]


@dataclass(eq=False, slots=True)
class Schedule:
    """Rounds that are still to be done; a resumed run starts in the middle."""

    num_rounds: int
    num_steps: int
    first_round: int = 0

    def rounds(self) -> range:
        """Return the rounds to do."""
        return range(self.first_round, self.num_rounds)

    def steps(self) -> range:
        """Return the steps of a round."""
        return range(self.num_steps)

    def progress_after(self, round_index: int) -> float:
        """Return the share of the run that is done after a round."""
        return (round_index + 1) / self.num_rounds
