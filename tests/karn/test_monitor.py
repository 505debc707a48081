"""The monitor beside a run: what it prints, which address it announces, and when it ends."""

import io
import logging
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.to_thread
import pytest
from tests.karn.story import Story

from esper.karn.monitor import RunMonitor, build_monitor
from esper.leyline.config import RunOptions
from esper.leyline.errors import UsageError
from esper.leyline.telemetry import EventScope
from esper.nissa.bus.hub import TelemetryHub

EVENTS = list(Story(num_rounds=2, num_steps=4).events())


async def monitored(monitor: RunMonitor, run_dir: Path, page: str | None = None) -> bytes:
    """Run the monitor beside a short run; return the page that it served meanwhile."""
    content = b""
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            hub = TelemetryHub(run_dir, run_id="5eed0001")
            tasks.start_soon(monitor, hub)
            for event in EVENTS:
                scope = EventScope(round=event.round, step=event.step, env_id=event.env_id)
                hub.emit(event.data, scope, event.severity)
            if page is not None:
                content = await anyio.to_thread.run_sync(_fetch, page)
            await anyio.to_thread.run_sync(hub.close)
    return content


def _fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read()


@pytest.mark.anyio
async def test_console_ends_with_the_last_event_and_names_the_log(tmp_path: Path) -> None:
    output = io.StringIO()
    await monitored(build_monitor(RunOptions(), output), tmp_path)

    shown = output.getvalue()
    assert "round 1/2" in shown
    assert "round 2/2" in shown
    assert str(tmp_path) in shown.replace("\n", "")
    assert "dashboard" not in shown


@pytest.mark.anyio
async def test_server_is_up_during_the_run_and_gone_after_it(tmp_path: Path) -> None:
    output = io.StringIO()
    options = RunOptions(serve="127.0.0.1:0", serve_token="a b&c")
    monitor = build_monitor(options, output)
    url = output.getvalue().removeprefix("dashboard at ").strip()
    assert parse_qs(urlsplit(url).query) == {"token": ["a b&c"]}

    page = await monitored(monitor, tmp_path, page=url)

    assert b"<html" in page
    # The summary cannot offer the server of the run, so it names the command that serves it again.
    assert f"esper-telemetry serve {tmp_path}" in output.getvalue().replace("\n", "")
    with pytest.raises(OSError, match="refused"):
        _fetch(url)


def test_address_in_use_is_refused_before_the_run(tmp_path: Path) -> None:
    output = io.StringIO()
    monitor = build_monitor(RunOptions(serve="127.0.0.1:0"), output)
    assert monitor.server is not None
    port = monitor.server.listener.getsockname()[1]
    try:
        with pytest.raises(UsageError, match=str(port)):
            build_monitor(RunOptions(serve=f"127.0.0.1:{port}"), output)
    finally:
        monitor.server.listener.close()


def test_address_is_logged_where_nothing_is_printed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        monitor = build_monitor(RunOptions(serve="127.0.0.1:0"), None)
    assert monitor.server is not None
    assert f"dashboard at {monitor.server.url(has_token=False)}" in caplog.messages
    monitor.server.listener.close()


def test_closed_pipe_does_not_stop_the_start_of_a_run() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monitor = build_monitor(RunOptions(serve="127.0.0.1:0"), Closed())
    assert monitor.server is not None
    monitor.server.listener.close()
