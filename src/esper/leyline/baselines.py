"""Baselines: the stored profile of a run, and its provenance, for comparison with other runs."""

from typing import Final

import msgspec

from esper.leyline.config import TrainingConfig
from esper.leyline.payloads import TrainingStarted

__all__ = ["BASELINE_FORMAT", "Baseline", "Provenance", "RunProfile"]

BASELINE_FORMAT: Final = "esper-baseline-1"


class RunProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The properties of a log by which two runs are compared."""

    counts: dict[str, int]
    """Events by type."""
    terms: dict[str, int]
    """Sums and partial counts used in the count equations."""
    key_sets: dict[str, list[list[str]]]
    """Every set of payload keys that was seen, by type."""
    broken_orders: dict[str, int]
    """Ordering rules that the log violates, with the line of the first violation."""
    started: TrainingStarted | None
    status: str | None
    """How the run ended; None when RUN_FINISHED is missing."""
    num_lines: int
    num_bad_lines: int
    digest: str
    """SHA-256 of the event stream without the fields that may differ between equal runs."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a profile comes from; None where unknown."""

    schema_version: int | None = None
    esper_version: str | None = None
    commit: str | None = None
    data_source: str | None = None
    machine_kind: str | None = None
    config: TrainingConfig | None = None


class Baseline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a baseline file."""

    format: str
    provenance: Provenance
    profile: RunProfile
