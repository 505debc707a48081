"""Maps seed reports to their indices in arrays over envs and slots."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from esper.leyline.errors import UnknownNameError
from esper.leyline.reports import SeedReport

__all__ = ["LocatedReports", "locate_reports"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LocatedReports:
    """All reports of all envs in one list, with their env and slot indices."""

    reports: list[SeedReport]
    env_indices: list[int]
    slot_indices: list[int]


def locate_reports(
    reports_by_env: Sequence[Sequence[SeedReport]], slot_index: Mapping[str, int]
) -> LocatedReports:
    """Flatten the reports of all envs and look up the indices of each one."""
    reports: list[SeedReport] = []
    env_indices: list[int] = []
    slot_indices: list[int] = []
    for env_index, env_reports in enumerate(reports_by_env):
        for report in env_reports:
            if report.slot_id not in slot_index:
                raise UnknownNameError("slot", report.slot_id, slot_index)
            reports.append(report)
            env_indices.append(env_index)
            slot_indices.append(slot_index[report.slot_id])
    return LocatedReports(reports=reports, env_indices=env_indices, slot_indices=slot_indices)
