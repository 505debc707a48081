"""Work budgets: how much work the clients of a server may cause per second, alone and together."""

from dataclasses import dataclass, field
from typing import Final

import anyio

__all__ = ["ConnectionBudget", "TokenBucket", "new_total"]

UNITS_PER_S: Final = 100.0
"""Units of one connection. A unit is a request, a message, or a page of the log that is read."""
UNITS_BURST: Final = 200.0
TOTAL_PER_S: Final = 400.0
"""Units of all connections: about a fifth of a core. Beyond it, requests wait for their turn."""
TOTAL_BURST: Final = 800.0
MAX_DEBT_S: Final = 2.0
"""Longest time that a unit waits for its turn."""


@dataclass(eq=False, slots=True)
class TokenBucket:
    """A token bucket that may go into debt: taking never fails, but returns a time to wait."""

    per_s: float
    burst: float
    num_left: float = field(default=0.0, init=False)
    last_s: float | None = field(default=None, init=False)

    def take(self, now_s: float, num_tokens: float = 1.0) -> float:
        """Take tokens; return the delay until one more can be taken without debt."""
        earned = self.burst if self.last_s is None else self.per_s * (now_s - self.last_s)
        left = min(self.num_left + earned, self.burst) - num_tokens
        # Bounded: the work of clients that have left must not delay others for long.
        self.num_left, self.last_s = max(left, 1.0 - MAX_DEBT_S * self.per_s), now_s
        return max(0.0, (1.0 - self.num_left) / self.per_s)


def new_total() -> TokenBucket:
    """Return the bucket that all connections of a server share."""
    return TokenBucket(TOTAL_PER_S, TOTAL_BURST)


@dataclass(eq=False, slots=True)
class ConnectionBudget:
    """The budget of one connection, which is also charged to the shared one."""

    total: TokenBucket = field(default_factory=new_total)
    _own: TokenBucket = field(default_factory=lambda: TokenBucket(UNITS_PER_S, UNITS_BURST))

    async def spend(self, num_units: float = 1.0) -> None:
        """Wait until the connection may cause this much work.

        Turns are given in the order of the calls. A connection waits with one request at a time,
        so none waits longer than the others together take.
        """
        now_s = anyio.current_time()
        # Both are charged whichever is exhausted: a client over its own limit uses up the common
        # one, too.
        delay_s = max(self._own.take(now_s, num_units), self.total.take(now_s, num_units))
        await anyio.sleep(delay_s)  # suspends in any case: others get their turn
