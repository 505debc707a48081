"""A run that goes on for long takes no more threads and files than it began with."""

from pathlib import Path

from tools.soak.endurance import MIB, steady_samples

SECONDS = 6.0
MAX_GROWTH_MIB = 16.0
"""Memory is still warming up in seconds; the soak holds the real bound."""


def test_rounds_leave_no_thread_no_file_and_little_memory_behind(tmp_path: Path) -> None:
    steady = steady_samples(tmp_path, SECONDS)

    assert len(steady) > 1
    assert {sample.num_threads for sample in steady} == {steady[0].num_threads}
    assert {sample.num_files for sample in steady} == {steady[0].num_files}
    assert (steady[-1].rss_bytes - steady[0].rss_bytes) / MIB < MAX_GROWTH_MIB
