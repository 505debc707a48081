"""JSON that people see looks the same wherever it comes from, and no input breaks it."""

import json
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.nissa.fake_run import FakeRun

from esper.scripts import telemetry, train

READABLE = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
LONG_SEED = 123456789012345678901234567890


def is_readable(text: str) -> bool:
    """Return whether keys are sorted, levels indented by two, and a newline ends the text."""
    return orjson.dumps(orjson.loads(text), option=READABLE).decode() == text


def test_telemetry_prints_readable_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left, right = FakeRun().write(tmp_path), FakeRun(num_steps=9, run_id="2").write(tmp_path)
    for arguments in (
        ["count", "--json", str(left)],
        ["count", "--json", "--by", "env", str(left), str(right)],
        ["diff", "--json", str(left), str(right)],
        ["validate", "--json", str(left)],
    ):
        telemetry.main(arguments)
        assert is_readable(capsys.readouterr().out), arguments


def test_runs_print_and_write_readable_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--rounds", "1", "--envs", "1", "--episode-length", "1"]
    runs, baseline = tmp_path / "runs", tmp_path / "baseline.json"

    assert train.main(["config", "show", *flags]) == 0
    assert is_readable(capsys.readouterr().out)
    assert train.main(["wait", *flags, "--json", "--telemetry-dir", str(runs)]) == 0
    assert is_readable(capsys.readouterr().out)
    (run_dir,) = runs.iterdir()
    assert is_readable((run_dir / "run.json").read_text())
    assert telemetry.main(["baseline", "capture", str(run_dir), "-o", str(baseline)]) == 0
    assert is_readable(baseline.read_text())


def test_name_that_is_no_unicode_is_written_with_its_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / os.fsdecode(b"\xff.jsonl")
    log.write_bytes(b'{"event_type":"A"}\n')

    assert telemetry.main(["count", "--json", str(log)]) == 0

    (counted,) = json.loads(capsys.readouterr().out)["files"]
    assert counted["file"] == f"{tmp_path}/\\udcff.jsonl"


def config(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert train.main(["config", "show", *arguments]) == 0
    job: dict[str, Any] = json.loads(capsys.readouterr().out)
    return job


def test_seed_of_any_length_stays_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, runs = tmp_path / "job.json", tmp_path / "runs"
    file.write_text(f'{{"training": {{"seed": {LONG_SEED}}}}}')

    for arguments in (
        ["--seed", str(LONG_SEED)],
        ["--set", f"training.seed={LONG_SEED}"],
        ["--config", str(file)],
    ):
        assert config(capsys, *arguments)["training"]["seed"] == LONG_SEED, arguments
    flags = ["--rounds", "1", "--envs", "1", "--episode-length", "1", "--quiet"]
    command = ["wait", "--config", str(file), *flags, "--telemetry-dir", str(runs)]
    assert train.main(command) == 0
    (run_dir,) = runs.iterdir()
    assert json.loads((run_dir / "run.json").read_text())["job"]["training"]["seed"] == LONG_SEED


def test_setting_that_is_no_unicode_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    setting = "training.group_id=" + os.fsdecode(b"\xff")

    assert train.main(["config", "show", "--set", setting]) == 2

    assert "training.group_id = '\\udcff': must be UTF-8 text" in capsys.readouterr().err


@pytest.mark.parametrize("depth", [*range(940, 1040, 7), 100_000])
def test_no_depth_of_nesting_breaks_a_configuration(
    depth: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep, file = "[" * depth + "]" * depth, tmp_path / "job.json"
    for key in ("lr", "slots"):
        file.write_text(f'{{"training": {{"{key}": {deep}}}}}')
        for arguments in (["--config", str(file)], ["--set", f"training.{key}={deep}"]):
            assert train.main(["config", "show", *arguments]) == 2
            assert "Traceback" not in capsys.readouterr().err


def test_rows_of_a_query_are_json_whatever_they_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("duckdb")
    sql = (
        "SELECT 170141183460469231731687303715884105727::HUGEINT AS z, 'NaN'::DOUBLE AS a, "
        "DATE '2024-01-02' AS day, TIMESTAMP '2024-01-02 03:04:05' AS time, 1.50::DECIMAL(4,2) AS d"
    )

    run = FakeRun().write(tmp_path)
    assert telemetry.main(["query", str(run), sql, "--format", "json"]) == 0

    assert capsys.readouterr().out == (
        '{"z":170141183460469231731687303715884105727,"a":null,"day":"2024-01-02",'
        '"time":"2024-01-02 03:04:05","d":"1.50"}\n'
    )
