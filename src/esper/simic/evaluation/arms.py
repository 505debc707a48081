"""Arms of a comparison: how they are named, and what decides in each."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
import torch

from esper.leyline.actions import BLUEPRINTS
from esper.leyline.config import Job
from esper.leyline.errors import UnknownNameError, UsageError
from esper.leyline.payloads import TopologyManifestRecorded
from esper.leyline.schedules import Schedule, ThresholdRule, decode_rule, decode_schedule
from esper.nissa.storage.files import read_limited
from esper.simic.evaluation.recorded import last_recorded
from esper.simic.training.checkpoints.builtin import checkpoint_at
from esper.simic.training.checkpoints.checkpointer import LoadedRun
from esper.simic.training.checkpoints.resuming import load_run
from esper.simic.training.static_work import seeds_in

__all__ = [
    "BASELINES",
    "Arm",
    "ArmKind",
    "check_topologies",
    "materialize_policy_digest",
    "parse_arms",
]

BASELINES: Final = ("wait", "random", "heuristic", "periodic")
POLICY: Final = "ppo"
STATIC: Final = "static-final"
MATCHED: Final = "random-matched"
MAX_SCHEDULE_BYTES: Final = 1 << 20


class ArmKind(StrEnum):
    """What decides in an arm."""

    BASELINE = "baseline"
    POLICY = "ppo"
    STATIC = "static-final"
    """Nothing: the final networks of a policy, or of the last round of a run, from scratch."""
    SCHEDULE = "schedule"
    """A fixed list of actions."""
    YOKED = "yoked"
    """What the policy did to the envs of another seed."""
    BLIND = "blind"
    """The policy, which is shown the observations of other envs."""
    MATCHED = "random-matched"
    """Chance, as often with each op as the policy that it copies."""
    RULE = "rule"
    """A threshold rule."""
    ORACLE = "oracle"
    """The schedule that was found best for each context, by an arm that is told the context."""


SEARCHED: Final = {
    "schedule:search": ArmKind.SCHEDULE,
    "rule:search": ArmKind.RULE,
    "oracle": ArmKind.ORACLE,
}
"""Arms that a search is made for."""
WITH_POLICY: Final = frozenset({ArmKind.POLICY, ArmKind.YOKED, ArmKind.BLIND})
"""Kinds that are named with checkpoints."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One controller of a comparison."""

    name: str
    command: str
    """Name of the controller; that of a static arm waits."""
    policies: tuple[LoadedRun, ...] = ()
    """One stratum each; empty for arms without a trained policy."""
    kind: ArmKind = ArmKind.BASELINE
    schedule: Schedule = ()
    rule: ThresholdRule | None = None
    by_context: Mapping[str, Schedule] = field(default_factory=dict)
    """Of the oracle."""
    is_searched: bool = False
    """What decides is still to be found; `resolve` returns the arm with it."""
    copies: "Arm | None" = None
    """The arm whose final networks, or numbers of acts, this one takes over."""
    recorded: tuple[TopologyManifestRecorded, ...] = ()
    """The recorded networks of a run that this arm trains from scratch, env by env."""

    @property
    def num_strata(self) -> int:
        """Count the strata."""
        return max(len(self._decisive_policies), 1)

    @property
    def follows_policy(self) -> bool:
        """Return whether its results depend on a policy, its own or that of the arm it copies."""
        return bool(self._decisive_policies)

    @property
    def policy_set(self) -> str | None:
        """Return the checkpoints that its results depend on; arms of the same ones share them."""
        followed = self if self.copies is None else self.copies
        checkpoints = followed.name.partition(":")[2] or followed.name
        return checkpoints if followed.policies else None

    @property
    def _decisive_policies(self) -> tuple[LoadedRun, ...]:
        return self.policies if self.copies is None else self.copies.policies

    def digest(self, stratum: int) -> str:
        """Return a digest of everything that determines a run's result besides job and seed."""
        if self.copies is not None:
            return f"{self.name} of {self.copies.digest(stratum)}"
        if self.recorded:
            content = hashlib.sha256(msgspec.json.encode(self.recorded)).hexdigest()
            return f"{STATIC} of {content}"
        if self.kind in (ArmKind.SCHEDULE, ArmKind.RULE, ArmKind.ORACLE):
            found = msgspec.json.encode([self.schedule, self.rule, dict(self.by_context)])
            return f"{self.kind} of {hashlib.sha256(found).hexdigest()}"
        if not self.policies:
            return self.name
        digest = materialize_policy_digest(self.policies[stratum])
        return digest if self.kind is ArmKind.POLICY else f"{self.kind} of {digest}"


def materialize_policy_digest(policy: LoadedRun) -> str:
    """Return a hash of the state of a frozen policy, independent of its path."""
    assert policy.controller is not None, f"{policy.path} has a policy"
    agent, normalizer = policy.controller["agent"], policy.controller["obs_normalizer"]
    digest = hashlib.sha256(repr(agent["config"]["policy"]).encode())
    for part in (agent["network"], normalizer):
        for name, value in sorted(part.items()):
            digest.update(name.encode())
            is_tensor = isinstance(value, torch.Tensor)
            digest.update(value.numpy().tobytes() if is_tensor else repr(value).encode())
    return digest.hexdigest()


