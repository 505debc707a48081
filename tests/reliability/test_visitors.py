"""No visitor of a served run can slow it, fill its memory, lock others out, or end it."""

import http.client
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.builders.commands import run_esper
from tests.builders.process_tree import process_tree, server_process, tree_bytes
from tests.integration.served import (
    ENDLESS,
    SMALL,
    WAIT_S,
    ServedRun,
    is_gone,
    listening,
    served_run,
)
from tests.karn.runs import write_run
from tests.karn.story import Story
from tests.nissa.making import pruned
from tools.soak.frames import Opcode, RawClient, frame_bytes
from tools.soak.serving import served_hub
from tools.soak.siege import request
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from esper.karn.view.overlay import MAX_CHOSEN
from esper.karn.web.runs_routes import MAX_LISTED
from esper.leyline.telemetry import Draft

MAX_GROWTH_BYTES = 64 << 20
POLICY_VIOLATION = 1008
LARGE_FILE = "/assets/plotly.js"


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def num_lines(run: ServedRun) -> int:
    return (run.run_dir / "events.jsonl").read_bytes().count(b"\n")


def wait_for_progress(run: ServedRun) -> None:
    """Wait until the run has written more events."""
    before = num_lines(run)
    wait_until(lambda: num_lines(run) > before, "the run made no progress")


def status_of(port: int, path: str, *headers: str) -> int | None:
    answer = request(port, path, *headers)
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None


