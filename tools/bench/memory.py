"""Peak memory of a piece of code in a fresh process."""

import subprocess
import sys
from typing import Final

_PRINT_PEAK: Final = """
import re, pathlib
print(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
"""


def peak_kib(code: str) -> float:
    """Return the peak memory of a process that runs this code.

    The process looks itself: what the kernel reports to its parent includes what the parent held.
    """
    command = [sys.executable, "-c", code + _PRINT_PEAK]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])
