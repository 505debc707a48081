"""Examples in the documentation do what the text around them says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import pytest
from tests.nissa.making import epoch
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from esper.leyline.live import CloseCode
from esper.leyline.payloads import Payload
from esper.leyline.telemetry import Draft, Event, EventScope, decode_event
from esper.nissa.bus.hub import TelemetryHub
from esper.nissa.live.address import ServerAddress, listen
from esper.nissa.live.app import build_app
from esper.nissa.live.security import Security
from esper.nissa.live.server import serve

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LOOPBACK = "127.0.0.1"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def code_blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_shell(commands: str, directory: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=directory,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_baseline_procedure_can_be_followed_to_the_letter(tmp_path: Path) -> None:
    (procedure,) = code_blocks("baselines.md", "sh")

    done = run_shell(procedure, tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^EPOCH_COMPLETED +5$", done.stdout, re.MULTILINE)
    assert "same: every event that is compared is equal" in done.stdout.splitlines()


def test_the_exports_of_the_page_about_sinks_write_what_it_says(tmp_path: Path) -> None:
    (exports,) = code_blocks("sinks.md", "sh")

    done = run_shell(exports, tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (tmp_path / "runs").glob("*_*")
    assert {"tensorboard", "parquet"} <= {path.name for path in run.iterdir()}
    assert (tmp_path / "copy.jsonl").read_bytes() == (run / "events.jsonl").read_bytes()
    assert (tmp_path / "tables" / "rounds.csv").exists()


def test_the_sweep_of_the_page_about_sweeps_lists_its_trials_and_runs(tmp_path: Path) -> None:
    (table,) = code_blocks("sweeps.md", "toml")
    (commands,) = code_blocks("sweeps.md", "sh")
    (opening,) = code_blocks("sweeps.md", "python")
    (tmp_path / "sweep.toml").write_text(table)

    done = run_shell(f"{commands}python -c '{opening}'", tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^trial \d (?:complete|pruned): ", done.stdout, re.MULTILINE)) == 2
    assert done.stdout.count("sweep=lr trial=") == 4
    assert "'training.lr'" in done.stdout


def events_of(lines: list[str]) -> dict[int, Event]:
    decoded = [decode_event(line[2:]) for line in lines if line.startswith('< {"event_type"')]
    return {event.seq: event for event in decoded}


def draft_of(event: Event | None) -> Draft:
    """Return what a run emits to get an event of the example, or one that it leaves out."""
    if event is None:
        return Draft(epoch())
    assert isinstance(event.data, Payload)
    scope = EventScope(
        round=event.round, step=event.step, env_id=event.env_id, episode_id=event.episode_id
    )
    return Draft(event.data, scope)


def without_time(frame: str) -> object:
    message = msgspec.json.decode(frame, type=dict[str, object])
    message.pop("ts", None)
    return message


@pytest.mark.anyio
async def test_the_session_of_the_live_protocol_is_what_a_server_says(tmp_path: Path) -> None:
    (session,) = code_blocks("live_protocol.md", "session")
    lines = session.splitlines()
    events = events_of(lines)
    hello = msgspec.json.decode(lines[0][2:], type=dict[str, object])
    hub = TelemetryHub(tmp_path, run_id=str(hello["run_id"]))
    num_before = int(str(hello["last_seq"])) + 1
    hub.publish(draft_of(events.get(seq)) for seq in range(num_before))
    await anyio.to_thread.run_sync(hub.flush)
    app = build_app(source=hub.live, run_dir=tmp_path, security=Security(host=LOOPBACK))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            address = await tasks.start(serve, app, listen(ServerAddress(LOOPBACK, 0)))
            async with connect(f"ws://{address}/ws") as client:
                for line in lines:
                    if line.startswith("> "):
                        await client.send(line[2:])
                    elif line.startswith("< close"):
                        with pytest.raises(ConnectionClosed):
                            await client.recv()
                        assert f"< close {client.close_code} {client.close_reason}" == line
                    else:
                        if '"seq":3' in line:  # what comes from here on is live
                            rest = range(num_before, max(events) + 1)
                            hub.publish(draft_of(events.get(seq)) for seq in rest)
                            await anyio.to_thread.run_sync(hub.close)
                        assert without_time(str(await client.recv())) == without_time(line[2:])


def test_every_close_code_is_documented_with_its_reason() -> None:
    text = (DOCS / "live_protocol.md").read_text(encoding="utf-8")
    for code in CloseCode:
        assert f"| {code.value} | {code.reason} |" in text


def test_index_lists_every_page_in_its_text_and_in_a_toctree() -> None:
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    linked = re.findall(r"\]\((\w+)\.md\)", text)
    trees = code_blocks("index.md", re.escape("{toctree}"))
    in_trees = [line for tree in trees for line in tree.splitlines() if line and line[0] != ":"]
    assert sorted(linked) == sorted(pages)
    assert sorted(in_trees) == sorted(pages)


def test_walks_through_the_source_name_files_and_functions_that_exist() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    (walks,) = re.findall(r"^## Where things happen\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    paths = set(re.findall(r"`([\w/]+\.py)`", walks))
    missing = [path for path in sorted(paths) if not (ROOT / "src" / "esper" / path).exists()]
    assert len(paths) > 10
    assert missing == []
    for line in walks.splitlines():
        sources = [
            (ROOT / "src" / "esper" / path).read_text(encoding="utf-8")
            for path in re.findall(r"`([\w/]+\.py)`", line)
        ]
        # `Class.method`, or a bare function; methods of another object are written `object.call()`.
        for qualified in re.findall(r"`((?:[A-Z]\w+\.)?_?[a-z]\w*_\w+|[A-Z]\w+\.\w+)`", line):
            *owner, name = qualified.split(".")
            assert any(
                f"def {name}(" in source and all(f"class {item}" in source for item in owner)
                for source in sources
            ), f"{qualified} is not defined in the files of: {line}"
