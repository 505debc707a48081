"""Which modules know threads: tolaria's, and those that cannot import tolaria."""

import pytest
from tools.source_modules import source_modules

THREAD_LIBRARIES = (
    "threading",
    "_thread",
    "queue",
    "multiprocessing",
    "concurrent.futures.ThreadPoolExecutor",
    "anyio.to_thread",
    "anyio.from_thread",
    "asyncio.to_thread",
)

OWNER = "tolaria"
"""Its lanes, ports, stop flag and event loop are what the rest of a run gets its threads from."""

USERS = {
    # The bus runs without torch, in other processes too, so it cannot import tolaria.
    "esper.nissa.bus.inbox": "producers on any thread number and queue events under one lock",
    "esper.nissa.bus.writer": "the writer thread",
    "esper.nissa.bus.feed": "the writer thread wakes subscribers on the event loop",
    "esper.nissa.bus.block_index": "written by the writer thread, read by subscribers",
    "esper.nissa.bus.recording_hub": "a double of the hub; lanes emit to it, too",
    "esper.nissa.bus.hub": "a task waits for room in the inbox without blocking its loop",
    "esper.nissa.bus.subscribers": "a log is replayed from disk without blocking the loop",
    "esper.nissa.reading.query": "a timer ends statements that take too long",
    "esper.nissa.sinks.callback": "a caller's function is called without blocking the loop",
    "esper.nissa.sinks.sink_process": "waits for a sink's end without blocking the loop",
    "esper.nissa.live.app": "a search reads the log without blocking the loop",
    # The view runs without torch, in a process of its own.
    "esper.karn.console.console": "the screen is drawn on a thread: a terminal may block",
    "esper.karn.view.view_feed": "the view is built on a thread and shown by another",
    "esper.karn.view.followed_log": "a log is read without blocking the loop",
    "esper.karn.web.runs_routes": "runs are read without blocking the loop",
    "esper.karn.web.server_process": "waits for the server's end without blocking the loop",
    "esper.karn.mcp.server": "runs are read without blocking the loop",
    # Below tolaria.
    "esper.kasmina.hosts.global_generator": "lanes build networks whose code draws from it",
    "esper.kasmina.hosts.staged": "tracing a module affects those that other threads run",
    # Below tolaria, and without torch.
    "esper.nissa.analysis.child_process": "a child reads requests while it works on one",
    "esper.leyline.stop_signals": "only the main thread may install signal handlers",
    "esper.simic.evaluation.sweep": "a trial that is pruned stops its run, from another thread",
}
"""Modules outside tolaria that know threads, and what for."""


def knows_threads(name: str) -> bool:
    return any(name == library or name.startswith(f"{library}.") for library in THREAD_LIBRARIES)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("threading", True),
        ("queue.SimpleQueue", True),
        ("concurrent.futures.Future", False),
        ("concurrent.futures.ThreadPoolExecutor", True),
        ("anyio.to_thread", True),
        ("anyio.to_thread.run_sync", True),
        ("anyio", False),
        ("threading_tools", False),
    ],
)
def test_thread_libraries_are_recognised(name: str, expected: bool) -> None:
    assert knows_threads(name) == expected


def test_threads_are_known_to_tolaria_and_the_modules_that_cannot_import_it() -> None:
    users = {
        module.name
        for module in source_modules()
        if module.package != OWNER
        for _, name in module.imported_names()
        if knows_threads(name)
    }
    assert users == set(USERS)