def get(port: int, path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()


def is_alive(process: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRun]:
    """Return a run that is suspended: only its server is looked at."""
    with served_run(tmp_path_factory.mktemp("run"), *ENDLESS, "--quiet") as run:
        wait_until(lambda: status_of(run.port, "/healthz") == 200, "the server does not answer")
        run.process.send_signal(signal.SIGSTOP)
        yield run
        run.process.send_signal(signal.SIGCONT)
        wait_for_progress(run)
        assert run.process.poll() is None, "a visitor has ended the run"


@pytest.fixture
def run(server: ServedRun) -> Iterator[ServedRun]:
    """Return the same run, which goes on during a test: the others leave the processor alone."""
    server.process.send_signal(signal.SIGCONT)
    yield server
    server.process.send_signal(signal.SIGSTOP)


def close_code_of(client: ClientConnection) -> int | None:
    """Read to the end of a connection and return its close code."""
    try:
        while True:
            client.recv(timeout=WAIT_S)
    except ConnectionClosed as closed:
        return None if closed.rcvd is None else closed.rcvd.code


# --- The two processes ---------------------------------------------------------------------------


def test_run_goes_on_without_its_server_and_says_so_once(tmp_path: Path) -> None:
    with served_run(tmp_path, *SMALL, "--rounds", "3") as run:
        wait_until(lambda: status_of(run.port, "/healthz") == 200, "the server does not answer")
        os.kill(server_process(run.process.pid), signal.SIGKILL)
        ended = run.wait()
        lines = run.log_lines()
        operational = (run.run_dir / "operational.jsonl").read_text().splitlines()

    assert (ended.code, ended.errors) == (0, "")
    assert json.loads(lines[-1])["data"]["status"] == "completed"
    stopped = [line for line in operational if "LIVE_SERVER_STOPPED" in line]
    assert [json.loads(line)["data"]["reason"] for line in stopped] == ["ended by signal 9"]
    shown = [line for line in ended.output.splitlines() if "the live server stopped" in line]
    assert len(shown) >= 1


def test_server_ends_with_a_run_that_is_killed(tmp_path: Path) -> None:
    with served_run(tmp_path, *ENDLESS) as run:
        wait_until(lambda: status_of(run.port, "/healthz") == 200, "the server does not answer")
        others = process_tree(run.process.pid)[1:]
        with connect(f"ws://{run.netloc}/ws") as client:
            run.process.kill()
            assert close_code_of(client) == 1001
        wait_until(lambda: not any(map(is_alive, others)), "a process was left behind")
    assert is_gone(run.port)


def test_signal_to_all_processes_of_a_run_still_delivers_the_end(tmp_path: Path) -> None:
    with served_run(tmp_path, *ENDLESS) as run, listening(run) as received:
        for process in process_tree(run.process.pid):
            os.kill(process, signal.SIGTERM)
        assert run.process.wait(WAIT_S) == 130
        lines = run.log_lines()
        assert run.process.stderr is not None
        errors = run.process.stderr.read()
    assert errors == "", "the summary says what ended the run"
    assert received.lines == lines
    assert (received.types[-1], received.close_code) == ("RUN_FINISHED", 1000)


def test_suspended_server_does_not_hold_up_the_run(tmp_path: Path) -> None:
    with served_run(tmp_path, *ENDLESS) as run:
        wait_until(lambda: status_of(run.port, "/healthz") == 200, "the server does not answer")
        server = server_process(run.process.pid)
        os.kill(server, signal.SIGSTOP)
        for _ in range(3):
            wait_for_progress(run)
        os.kill(server, signal.SIGCONT)
        wait_until(lambda: f'"last_seq":{num_lines(run) - 1}' in health(run.port), "it is behind")
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(WAIT_S) == 130


def test_few_descriptors_and_many_connections_do_not_end_the_run(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        run = ServedRun(tmp_path, *SMALL, "--rounds", "3")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    held = [socket.create_connection(("127.0.0.1", run.port)) for _ in range(200)]
    ended = run.wait()
    for client in held:
        client.close()
    assert (ended.code, ended.errors) == (0, "")
    assert json.loads(run.log_lines()[-1])["data"]["status"] == "completed"


# --- Floods --------------------------------------------------------------------------------------

FLOODS = {
    "pings": ("/ws", frame_bytes(Opcode.PING, b"x" * 100)),
    "pongs": ("/ws", frame_bytes(Opcode.PONG)),
    "selections": ("/ws/view", frame_bytes(Opcode.TEXT, b'{"select":0}')),
    "empty parts": ("/ws", frame_bytes(Opcode.CONTINUATION, is_final=False)),
}


@pytest.mark.parametrize("what", FLOODS)
def test_flood_of_frames_ends_the_connection(what: str, server: ServedRun) -> None:
    path, frame = FLOODS[what]
    with RawClient(server.port) as client:
        assert client.request(path=path) == 101
        start = frame_bytes(Opcode.TEXT, is_final=False) if what == "empty parts" else b""
        client.send(start + frame * 20_000)
        # The close frame, or the reset that follows it if the flood was not read to its end.
        assert client.close_code() in (POLICY_VIOLATION, None)
    assert status_of(server.port, "/healthz") == 200


def test_slow_pings_and_selections_are_answered(server: ServedRun) -> None:
    with RawClient(server.port) as client:
        assert client.request() == 101
        for number in range(20):
            client.send(frame_bytes(Opcode.PING, bytes([number])))
            pong = client.read_until(Opcode.PONG)
            assert pong is not None
            assert pong.payload == bytes([number])


ASKED = {
    "lists": "/api/runs",
    "curves": "/api/runs/overlay?run={run}",
    "searches": "/api/events?text=e&before=999999999&limit=10000",
    "opened runs": "/run/{run}/",
}
"""What a visitor of the list asks for; `{run}` is the run's own directory."""


WEBSOCKETS = {"pongs": "/ws", "views": "/ws/view"}


@pytest.mark.parametrize("what", ["pongs", "pipelined requests", "downloads", "views", *ASKED])
def test_what_visitors_do_not_read_takes_bounded_memory(what: str, run: ServedRun) -> None:
    before = peak = tree_bytes(run.process.pid)
    clients = [RawClient(run.port) for _ in range(60)]
    # All before the first one asks for much: a handshake waits for its turn behind what was asked.
    for client in clients if what in WEBSOCKETS else ():
        with suppress(OSError, EOFError):
            client.request(path=WEBSOCKETS[what])
    for client in clients:
        with suppress(OSError, EOFError):
            fill(client, what, run.run_dir.name)
        peak = max(peak, tree_bytes(run.process.pid))
    assert peak - before < MAX_GROWTH_BYTES
    for client in clients:
        client.socket.close()
    wait_for_progress(run)


def fill(client: RawClient, what: str, name: str) -> None:
    """Ask for as much as the server takes, and read none of it."""
    if what == "pongs":
        data = frame_bytes(Opcode.PING, b"x" * 125) * 20_000
    elif what == "views":
        data = frame_bytes(Opcode.TEXT, b'{"select":0}') * 50
    elif what == "downloads":
        data = get(client.port, LARGE_FILE)
    else:
        path = ASKED[what].format(run=name) if what in ASKED else LARGE_FILE
        data = get(client.port, path) * 20_000
    client.socket.setblocking(False)
    with suppress(BlockingIOError):
        while data:
            data = data[client.socket.send(data) :]
    client.socket.settimeout(WAIT_S)


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Shown"]:
    """Return a server of as many long runs as can be overlaid, which it has read."""
    folder = tmp_path_factory.mktemp("listed")
    first = write_run(folder / "run00", Story(num_rounds=600, num_envs=1, num_steps=1).lines())
    for number in range(1, MAX_CHOSEN):
        shutil.copytree(first, folder / f"run{number:02}", copy_function=os.link)
    for number in range(MAX_LISTED - MAX_CHOSEN):
        write_run(folder / f"small{number}", [])
    shown = Shown(folder)
    wait_until(lambda: b'"num_unread":0' in body_of(shown.port, LONG["lists"]), "the list")
    wait_until(lambda: b'"is_read":false' not in body_of(shown.port, LONG["curves"]), "the curves")
    yield shown
    shown.process.kill()
    shown.process.communicate(timeout=WAIT_S)


LONG = {
    "views": "/run/run00/ws/view",
    "lists": "/api/runs",
    "curves": "/api/runs/overlay?"
    + "&".join(f"run=run{number:02}" for number in range(MAX_CHOSEN)),
}


@pytest.mark.parametrize(("what", "num_clients"), [("views", 60), ("lists", 200), ("curves", 200)])
def test_long_runs_that_visitors_do_not_read_take_bounded_memory(
    what: str, num_clients: int, listed: "Shown"
) -> None:
    if what == "views":
        wait_until(lambda: b'"rounds_completed":600' in first_view(listed.port), "the view")
    before = peak = tree_bytes(listed.process.pid)
    clients = []
    for _ in range(num_clients):
        client = RawClient(listed.port)
        clients.append(client)
        if what == "views":
            assert client.request(path=LONG[what]) == 101
        else:
            client.send(get(listed.port, LONG[what]))
    for client in clients:
        client.socket.recv(1, socket.MSG_PEEK)  # an answer has begun to come
        peak = max(peak, tree_bytes(listed.process.pid))
    for client in clients:
        client.socket.close()
    assert peak - before < MAX_GROWTH_BYTES // 2


def body_of(port: int, path: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return body


def first_view(port: int) -> bytes:
    """Return the first message of a view."""
    with RawClient(port) as client:
        assert client.request(path=LONG["views"]) == 101
        first = client.read()
        assert first is not None
        return first.payload


HEAP_BYTES = 64 << 20
"""Size and alignment of a heap that glibc maps for a thread."""


def num_heaps_of_threads(process: int) -> int:
    """Return how many threads of a process have a heap of their own."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    anonymous = [line.split() for line in lines if len(line.split()) == 5]
    starts = [int(line[0].partition("-")[0], 16) for line in anonymous if line[1] == "rw-p"]
    return sum(start % HEAP_BYTES == 0 for start in starts)


def test_threads_of_a_server_retain_no_memory_each(server: ServedRun, listed: "Shown") -> None:
    for port in (server.port, listed.port):
        clients = [RawClient(port) for _ in range(8)]
        for client in clients:
            client.send(get(port, "/api/events?text=e") + get(port, LONG["lists"]))
        for client in clients:
            client.socket.recv(1, socket.MSG_PEEK)
            client.socket.close()
    assert num_heaps_of_threads(server_process(server.process.pid)) == 0
    assert num_heaps_of_threads(listed.process.pid) == 0


def test_unread_response_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("esper.nissa.live.server.UNREAD_GRACE_S", 0.3)
    monkeypatch.setattr("esper.nissa.live.server.CHECK_EVERY_S", 0.1)
    with served_hub(tmp_path) as served, socket.socket() as client:
        served.hub.publish([Draft(pruned())] * 40_000)
        served.hub.flush(WAIT_S)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", served.port))
        client.sendall(get(served.port, "/api/events?limit=10000"))
        poll = select.poll()
        poll.register(client, select.POLLHUP | select.POLLERR)
        assert poll.poll(1000 * WAIT_S), "the connection is still open"


# --- Room for others -----------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\nHost: 12"])
def test_held_connections_keep_nobody_out(data: bytes, server: ServedRun) -> None:
    held = []
    for _ in range(400):
        with suppress(OSError):
            client = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
            client.sendall(data)
            held.append(client)
    wait_until(lambda: status_of(server.port, "/healthz") == 200, "nobody else gets in")
    for client in held:
        client.close()


def test_held_websockets_make_room_for_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.nissa.live.visitors.MIN_STAY_S", 0.5)
    with served_hub(tmp_path) as served:
        clients = [RawClient(served.port) for _ in range(128)]
        assert {client.request() for client in clients} == {101}
        wait_until(lambda: first_code(served.port) is None, "nobody else gets in")
        for client in clients:
            client.socket.close()


def first_code(port: int) -> int | None:
    """Return the close code of a new websocket; None if it is greeted instead."""
    with RawClient(port) as client:
        assert client.request() == 101
        first = client.read()
        assert first is not None
        return first.close_code


# --- Other sites ---------------------------------------------------------------------------------


OWN_PATHS = (
    *("/api/events", "/api/run", "/healthz", "/", "/runs", "/api/runs", "/api/runs/overlay"),
    "/api/events?text=e&before=9",
)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site"])
@pytest.mark.parametrize("path", [*OWN_PATHS, LARGE_FILE, "/ws"])
def test_request_that_a_browser_marks_cross_site_is_refused(
    path: str, site: str, server: ServedRun
) -> None:
    mark = f"Sec-Fetch-Site: {site}"
    if path == "/ws":
        with RawClient(server.port) as client:
            assert client.request(mark) == 403
    else:
        assert status_of(server.port, path, mark, "Sec-Fetch-Mode: no-cors") == 403


def test_own_page_and_a_link_to_it_are_not_refused(server: ServedRun) -> None:
    assert status_of(server.port, "/api/run", "Sec-Fetch-Site: same-origin") == 200
    assert status_of(server.port, "/", "Sec-Fetch-Site: none") == 200
    link = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
    assert status_of(server.port, "/", *link) == 200
    assert status_of(server.port, "/api/run", *link) == 403


@pytest.mark.parametrize("path", [*OWN_PATHS, "/none", LARGE_FILE])
def test_every_response_forbids_sniffing_and_foreign_use(path: str, server: ServedRun) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    connection.request("GET", path)
    response = connection.getresponse()
    connection.close()
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert response.headers["Cache-Control"] == ("no-cache" if path == LARGE_FILE else "no-store")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE"])
def test_only_reading_is_possible(method: str, server: ServedRun) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    connection.request(method, "/api/run", b"x" * 10)
    assert connection.getresponse().status == 405
    connection.close()


# --- `esper-telemetry serve` ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a finished run."""
    folder = tmp_path_factory.mktemp("finished")
    train("--telemetry-dir", str(folder), *SMALL)
    (found,) = folder.iterdir()
    return found


@pytest.fixture
def finished(original: Path, tmp_path: Path) -> Path:
    """Return a copy of a finished run, in a directory of its own."""
    return Path(shutil.copytree(original, tmp_path / original.name))


def train(*flags: str) -> None:
    run_esper("train", "ppo", "--quiet", *flags).check_returncode()


class Shown:
    """`esper-telemetry serve` of a run directory."""

    def __init__(self, run_dir: Path, *flags: str) -> None:
        command = [sys.executable, "-m", "esper.scripts.telemetry", "serve", str(run_dir)]
        self.process = subprocess.Popen(
            [*command, "--address", "127.0.0.1:0", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.netloc = self.line.split()[2].split("/")[2]
        self.port = int(self.netloc.rpartition(":")[2])

    def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, errors.strip()


@pytest.fixture
def shown(finished: Path) -> Iterator[Shown]:
    shown = Shown(finished)
    yield shown
    shown.process.kill()
    shown.process.communicate(timeout=WAIT_S)


NONSENSE = (
    frame_bytes(Opcode.TEXT, b"\xff\xfe"),
    frame_bytes(Opcode.TEXT, b"[" * 60_000),
    frame_bytes(Opcode.BINARY, b"\x00"),
    frame_bytes(Opcode.TEXT, b'{"since":1e999}'),
    frame_bytes(Opcode.RESERVED_DATA, b"{}"),
)
HEADERS = (
    "Cookie: \udcff",
    "Sec-WebSocket-Protocol: ,,,",
    "Content-Length: 99999999999999999999",
    "Transfer-Encoding: chunked",
    "Origin: http://[",
    "Authorization: Bearer \u00ff",
)


NONSENSE_PATHS = (
    *("/api/events", "/ws", "/%ff%00", "/api/events?types=%ff&since=%00", "/runs?run=%ff"),
    *("/api/runs?%00", "/api/runs/overlay?run=%ff%00&run=..%2f", "/run/%00/", "/run/%ff/ws/view"),
    "/api/events?text=%ff%00&before=%ff",
)


def test_nothing_that_a_client_sends_prints_anything(shown: Shown) -> None:
    for path in ("/ws", "/ws/view"):
        for data in NONSENSE:
            with RawClient(shown.port) as client:
                assert client.request(path=path) == 101
                client.send(data)
                client.send(frame_bytes(Opcode.CLOSE, b"\x03\xe8"))
                client.close_code()
    for header in HEADERS:
        for path in NONSENSE_PATHS:
            lines = [f"GET {path} HTTP/1.1", f"Host: {shown.netloc}", "Upgrade: websocket"]
            lines += ["Connection: Upgrade", header]
            with socket.create_connection(("127.0.0.1", shown.port), timeout=WAIT_S) as client:
                data = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "surrogateescape")
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                with suppress(ConnectionResetError):
                    while client.recv(1 << 16):
                        continue
    assert status_of(shown.port, "/healthz") == 200
    assert shown.end() == (130, "")


@pytest.mark.parametrize("what", ["downloads", "searches", "pings"])
def test_visitors_that_leave_in_the_middle_print_nothing(what: str, shown: Shown) -> None:
    for _ in range(20):
        with RawClient(shown.port) as client:
            if what == "pings":
                assert client.request() == 101
                client.send(frame_bytes(Opcode.PING, b"x" * 100) * 150)
            else:
                path = LARGE_FILE if what == "downloads" else "/api/events?limit=10000"
                client.send(get(shown.port, path) * 50)
            client.socket.recv(1)
            # Closed with a linger time of 0, a connection is reset.
            linger = struct.pack("ii", 1, 0)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    assert status_of(shown.port, "/healthz") == 200
    assert shown.end() == (130, "")


@pytest.mark.parametrize("kind", ["pipe", "huge", "directory"])
def test_manifest_that_is_none_holds_up_nobody(kind: str, finished: Path, shown: Shown) -> None:
    path = finished / "run.json"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 1 << 30)  # a hole: takes no space, reads as zeros
    before = tree_bytes(shown.process.pid)
    clients = [RawClient(shown.port) for _ in range(60)]  # more than there are worker threads
    for client in clients:
        client.send(get(shown.port, "/api/run"))
    assert status_of(shown.port, "/api/events?types=RUN_FINISHED") == 200
    assert status_of(shown.port, "/api/run") == 404
    assert tree_bytes(shown.process.pid) - before < MAX_GROWTH_BYTES
    for client in clients:
        client.socket.close()
    assert shown.end() == (130, "")


def test_serve_survives_the_resume_of_its_run(finished: Path, shown: Shown) -> None:
    log = finished / "events.jsonl"
    before = log.read_text().splitlines()
    with connect(f"ws://{shown.netloc}/ws") as client:
        received = received_lines(client, len(before))
        assert received == before
        train("--resume", "latest", "--telemetry-dir", str(finished.parent), "--rounds", "2")
        assert close_code_of(client) == 1012
    after = log.read_text().splitlines()
    assert after[: len(before)] != before
    with connect(f"ws://{shown.netloc}/ws", open_timeout=WAIT_S) as client:
        assert received_lines(client, len(after)) == after
    assert shown.end() == (130, "")


def received_lines(client: ClientConnection, num_events: int) -> list[str]:
    """Subscribe from the beginning and return as many events."""
    client.send('{"since":0}')
    lines: list[str] = []
    is_subscribed = False
    while len(lines) < num_events:
        message = str(client.recv(timeout=WAIT_S))
        if '"type":"hello"' in message:
            is_subscribed, lines = json.loads(message)["is_subscribed"], []
        elif is_subscribed:
            lines.append(message)
    return lines


def test_search_for_a_rare_event_does_not_read_the_log_again(finished: Path) -> None:
    log = finished / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0] + b"".join(lines[1:-1] * (30_000_000 // log.stat().st_size)))
    shown = Shown(finished)
    try:
        path = "/api/events?types=RUN_FINISHED&limit=10000"
        wait_until(lambda: status_of(shown.port, path) == 200, "no answer")
        num_events = log.read_bytes().count(b"\n")
        wait_until(
            lambda: f'"last_seq":{num_events - 1}' in health(shown.port), "the log is not read"
        )
        before = read_bytes_of(shown.process.pid)
        for _ in range(30):
            assert status_of(shown.port, path) == 200
        assert read_bytes_of(shown.process.pid) - before < log.stat().st_size
    finally:
        shown.process.kill()
        shown.process.communicate(timeout=WAIT_S)


def health(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request("GET", "/healthz")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def read_bytes_of(process: int) -> int:
    """Return how many bytes a process has read so far, from files and sockets."""
    first = Path(f"/proc/{process}/io").read_text().splitlines()[0]
    return int(first.removeprefix("rchar: "))


# --- The token -----------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["file", "environment"])
def test_token_is_taken_from_file_or_environment_and_assets_need_none(
    source: str,
    finished: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flags: tuple[str, ...] = ()
    if source == "file":
        path = finished.with_name("token")
        path.write_text("open sesame\n")
        flags = ("--token", f"@{path}")
    else:
        monkeypatch.setenv("ESPER_SERVE_TOKEN", "open sesame")
    shown = Shown(finished, *flags)
    try:
        assert "?token=open%20sesame" in shown.line
        assert status_of(shown.port, "/api/run") == 401
        assert status_of(shown.port, "/api/run?token=open%20sesame") == 200
        assert status_of(shown.port, LARGE_FILE) == 200
        page = request(shown.port, "/?token=open%20sesame")
        assert b" 200 " in page
        assert b"sesame" not in page
    finally:
        shown.process.kill()
        shown.process.communicate(timeout=WAIT_S)


@pytest.mark.parametrize("is_quiet", [True, False])
def test_token_of_a_run_is_printed_in_the_address_line_alone(
    is_quiet: bool, tmp_path: Path
) -> None:
    flags = ("--serve-token", "sesame", *SMALL, *(("--quiet",) if is_quiet else ()))
    with served_run(tmp_path, *flags) as run:
        ended = run.wait()
    assert ended.code == 0
    assert ("sesame" in run.address) is not is_quiet
    assert "sesame" not in ended.output + ended.errors
    for path in run.run_dir.rglob("*"):
        if path.is_file():
            assert b"sesame" not in path.read_bytes(), path.name
