"""The engine: runs the passes of a round's envs by sending commands to their workers.

`Engine` is the interface the trainer uses. `WorkerEngine` implements it over ports to workers,
which may be threads of this process, processes of their own or Ray actors.
"""

import io
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import torch

from esper.leyline.engine_payloads import WorkerRestarted
from esper.leyline.messages import (
    ActionExecutionResult,
    EnvFailure,
    EnvTestResult,
    MemoryStats,
    StepDecision,
    StepEvidence,
    StepOutcome,
    by_env,
)
from esper.leyline.workers import (
    Apply,
    Build,
    Command,
    Reply,
    Snapshot,
    Test,
    Train,
    Validate,
    decision_for,
    merge_replies,
)
from esper.tolaria.lanes import Lane, joined, wait_for_all, wait_for_some

__all__ = ["Connection", "Port", "WorkerEngine"]


class Connection(Protocol):
    """The driver's end of a worker, until that is lost."""

    @property
    def env_ids(self) -> tuple[int, ...]:
        """Return the envs that the worker owns."""

    def submit(self, command: Command) -> "Future[Reply]":
        """Queue a command; replies become available in the order of submission."""

    def end_if_silent(self, deadline_s: float) -> None:
        """End a worker of another process that has had no heartbeat for too long."""

    def close(self) -> None:
        """End the worker."""


class Port(Connection, Protocol):
    """The driver's end of a worker, as the engine needs it."""

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return the worker's threads if they belong to this process, for the watchdog."""

    def env_ids_of(self, lane: Lane) -> tuple[int, ...]:
        """Return the envs that a lane of this process owns."""

    def report_restarts_to(self, report: Callable[[WorkerRestarted], object]) -> None:
        """Call `report` with the event about each time that the worker was replaced."""


