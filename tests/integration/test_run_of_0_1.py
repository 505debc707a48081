"""A run directory that Esper 0.1.0 has made: what reads it, and what refuses it in one sentence.

`data/run_of_0.1.tar.xz` was made by commit 28aa0cb, the last one of 0.1.0: one round of two envs of
digits with eight steps and an LSTM of eight units.
"""

import hashlib
import tarfile
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.browser import dashboard
from tests.nissa.making import wait_until

import esper
from esper.leyline.errors import UnreadableFileError
from esper.scripts.telemetry import main as esper_telemetry
from esper.scripts.train import main as esper_train

ARCHIVE = Path(__file__).parent / "data" / "run_of_0.1.tar.xz"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "run_of_0.1"


def digest_of(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        digest.update(str(path.relative_to(directory)).encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("count",), "TRAINING_STARTED"),
        (("tail",), "RUN_FINISHED"),
        (("runs",), "digits"),
        (("query", "select count(*) as n from raw_events"), "n"),
    ],
)
def test_its_log_is_still_read(
    run: Path, command: tuple[str, ...], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *rest = command
    place = run.parent if name == "runs" else run
    before = digest_of(run)

    assert esper_telemetry([name, str(place), *rest]) == 0

    assert shown in capsys.readouterr().out
    assert digest_of(run) == before


def test_it_has_a_report_and_equals_itself(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = run.parent / "report.html"

    assert esper_telemetry(["report", str(run), "-o", str(page)]) == 0
    assert "digits" in page.read_text(encoding="utf-8")
    assert esper_telemetry(["diff", str(run), str(run)]) == 0


def test_validation_names_the_version_that_can_validate_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert esper_telemetry(["validate", str(run)]) == 2

    message = capsys.readouterr().err
    assert "schema version 1 (Esper 0.1.0)" in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    "command",
    [
        ("ppo", "--rounds", "2", "--resume"),
        ("ppo", "--rounds", "1", "--init-from"),
        ("eval", "--checkpoint"),
        ("inspect",),
    ],
)
def test_its_policy_is_refused_with_both_versions_and_the_way_on(
    run: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    before = digest_of(run)

    assert esper_train([*command, str(run)]) == 2

    message = capsys.readouterr().err
    assert "was written by Esper 0.1" in message
    assert "train it again, or use that release" in message
    assert len(message.splitlines()) == 1
    assert digest_of(run) == before


def test_its_grown_network_is_refused_with_the_way_on(run: Path) -> None:
    with pytest.raises(UnreadableFileError, match="grow it again, or use that release"):
        esper.load_grown(run / "grown.pt")


def test_it_is_served(run: Path) -> None:
    with dashboard(run) as served:
        ends = partial(events_of_type, served.address, "RUN_FINISHED")
        wait_until(lambda: bool(ends()))  # the server reads the log after it has begun to listen
        (end,) = ends()

    assert b'"event_type":"RUN_FINISHED"' in end


def events_of_type(address: str, event_type: str) -> list[bytes]:
    with urlopen(f"{address}api/events?types={event_type}", timeout=20) as response:
        return response.read().splitlines()
