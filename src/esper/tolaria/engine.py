"""The engine: runs the passes of a round's envs by sending commands to their workers.

`Engine` is the interface the trainer uses. `WorkerEngine` implements it over ports to workers,
which may be threads of this process, processes of their own or Ray actors.
"""

import io
from collections.abc import Callable, Sequence
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
from esper.tolaria.lanes import Lane, wait_for_all

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

    Only decisions make a worker wait: the passes of the next step are queued behind the decisions
    of this step, and those of the next round behind the last step of this round.
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
        self._ahead: dict[Command, list[Future[Reply]]] = {}
        """Commands that were sent before their result was asked for."""
        self._failures: list[EnvFailure] = []
        """Failures since the last message to the trainer."""
        self._data_wait_s = 0.0
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
        self._send_ahead(Build(round=round_index), Train(step=0), Validate(step=0))

    async def build_round(self, round_index: int) -> tuple[EnvFailure, ...]:
        """Build the round's envs and release those of the previous round."""
        self._round_index = round_index
        await self._run(Build(round=round_index))
        return self._take_failures()

    async def train_pass(self, step: int) -> None:
        """Train every env for one host epoch."""
        self._data_wait_s += (await self._run(Train(step=step))).costs.data_wait_s

    async def validate_pass(self, step: int) -> StepEvidence:
        """Validate every env, including ablations, and return the evidence since the last step."""
        reply = await self._run(Validate(step=step))
        found = {item.env_id: item for item in reply.evidence}
        data_wait_s, self._data_wait_s = self._data_wait_s, 0.0
        return StepEvidence(
            round=self._round_index,
            step=step,
            envs=tuple(found.get(env_id) for env_id in range(self._num_envs)),
            failures=self._take_failures(),
            feeder_wait_s=data_wait_s,
        )

    async def apply(self, decision: StepDecision) -> StepOutcome:
        """Apply one decision per env and advance the slots by one step."""
        calls = [
            port.submit(Apply(decision=decision_for(decision, port.env_ids)))
            for port in self._ports
        ]
        # Behind the decisions in the workers' queues: no worker waits for the slowest one, nor for
        # control, before it trains on.
        if not decision.is_last_step:
            self._send_ahead(Train(step=decision.step + 1), Validate(step=decision.step + 1))
        reply = await self._merged(calls)
        self._memory |= reply.costs.memory
        executed = reply.executed or ActionExecutionResult()
        found = {outcome.env_id: outcome for outcome in executed.outcomes}
        return StepOutcome(
            round=decision.round,
            step=decision.step,
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
        # Commands are values, so the one that is asked for finds the equal one that was sent ahead.
        calls = self._ahead.pop(command) if command in self._ahead else self._send(command)
        return await self._merged(calls)

    async def _merged(self, calls: "Sequence[Future[Reply]]") -> Reply:
        reply = merge_replies(await wait_for_all(calls))
        self._failures += reply.failures
        return reply

    def _take_failures(self) -> tuple[EnvFailure, ...]:
        found, self._failures = self._failures, []
        # Workers answer in any order; events must not depend on it.
        return tuple(sorted(found, key=_env_id))

    def _send_ahead(self, *commands: Command) -> None:
        if self._is_queued_ahead:
            for command in commands:
                self._ahead[command] = self._send(command)

    def _send(self, command: Command) -> "list[Future[Reply]]":
        return [port.submit(command) for port in self._ports]


def _env_id(failure: EnvFailure) -> int:
    return failure.env_id


def _decoded(state: bytes) -> dict[str, Any]:
    # weights_only: what another process sends is data, never code.
    loaded: dict[str, Any] = torch.load(io.BytesIO(state), weights_only=True)
    return loaded
