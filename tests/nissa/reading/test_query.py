"""SQL sees the run through views, and nothing but the run."""

import gzip
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from backports import zstd
from tests.nissa.fake_run import FakeRun
from tests.simic.training.small_runs import LENIENT, small_run

from esper.leyline.errors import MissingExtraError, UsageError
from esper.leyline.telemetry import EventType
from esper.nissa.reading.query import export_views, query_logs
from esper.nissa.reading.sql_views import VIEWS
from esper.scripts.telemetry import main

SHAPE = FakeRun(num_rounds=3, num_envs=3, num_steps=12, seed=3, failed_env=2)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SHAPE.write(tmp_path_factory.mktemp("runs")) / "events.jsonl"


@pytest.mark.parametrize(("name", "other"), [("g[1]", "g1"), ("g*", "ga"), ("g?", "gb")])
def test_path_is_no_pattern(name: str, other: str, log: Path, tmp_path: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    for number, directory in enumerate((name, other), start=1):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "events.jsonl").write_bytes(b"".join(lines[:number]))
    path = tmp_path / name / "events.jsonl"
    assert query_logs([path], "SELECT count(*) FROM raw_events").rows == [(1,)]


def test_statement_that_is_not_text_is_refused(log: Path) -> None:
    with pytest.raises(UsageError, match="the statement is not UTF-8 text"):
        query_logs([log], "SELECT \udcff")


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_can_be_selected_from(name: str, log: Path) -> None:
    assert query_logs([log], f"SELECT * FROM {name}").columns


def test_views_hold_the_numbers_of_the_events(log: Path) -> None:
    events = [json.loads(line) for line in log.read_bytes().splitlines()]
    epochs = [event for event in events if event["event_type"] == "EPOCH_COMPLETED"]

    rows = query_logs([log], "SELECT round, step, env_id, val_loss FROM epochs ORDER BY seq").rows

    assert rows == [
        (event["round"], event["step"], event["env_id"], event["data"]["val_loss"])
        for event in epochs
    ]


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("SELECT num_rounds FROM runs", 3),
        ("SELECT count(*) FROM failures WHERE env_id = 2", 1),
        ("SELECT count(*) FROM anomalies", 1),
        ("SELECT count(DISTINCT component) FROM rewards", 19),
        ("SELECT count(DISTINCT phase) FROM phases", 3),
        ("SELECT count(*) FROM episode_outcomes WHERE status = 'failed'", 1),
        ("SELECT num_episodes FROM reward_calibration", 8),
        ("SELECT year(time) FROM endings", 2025),
    ],
)
def test_questions_have_answers(sql: str, value: object, log: Path) -> None:
    assert query_logs([log], sql).rows == [(value,)]


def test_topology_has_a_row_for_each_slot_that_a_real_run_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small_run(tmp_path, "periodic", max_epochs=14, n_episodes=2, lifecycle=LENIENT)
    recorded = run.of(EventType.TOPOLOGY_MANIFEST_RECORDED)
    sql = "SELECT * EXCLUDE (run_id, time, severity) FROM topology ORDER BY seq, slot_id"

    assert main(["query", str(run.directory), sql, "--format", "json"]) == 0

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    scope = ("seq", "round", "step", "env_id", "episode_id")
    assert rows == [
        {name: getattr(event, name) for name in scope}
        | msgspec.structs.asdict(row)
        | {"host_params": event.data.host_params, "total_params": event.data.total_params}
        for event in recorded
        for row in sorted(event.data.slots, key=lambda row: row.slot_id)
    ]
    assert {row["episode_id"] for row in rows} == {0, 1, 2, 3}
    assert {row["kept_at_step"] is None for row in rows} == {True, False}


def test_several_runs_are_distinguished_by_their_id(log: Path, tmp_path: Path) -> None:
    other = FakeRun(run_id="ffffffff").write(tmp_path) / "events.jsonl"

    rows = query_logs([log, other], "SELECT run_id FROM runs ORDER BY run_id").rows

    assert rows == [("0a1b2c3d",), ("ffffffff",)]


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstd.compress)])
def test_compressed_log_is_read(
    suffix: str, pack: Callable[[bytes], bytes], log: Path, tmp_path: Path
) -> None:
    packed = tmp_path / f"events.jsonl{suffix}"
    packed.write_bytes(pack(log.read_bytes()))

    assert query_logs([packed], "SELECT count(*) FROM runs").rows == [(1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELEC 1",
        "SELECT * FROM nothing",
        "COPY (SELECT 1) TO 'out.csv'",
        "SELECT * FROM read_text('/etc/hostname')",
        "ATTACH 'other.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "",
        "-- nothing",
    ],
)
def test_what_is_not_a_question_about_the_run_is_refused_in_one_sentence(
    sql: str, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(UsageError, match=r"^query: ") as caught:
        query_logs([log], sql)

    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SELECT accurcy FROM rounds", 'mean_accuracy_pct"'),
        ("SELECT * FROM round", 'Did you mean "rounds"?'),
    ],
)
def test_misspelt_name_comes_with_candidates(sql: str, hint: str, log: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(hint)):
        query_logs([log], sql)


def test_missing_extra_is_named_with_what_needs_it(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    hint = r"needs duckdb, which is not installed; pip install 'esper-grow\[query\]'"
    with pytest.raises(MissingExtraError, match=f"^query {hint}"):
        query_logs([log], "SELECT 1")
    with pytest.raises(MissingExtraError, match=f"^--to csv {hint}"):
        export_views([log], tmp_path, "csv")