def parse_arms(texts: Sequence[str]) -> tuple[Arm, ...]:
    """Parse the names of arms, such as `wait` or `ppo:CHECKPOINT[,CHECKPOINT…]`."""
    arms: list[Arm] = []
    for text in texts:
        arms.append(_parse_arm(text, arms))
    names = [arm.name for arm in arms]
    if len(arms) < 2 or len(set(names)) < len(names):
        raise UsageError(
            f"arms {names}: expected at least two distinct arms, such as {' '.join(BASELINES[:2])}"
        )
    return tuple(arms)


def _parse_arm(text: str, before: Sequence[Arm]) -> Arm:
    if text in BASELINES:
        return Arm(name=text, command=text)
    if text in (STATIC, MATCHED):
        return _copying_arm(text, before)
    kind, _, paths = text.partition(":")
    if kind == STATIC and paths:
        recorded = last_recorded(Path(paths))
        return Arm(name=text, command="wait", kind=ArmKind.STATIC, recorded=recorded)
    if text in SEARCHED:
        return Arm(name=text, command="wait", kind=SEARCHED[text], is_searched=True)
    if kind == ArmKind.SCHEDULE and paths:
        data = read_limited(Path(paths), MAX_SCHEDULE_BYTES, "schedule")
        schedule = decode_schedule(data, paths)
        return Arm(name=text, command="wait", kind=ArmKind.SCHEDULE, schedule=schedule)
    if kind == ArmKind.RULE and paths:
        rule = decode_rule(read_limited(Path(paths), MAX_SCHEDULE_BYTES, "rule"), paths)
        return Arm(name=text, command="wait", kind=ArmKind.RULE, rule=rule)
    if kind not in WITH_POLICY or not paths:
        known = (f"{kind}:CHECKPOINT" for kind in ArmKind if kind in WITH_POLICY)
        others = (
            f"{ArmKind.SCHEDULE}:FILE",
            f"{ArmKind.RULE}:FILE",
            *SEARCHED,
            STATIC,
            f"{STATIC}:RUN",
            MATCHED,
        )
        raise UnknownNameError("arm", text, (*BASELINES, *known, *others))
    return Arm(name=text, command=POLICY, kind=ArmKind(kind), policies=_policies_at(paths))


def _copying_arm(text: str, before: Sequence[Arm]) -> Arm:
    model = next((arm for arm in before if arm.kind is ArmKind.POLICY), None)
    if model is None:
        hint = f", or name a run that has recorded networks: {STATIC}:RUN" if text == STATIC else ""
        what = "the networks" if text == STATIC else "the numbers of acts"
        raise UsageError(
            f"arm {text!r} copies {what} of a policy; put ppo:CHECKPOINT before it{hint}"
        )
    return Arm(name=text, command="wait", kind=ArmKind(text), copies=model)


def _policies_at(paths: str) -> tuple[LoadedRun, ...]:
    policies = tuple(load_run(checkpoint_at(path)) for path in paths.split(","))
    for policy in policies:
        if policy.controller is None:
            raise UsageError(
                f"{policy.path}: a checkpoint of {policy.command!r}, which has no policy; "
                f"name the arm {policy.command!r} itself"
            )
    return policies


def check_topologies(
    job: Job,
    arm: Arm,
    topologies: Mapping[int, TopologyManifestRecorded],
    host_params: Mapping[int, int],
) -> None:
    """Raise if the recorded networks of an arm do not fit this comparison's hosts, env by env."""
    training = job.training
    offered = {*BLUEPRINTS, *training.blueprints}
    if arm.recorded and len(arm.recorded) < training.n_envs:
        raise UsageError(
            f"{arm.name}: has the networks of {len(arm.recorded)} envs and the comparison has "
            f"{training.n_envs}; choose fewer with --envs"
        )
    for env_id, manifest in topologies.items():
        if manifest.host_params != host_params[env_id]:
            raise UsageError(
                f"{arm.name}: grew on a host with {manifest.host_params} parameters, and that of "
                f"{training.task!r} has {host_params[env_id]}; compare on the task of the run"
            )
        missing = {seed.slot_id for seed in seeds_in(manifest)} - set(training.slots)
        if missing:
            raise UsageError(
                f"{arm.name}: has seeds in {' '.join(sorted(missing))} and the comparison has the "
                f"slots {' '.join(training.slots)}; choose the same with --slots"
            )
        added = {seed.blueprint for seed in seeds_in(manifest)} - offered
        if added:
            raise UsageError(
                f"{arm.name}: has seeds of the blueprints {' '.join(sorted(added))}, which the "
                "comparison does not offer; add them with --blueprints"
            )
