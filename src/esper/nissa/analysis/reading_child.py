"""The child of `reading_processes`: reads its task from the command line, writes its result.

The parent starts it as a module, so that neither counting nor scanning imports the other side.
"""

import gc
import sys
from typing import TYPE_CHECKING

import msgspec

from esper.leyline.errors import UsageError
from esper.nissa.analysis.counting import CountTask, Tally, count_part
from esper.nissa.analysis.reading_processes import REFUSED

if TYPE_CHECKING:
    from esper.nissa.analysis.run_profile import Scan

__all__: list[str] = []


def _work(text: str) -> int:
    try:
        result = _carry_out(text)
    except UsageError as error:
        sys.stdout.write(str(error))
        return REFUSED
    sys.stdout.buffer.write(msgspec.json.encode(result))
    return 0


def _carry_out(text: str) -> "Tally | Scan":
    if CountTask.__struct_config__.tag == msgspec.json.decode(text, type=_Tag).type:
        return count_part(msgspec.json.decode(text, type=CountTask))
    # Imported here because the event table that a scan needs would double a count's memory.
    from esper.nissa.analysis.run_profile import ScanTask, scan_log

    return scan_log(msgspec.json.decode(text, type=ScanTask))


class _Tag(msgspec.Struct):
    type: str


if __name__ == "__main__":
    gc.disable()  # readers create no reference cycles; collection would take a tenth of the time
    sys.exit(_work(sys.argv[1]))
