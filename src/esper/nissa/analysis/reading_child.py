"""The child of `reading_processes`: counts or scans a part of a log.

The parent starts it as a module, so that neither counting nor scanning imports the other side.
"""

import gc
from typing import TYPE_CHECKING

import msgspec

from esper.nissa.analysis.child_process import serve
from esper.nissa.analysis.counting import CountTask, Tally, count_part

if TYPE_CHECKING:
    from esper.nissa.analysis.run_profile import Scan

__all__ = ["carry_out"]


def carry_out(task: bytes) -> "Tally | Scan":
    """Carry out an encoded task; its tag names its kind."""
    if CountTask.__struct_config__.tag == msgspec.json.decode(task, type=_Tag).type:
        return count_part(msgspec.json.decode(task, type=CountTask))
    # Imported here because the event table that a scan needs would double a count's memory.
    from esper.nissa.analysis.run_profile import ScanTask, scan_log

    return scan_log(msgspec.json.decode(task, type=ScanTask))


class _Tag(msgspec.Struct):
    type: str


if __name__ == "__main__":
    gc.disable()  # readers create no reference cycles; collection would take a tenth of the time
    serve(carry_out)
