"""The configuration of runs as columns."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from tests.nissa.fake_run import FakeRun, write_run

from esper.leyline.config import Job, RunOptions, TrainingConfig
from esper.nissa.reading.query import query_logs
from esper.nissa.reading.run_columns import config_columns, read_run_configs

TRAINING = TrainingConfig(lr=0.125, group_id="g", devices=("cpu",), max_seeds=3)
RUN = RunOptions(name="wide", tags={"sweep": "width"}, lanes=2)


def leaves(table: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every key with its value; free tables and lists are values."""
    for key, value in table.items():
        if isinstance(value, dict) and key not in ("tags", "entropy_coef_per_head", "contexts"):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield path + key, value


def written(tmp_path: Path) -> Path:
    run = FakeRun(num_rounds=1, num_envs=1, num_steps=1)
    manifest = msgspec.structs.replace(run.manifest(), job=Job(training=TRAINING, run=RUN))
    write_run(tmp_path / "run", run.lines(), manifest)
    return tmp_path / "run" / "events.jsonl"


def test_every_key_is_a_column_with_the_value_of_the_manifest(tmp_path: Path) -> None:
    expected = {
        key: value
        for struct in (TRAINING, RUN)
        for key, value in leaves(msgspec.json.decode(msgspec.json.encode(struct)))
    }
    assert set(config_columns(taken=())) == set(expected)
    columns = config_columns(taken=())
    listed = ", ".join(f'{source} AS "{name}"' for name, source in columns.items())

    result = query_logs([written(tmp_path)], f"SELECT {listed} FROM run_configs")

    [row] = result.rows
    found = {
        name: msgspec.json.decode(value) if isinstance(expected[name], dict | list) else value
        for name, value in zip(result.columns, row, strict=True)
        if expected[name] is not None or value is not None
    }
    assert found == {name: value for name, value in expected.items() if value is not None}


def test_view_of_runs_joins_the_first_event_and_the_configuration(tmp_path: Path) -> None:
    sql = "SELECT run_id, name, tags->>'sweep', \"group\", lr, num_rounds, task FROM runs"
    log = written(tmp_path)

    rows = query_logs([log, log], sql).rows

    assert set(rows) == {("0a1b2c3d", "wide", "width", "default", 0.125, 1, "digits")}
    (log.parent / "run.json").unlink()
    assert query_logs([log], sql).rows == [
        ("0a1b2c3d", None, None, "default", None, 1, "digits"),
    ]
    assert read_run_configs([log]) == []
