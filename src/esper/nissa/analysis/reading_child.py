"""The child of `reading_processes`: counts a part of a log, scans one or digests its content.

The parent starts it as a module, so that none of these tasks imports what only the others need.
"""

import gc
from typing import TYPE_CHECKING

import msgspec

from esper.nissa.analysis.child_process import serve
from esper.nissa.analysis.counting import CountTask, Tally, count_part

if TYPE_CHECKING:
    from esper.nissa.analysis.content import Content
    from esper.nissa.analysis.run_profile import Scan

__all__ = ["carry_out"]


def carry_out(task: bytes) -> "Tally | Scan | Content":
    """Carry out an encoded task; its tag names its kind."""
    kind = msgspec.json.decode(task, type=_Tag).type
    if kind == CountTask.__struct_config__.tag:
        return count_part(msgspec.json.decode(task, type=CountTask))
    # Imported here because the event table that the others need would double a count's memory.
    from esper.nissa.analysis.content import ContentTask, read_content

    if kind == ContentTask.__struct_config__.tag:
        return read_content(msgspec.json.decode(task, type=ContentTask))
    # A scan only.
    from esper.nissa.analysis.run_profile import ScanTask, scan_log

    return scan_log(msgspec.json.decode(task, type=ScanTask))


class _Tag(msgspec.Struct):
    type: str


if __name__ == "__main__":
    gc.disable()  # readers create no reference cycles; collection would take a tenth of the time
    serve(carry_out)