class WorkerEngine:
    """Spreads the envs of a round over workers.

    Only the decisions about its own envs make a worker wait: the passes of the next step are queued
    behind the decisions of this step, and those of the next round behind the last step of this
    round. A step ends when all workers have carried their decisions out, so that no worker is more
    than one step ahead of another.
    """

    def __init__(
        self, ports: Sequence[Port], *, num_envs: int, is_queued_ahead: bool = True
    ) -> None:
        """Drive workers that together own all envs.

        Args:
            ports: to the workers.
            num_envs: envs per round.
            is_queued_ahead: False sends each command when its result is asked for; results are
                the same, and one step ends before the next begins.
        """
        self._is_queued_ahead = is_queued_ahead
        self._ports = tuple(ports)
        self._num_envs = num_envs
        self._round_index = 0
        self._ahead: dict[tuple[Port, Command], Future[Reply]] = {}
        """Commands that were sent before their result was asked for."""
        self._step = 0
        self._passes: dict[Port, Future[list[Reply]]] = {}
        """Training and validation of this step, of the workers without a decision."""
        self._applied: list[Future[Reply]] = []
        """What the workers with a decision do with it."""
        self._failures: list[EnvFailure] = []
        """Failures since the last message to the trainer."""
        self._memory: dict[str, MemoryStats] = {}

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """Return the workers' threads of this process, for the watchdog."""
        return tuple(lane for port in self._ports for lane in port.lanes)

    def env_ids_of(self, lane: Lane) -> tuple[int, ...]:
        """Return the envs that a lane of this process owns."""
        return tuple(env_id for port in self._ports for env_id in port.env_ids_of(lane))

    def report_restarts_to(self, report: Callable[[WorkerRestarted], object]) -> None:
        """Call `report` with the event about each worker that was lost and replaced."""
        for port in self._ports:
            port.report_restarts_to(report)

    def end_silent_workers(self, deadline_s: float) -> None:
        """End workers of other processes that have had no heartbeat for too long."""
        for port in self._ports:
            port.end_if_silent(deadline_s)

    def start_round(self, round_index: int) -> None:
        """Start what a round begins with: building its envs and their first passes."""
        self._send_ahead(self._ports, Build(round=round_index), Train(step=0), Validate(step=0))

    async def build_round(self, round_index: int) -> tuple[EnvFailure, ...]:
        """Build the round's envs and release those of the previous round."""
        self._round_index = round_index
        await self._run(Build(round=round_index))
        return self._take_failures()

    def start_step(self, step: int) -> None:
        """Let all workers train and validate their envs."""
        self._step = step
        for port in self._ports:
            calls = [self._sent(port, Train(step=step)), self._sent(port, Validate(step=step))]
            self._passes[port] = joined(calls, list)

    async def next_evidence(self, min_share: float = 1.0) -> StepEvidence | None:
        """Return the evidence of the workers that have validated; None after the last of them.

        Args:
            min_share: of the envs of the run to wait for, if so many are left.
        """
        if not self._passes:
            return None
        ended = await wait_for_some([*self._passes.values()], self._num_needed(min_share))
        done = [port for port, passes in self._passes.items() if passes in ended]
        replies = [reply for port in done for reply in self._passes.pop(port).result()]
        merged = self._noting_failures(merge_replies(replies))
        found = {item.env_id: item for item in merged.evidence}
        return StepEvidence(
            round=self._round_index,
            step=self._step,
            env_ids=tuple(sorted(env_id for port in done for env_id in port.env_ids)),
            envs=tuple(found.get(env_id) for env_id in range(self._num_envs)),
            failures=self._take_failures(),
            feeder_wait_s=merged.costs.data_wait_s,
        )

    def apply(self, decision: StepDecision, env_ids: Collection[int]) -> None:
        """Let the workers of these envs apply the decisions and advance their slots by one step."""
        for port in self._ports:
            if port.env_ids[0] in env_ids:
                command = Apply(decision=decision_for(decision, port.env_ids))
                self._applied.append(port.submit(command))
                # Behind the decisions in the worker's queue: it waits neither for the slowest
                # worker nor for control before it trains on.
                if not decision.is_last_step:
                    step = decision.step + 1
                    self._send_ahead([port], Train(step=step), Validate(step=step))

    async def outcome(self) -> StepOutcome:
        """Wait until all workers have applied the decisions of the step."""
        applied, self._applied = self._applied, []
        reply = await self._merged(applied)
        self._memory |= reply.costs.memory
        executed = reply.executed or ActionExecutionResult()
        found = {outcome.env_id: outcome for outcome in executed.outcomes}
        return StepOutcome(
            round=self._round_index,
            step=self._step,
            envs=tuple(found.get(env_id) for env_id in range(self._num_envs)),
            failures=self._take_failures(),
            truncated_bootstrap_targets=tuple(executed.truncated_bootstrap_targets),
            post_action_signals=tuple(executed.post_action_signals),
            post_action_slot_reports=tuple(executed.post_action_slot_reports),
            post_action_masks=tuple(executed.post_action_masks),
        )

    async def test_pass(self, step: int) -> tuple[EnvTestResult | None, ...]:
        """Evaluate every env on the test split, which no decision depends on."""
        found = {item.env_id: item for item in (await self._run(Test(step=step))).tests}
        return tuple(found.get(env_id) for env_id in range(self._num_envs))

    async def snapshot(self, env_id: int) -> dict[str, Any] | None:
        """Return a copy of what is needed to rebuild an env's network; None for a failed env."""
        port = next(port for port in self._ports if env_id in port.env_ids)
        reply = await self._merged([port.submit(Snapshot(env_id=env_id))])
        return None if reply.snapshot is None else _decoded(reply.snapshot)

    def memory(self) -> tuple[tuple[str, MemoryStats], ...]:
        """Return the memory statistics of the envs' devices, as of the end of the last round."""
        return tuple(sorted(self._memory.items()))

    def close(self) -> None:
        """Release the envs and end the workers."""
        for port in self._ports:
            port.close()

    async def _run(self, command: Command) -> Reply:
        """Return the merged replies of all workers to a command, sent ahead or now."""
        return await self._merged([self._sent(port, command) for port in self._ports])

    async def _merged(self, calls: "Sequence[Future[Reply]]") -> Reply:
        return self._noting_failures(merge_replies(await wait_for_all(calls)))

    def _noting_failures(self, reply: Reply) -> Reply:
        self._failures += reply.failures
        return reply

    def _take_failures(self) -> tuple[EnvFailure, ...]:
        found, self._failures = self._failures, []
        # Workers answer in any order; events must not depend on it.
        return tuple(sorted(found, key=by_env))

    def _num_needed(self, min_share: float) -> int:
        """Return how many workers without a decision have so many envs, whichever they are."""
        num_wanted, num_found = min_share * self._num_envs, 0
        # The smallest first: these are the workers that it takes most of.
        sizes = sorted(len(port.env_ids) for port in self._passes)
        for num_workers, size in enumerate(sizes, start=1):
            num_found += size
            if num_found >= num_wanted:
                return num_workers
        return len(sizes)

    def _send_ahead(self, ports: Iterable[Port], *commands: Command) -> None:
        if self._is_queued_ahead:
            for port in ports:
                for command in commands:
                    self._ahead[port, command] = port.submit(command)

    def _sent(self, port: Port, command: Command) -> "Future[Reply]":
        # Commands are values, so the one that is asked for finds the equal one that was sent ahead.
        return self._ahead.pop((port, command), None) or port.submit(command)


def _decoded(state: bytes) -> dict[str, Any]:
    # weights_only: what another process sends is data, never code.
    loaded: dict[str, Any] = torch.load(io.BytesIO(state), weights_only=True)
    return loaded
