"""The manifest of a run: what `run.json` says about how its log came to be."""

import msgspec

from esper.leyline.config import Job
from esper.leyline.contexts import ContextSpec

__all__ = ["PolicyOrigin", "RunManifest"]


class PolicyOrigin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run whose policy another run begins with."""

    run_id: str
    task: str
    rounds_completed: int
    """By the checkpoint that was taken."""


class RunManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a log comes from, without naming a host, a user or an absolute path."""

    run_id: str
    """Eight lower-case hex characters."""
    created: str
    """UTC, ISO 8601, to the second."""
    esper_version: str
    schema_version: int
    """Of the events."""
    command: str
    """The controller: ppo, heuristic, random, wait or periodic."""
    contexts: tuple[ContextSpec, ...] = ()
    """Of the task; each episode has one of them, which EPISODE_CONTEXT_DRAWN names."""
    job: Job
    """What was run; paths are shortened to their last part, the token is left out."""
    versions: dict[str, str]
    """Of Python and the packages that results or logs depend on, by name."""
    commit: str | None
    """Of Esper's own source; None outside a checkout."""
    cpu_model: str
    num_cores: int
    machine_kind: str
    """What bit-equality may be expected on; equal strings, equal bits."""
    data_source: str | None
    """`files`, `download`, `package` or `synthetic`; None while it is not known."""
    policy_origin: PolicyOrigin | None = None
    """Where the first weights of the policy are from; None if they were drawn."""
    host_flop_per_sample: float | None = None
    """Training FLOP per sample of a host without seeds; None for a probe, which has no network."""
