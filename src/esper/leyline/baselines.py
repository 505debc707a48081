"""What is kept of a run to compare others with: its profile and where it comes from."""

from typing import Final

import msgspec

from esper.leyline.config import TrainingConfig
from esper.leyline.payloads import TrainingStarted

__all__ = ["BASELINE_FORMAT", "Baseline", "Provenance", "RunProfile"]

BASELINE_FORMAT: Final = "esper-baseline-1"


class RunProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about a log that two runs are compared by."""

    counts: dict[str, int]
    """Events by type."""
    terms: dict[str, int]
    """Sums and partial counts that equations are made of."""
    key_sets: dict[str, list[list[str]]]
    """Every set of payload keys that was seen, by type."""
    broken_orders: dict[str, int]
    """Order rules that the log breaks, and the line of the first breach."""
    started: TrainingStarted | None
    status: str | None
    """How the run ended; None when RUN_FINISHED is missing."""
    num_lines: int
    num_bad_lines: int
    digest: str
    """SHA-256 of the stream without what may differ between equal runs."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a profile comes from; None where nothing told."""

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
