"""How much memory a piece of code takes, in a process whose memory nothing else has shaped."""

import subprocess
import sys
from typing import Final

_TELL_PEAK: Final = """
import re, pathlib
print(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
"""


def peak_kib(code: str) -> float:
    """Return the most memory that a process which runs this code has ever had.

    The process looks itself: what the kernel tells its parent includes what the parent held.
    """
    command = [sys.executable, "-c", code + _TELL_PEAK]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])
