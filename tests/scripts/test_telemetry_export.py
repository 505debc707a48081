"""`esper-telemetry export`: mistakes are one sentence each."""

from pathlib import Path

import pytest
from tests.nissa.fake_run import FakeRun

from esper.scripts.telemetry import main

RUN = FakeRun(num_rounds=1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--to", "xml"], "unknown format 'xml'; known: csv, jsonl, parquet, tensorboard, wandb"),
        (["--to", "parqet"], "unknown format 'parqet'; did you mean 'parquet'? "),
        (["--to", "jsonl"], "--to jsonl: expected a path, such as jsonl:events.jsonl"),
        (
            ["--to", "jsonl:no/copy.jsonl"],
            "--to jsonl:no/copy.jsonl: no/copy.jsonl: No such file or directory",
        ),
        (["--to", "csv", "--continue"], "--continue: csv files are written as a whole; omit it"),
        (["--to", "csv:a", "-o", "b"], "--to csv:a: give 'a' or -o b, not both"),
    ],
)
def test_mistake_is_one_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    RUN.write(tmp_path / "runs")
    assert main(["export", "latest", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"esper-telemetry: {sentence}")
