"""Use an installed Esper as its users do: train, read the log back, watch a served run.

Usage: PYTHON -I tools/smoke.py FOLDER

Uses the Esper of the interpreter that runs it, and the commands beside that interpreter; writes
into FOLDER. It imports nothing of the source tree, so that it can be run where that is not on the
path.
"""

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from websockets.sync.client import connect

import esper

BIN = Path(sys.executable).parent
RUN = ("--rounds", "1", "--envs", "1", "--episode-length", "2", "--quiet")
WAIT_S = 100.0


def main() -> int:
    """Run the commands; exit with an error at the first one that fails."""
    folder = Path(sys.argv[1])
    location = Path(esper.__file__)
    if not location.is_relative_to(sys.prefix):
        raise SystemExit(f"{location} is not installed in {sys.prefix}")
    print(f"esper {esper.__version__} in {location.parent}")
    first, second = train(folder / "first"), train(folder / "second")
    read_back(first, second, folder)
    watch_a_served_run(folder / "served")
    return 0


def train(folder: Path) -> Path:
    """Train the host alone and return the run's directory."""
    call("esper-train", "wait", *RUN, "--telemetry-dir", str(folder))
    (run_dir,) = folder.iterdir()
    return run_dir


def read_back(run_dir: Path, same: Path, folder: Path) -> None:
    """Read a run with every command that reads runs."""
    num_events = len((run_dir / "events.jsonl").read_bytes().splitlines())
    counted = json.loads(call("esper-telemetry", "count", str(run_dir), "--json"))
    expect(counted["num_events"] == num_events, f"{num_events} events counted as {counted}")
    call("esper-telemetry", "validate", str(run_dir))
    call("esper-telemetry", "diff", str(run_dir), str(same))
    sql = "select count(*) from raw_events"
    answer = call("esper-telemetry", "query", str(run_dir), sql, "--format", "csv")
    expect(str(num_events) in answer.split(), f"{num_events} events queried as {answer}")
    report = folder / "report.html"
    call("esper-telemetry", "report", str(run_dir), "-o", str(report))
    expect("Plotly" in report.read_text(encoding="utf-8"), "the report has no plots")
    call("esper-train", "ppo", *RUN, "--telemetry-dir", str(folder / "ppo"))


def watch_a_served_run(folder: Path) -> None:
    """Follow a run from its first event to the end of a round, then interrupt it."""
    command = [str(BIN / "esper-train"), "wait", *RUN, "--serve", "127.0.0.1:0"]
    command += ["--rounds", "100000", "--telemetry-dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            watch(url)
        finally:
            process.send_signal(signal.SIGINT)
        code = process.wait(WAIT_S)
    expect(code == 130, f"the interrupted run ended with {code}")


def watch(url: str) -> None:
    """Read the dashboard's page and the live tail until a round is complete."""
    with urllib.request.urlopen(url, timeout=WAIT_S) as page:
        expect(page.status == 200, f"the dashboard answers {page.status}")
    with connect(url.replace("http://", "ws://") + "ws", open_timeout=WAIT_S) as client:
        client.send('{"since": 0}')
        seen: list[str] = []
        while "BATCH_EPOCH_COMPLETED" not in seen:
            frame = json.loads(client.recv(WAIT_S))
            seen.append(frame.get("event_type", frame.get("type")))
    expect("TRAINING_STARTED" in seen, f"the tail began with {seen[:5]}")


def call(name: str, *arguments: str) -> str:
    """Run a command that must succeed and return what it printed."""
    print("$", name, *arguments, flush=True)
    result = subprocess.run(
        [BIN / name, *arguments], stdout=subprocess.PIPE, text=True, timeout=WAIT_S
    )
    expect(result.returncode == 0, f"{name} ended with {result.returncode}: {result.stdout}")
    return result.stdout


def expect(is_true: bool, otherwise: str) -> None:
    """Exit with a message unless the condition holds."""
    if not is_true:
        raise SystemExit(otherwise)


if __name__ == "__main__":
    sys.exit(main())
