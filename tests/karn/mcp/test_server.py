"""Agents ask about runs with the SDK's own client, which has the server as a real subprocess."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.builders.process_tree import process_tree
from tests.nissa.fake_run import FakeRun

from esper.scripts.telemetry import main

pytestmark = pytest.mark.anyio
WAIT_S = 60.0
SHAPE = FakeRun(num_rounds=3, failed_env=1)
TOOLS = {
    *("list_runs", "describe_run", "query", "count_events", "diff_runs", "find_events"),
    "compare_policies",
}
QUESTIONS: dict[str, dict[str, Any]] = {
    "list_runs": {},
    "describe_run": {"run": "0a1b"},
    "query": {"sql": "SELECT round, mean_reward FROM rounds ORDER BY ALL", "run": "latest"},
    "count_events": {"run": "latest"},
    "diff_runs": {"left": "0a1b", "right": "ffff"},
    "find_events": {"run": "latest", "types": ["BATCH_STATS"]},
    "compare_policies": {"groups": {"old": ["0a1b"], "new": ["ffff"]}},
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    SHAPE.write(folder)
    replace(SHAPE, run_id="ffff0000", seed=8).write(folder)
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@asynccontextmanager
async def session(runs: Path) -> AsyncIterator[ClientSession]:
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "esper.scripts.telemetry", "mcp", str(runs)]
    )
    with anyio.fail_after(WAIT_S):
        async with stdio_client(command) as (reader, writer), ClientSession(reader, writer) as it:
            await it.initialize()
            yield it


async def ask(client: ClientSession, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def test_answers_have_the_schema_that_is_announced_and_tools_change_nothing(
    runs: Path,
) -> None:
    before = contents(runs)
    async with session(runs) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == TOOLS
        for name, question in QUESTIONS.items():
            tool = tools[name]
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint is True
            assert tool.output_schema is not None
            jsonschema.validate(question, tool.input_schema)
            jsonschema.validate(await ask(client, name, **question), tool.output_schema)
    assert contents(runs) == before


async def test_answers_name_run_range_and_checksums(runs: Path) -> None:
    num_events = len(list(SHAPE.events()))
    async with session(runs) as client:
        source = (await ask(client, "describe_run", run="0a1b2c3d"))["source"]
        assert source["run"] == "20260101T000000Z_0a1b2c3d"
        assert (source["first_seq"], source["last_seq"]) == (0, num_events - 1)
        assert source["checksums"]["state"] == "verified"
        damaged = SHAPE.write(runs.parent / "damaged")
        log = damaged / "events.jsonl"
        log.write_bytes(log.read_bytes().replace(b'"digits"', b'"digitz"', 1))
    async with session(damaged.parent) as client:
        source = (await ask(client, "count_events", run="latest"))["source"]
        assert source["checksums"]["state"] == "damaged"
        assert source["checksums"]["problems"] != []


async def test_rows_and_events_come_in_pages(runs: Path) -> None:
    async with session(runs) as client:
        sql = "SELECT seq FROM raw_events ORDER BY seq"
        first = await ask(client, "query", sql=sql, run="0a1b", limit=3)
        second = await ask(client, "query", sql=sql, run="0a1b", limit=3, offset=3)
        assert [row[0] for row in (*first["rows"], *second["rows"])] == [0, 1, 2, 3, 4, 5]
        found, since = [], 0
        while since is not None:
            page = await ask(
                client, "find_events", run="0a1b", types=["BATCH_STATS"], since=since, limit=2
            )
            found += [event["round"] for event in page["events"]]
            since = page["next_since"]
        assert found == [0, 1, 2]


async def test_an_answer_is_bounded_however_much_is_asked_for(runs: Path) -> None:
    async with session(runs) as client:
        rows = "SELECT repeat('x', 3000) FROM range(500)"
        answer = await ask(client, "query", sql=rows, run="latest", limit=500)
        assert len(str(answer)) < 70_000
        assert 0 < len(answer["rows"]) == answer["next_offset"] < 500


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("query", {"sql": "SELECT * FROM read_text('/etc/passwd')"}, "disabled"),
    ("query", {"sql": "SELECT * FROM round"}, "rounds"),
    ("describe_run", {"run": "../elsewhere"}, "elsewhere"),
    ("describe_run", {"run": "no-such-run"}, "lists them"),
    ("find_events", {"run": "latest", "types": ["BATCH_STAT"]}, "BATCH_STATS"),
    ("find_events", {"run": "latest", "limit": 100_000}, "500"),
    ("describe_runs", {}, "did you mean 'describe_run'"),
]


async def test_a_mistake_is_a_sentence_that_helps(runs: Path) -> None:
    async with session(runs) as client:
        for tool, arguments, message in MISTAKES:
            result = await client.call_tool(tool, arguments)
            assert result.is_error, tool
            assert message in str(result.content)


async def test_server_has_no_address_that_others_could_reach(runs: Path) -> None:
    async with session(runs) as client:
        for name, question in QUESTIONS.items():
            await ask(client, name, **question)
        servers = [pid for pid in process_tree(os.getpid()) if b"\0mcp\0" in command_line(pid)]
        assert len(servers) == 1
        assert inodes_of_sockets(servers[0]).isdisjoint(inodes_of_the_internet())


def command_line(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()


def inodes_of_sockets(process: int) -> set[str]:
    links = [os.readlink(link) for link in Path(f"/proc/{process}/fd").iterdir()]
    return {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}


def inodes_of_the_internet() -> set[str]:
    """Return the inodes of all sockets that have an address, listening or connected."""
    tables = [Path("/proc/net") / name for name in ("tcp", "tcp6", "udp", "udp6")]
    lines = [line for table in tables if table.exists() for line in table.read_text().splitlines()]
    return {line.split()[9] for line in lines}


def test_a_missing_sdk_is_named_with_the_command_that_installs_it(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert main(["mcp", str(runs)]) == 2
    assert "pip install 'esper-grow[mcp]'" in capsys.readouterr().err
