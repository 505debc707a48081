"""The processes below a process: which they are, and the memory that all of them hold."""

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def process_tree(root: int) -> list[int]:
    """Return a process and all of its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):  # it has ended meanwhile
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                children[parent].append(int(path.name))
    found = [root]
    for process in found:
        found += children[process]
    return found


def tree_bytes(root: int) -> int:
    """Return the resident memory of a process and all of its descendants."""
    num_pages = 0
    for process in process_tree(root):
        with suppress(OSError):
            num_pages += int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return num_pages * PAGE_BYTES


def helper_process(root: int, module: bytes) -> int:
    """Return the first process below a run whose command names a module."""
    for process in process_tree(root)[1:]:
        with suppress(OSError):
            if module in Path(f"/proc/{process}/cmdline").read_bytes():
                return process
    raise LookupError(f"process {root} has no {module.decode()}")


def server_process(root: int) -> int:
    """Return the live server's process of a run."""
    return helper_process(root, b"server_child")
