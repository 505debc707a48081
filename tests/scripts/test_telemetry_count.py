"""`esper-telemetry count` from the command line."""

import gzip
import json
from pathlib import Path

import pytest
from tests.nissa.analysis.test_run_profile import index_of
from tests.nissa.fake_run import FakeRun, write_run

from esper.scripts.telemetry import main

NUM_EVENTS = len(list(FakeRun().lines()))


def test_counts_of_a_run_are_printed_with_their_total(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FakeRun().write(tmp_path)

    assert main(["count", str(run)]) == 0

    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["type", "count"]
    assert "EPOCH_COMPLETED                32" in out
    assert out[-1] == f"{NUM_EVENTS} events"


def test_several_files_are_added_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FakeRun().write(tmp_path / "runs")
    FakeRun(run_id="2").write(tmp_path / "runs")
    packed = tmp_path / "old.gz"
    packed.write_bytes(gzip.compress(b'{"event_type":"A"}\n'))

    assert main(["count", "--json", str(tmp_path / "runs"), str(packed)]) == 0

    report = json.loads(capsys.readouterr().out)
    assert report["num_events"] == 2 * NUM_EVENTS + 1
    assert report["counts"]["A"] == 1
    assert len(report["files"]) == 3


def test_rounds_are_listed_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = FakeRun(num_rounds=11, num_steps=2).write(tmp_path)

    assert main(["count", "--by", "round", str(run)]) == 0

    first = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:-1]]
    assert first == [*(str(number) for number in range(11)), "-"]


def test_bad_lines_are_shown_and_decide_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"event_type":"A"}\n' + b"{\n" * 7)

    assert main(["count", str(path)]) == 2
    captured = capsys.readouterr()
    assert "1 events" in captured.out
    assert captured.err.count("log.jsonl:") == 5
    assert "log.jsonl:2: " in captured.err
    assert "7 bad lines" in captured.err
    assert main(["count", "--lenient", str(path)]) == 0


def test_baseline_decides_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, baseline = FakeRun().write(tmp_path), tmp_path / "baseline.json"
    assert main(["baseline", "capture", str(run), "-o", str(baseline)]) == 0
    lines = list(FakeRun().lines())
    del lines[index_of(lines, "LAST_ACTION")]
    write_run(tmp_path / "other", lines)

    assert main(["count", str(run), "--baseline", str(baseline)]) == 0
    capsys.readouterr()
    assert main(["count", str(tmp_path / "other"), "--baseline", str(baseline)]) == 1
    assert "LAST_ACTION                    31        32     -1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["count", "missing"], "missing: no such file or directory"),
        (["count", "."], "no events.jsonl here"),
        (["count", "empty", "--baseline", "missing"], "missing: cannot read the baseline"),
        (["count", "empty", "--baseline", "empty", "--by", "env"], "--baseline compares"),
    ],
)
def test_mistakes_are_reported_in_one_sentence(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()

    assert main(arguments) == 2

    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_small_count_loads_nothing_heavy(tmp_path: Path) -> None:
    from tests.test_import_isolation import loaded_after

    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"event_type":"A"}\n')

    loaded = loaded_after(
        f"from esper.scripts.telemetry import main; main(['count', {str(path)!r}])"
    )

    heavy = {"torch", "numpy", "rich", "duckdb", "starlette", "websockets", "anyio", "asyncio"}
    # A table of events that msgspec can count needs no other reader or writer of JSON.
    assert loaded.isdisjoint({*heavy, "orjson", "esper.leyline.untyped_json"})


@pytest.mark.parametrize("by", ["type", "env", "severity", "kind"])
def test_trusted_counts_are_those_of_the_log(
    by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FakeRun().write(tmp_path)
    reports = []
    for flags in ([], ["--trust"]):
        assert main(["count", "--json", "--by", by, str(run), *flags]) == 0
        reports.append(json.loads(capsys.readouterr().out))

    assert [report.pop("is_verified") for report in reports] == [True, False]
    assert reports[0] == reports[1]


def test_trusted_counts_are_read_from_the_checksum_file_alone_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FakeRun().write(tmp_path)
    log = run / "events.jsonl"
    log.write_bytes(bytes(log.stat().st_size))

    assert main(["count", "--trust", str(run)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == f"{NUM_EVENTS} events, as events.crc states; not verified"
    assert main(["count", str(run)]) == 2


def test_trust_is_refused_where_there_is_nothing_to_trust(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = FakeRun().write(tmp_path)
    assert main(["count", "--trust", "--by", "round", str(run)]) == 2
    assert "no counts by round" in capsys.readouterr().err
    with (run / "events.jsonl").open("ab") as log:
        log.write(b"{}\n")
    assert main(["count", "--trust", str(run)]) == 2
    assert "the run is still going, was killed, or is damaged" in capsys.readouterr().err
    checksums = run / "events.crc"
    checksums.write_text(" ".join(checksums.read_text().split()[:5]) + "\n")
    assert main(["count", "--trust", str(run)]) == 2
    assert "Esper 0.1 wrote none" in capsys.readouterr().err
    checksums.unlink()
    assert main(["count", "--trust", str(run)]) == 2
    assert "has no checksum file" in capsys.readouterr().err
