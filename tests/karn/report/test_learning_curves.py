"""Training runs side by side, held against a plain reading of their logs."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.karn.runs import write_run
from tests.karn.story import Story

from esper.karn.report.learning_curves import read_learning
from esper.leyline.errors import UsageError
from esper.leyline.learning import LearningCurve, LearningReport

LONG = Story(num_rounds=5, num_envs=2, num_steps=4, seed=1)
SHORT = Story(num_rounds=2, num_envs=2, num_steps=4, seed=2, is_finished=False, has_trouble=False)


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        write_run(tmp_path / name, story.lines())
        for name, story in (("long", LONG), ("short", SHORT))
    ]


def payloads_of(run_dir: Path, event_type: str) -> list[dict[str, Any]]:
    lines = (run_dir / "events.jsonl").read_bytes().splitlines()
    events = [msgspec.json.decode(line) for line in lines]
    return [event["data"] for event in events if event["event_type"] == event_type]


def named(curves: tuple[LearningCurve, ...], name: str) -> LearningCurve:
    return next(curve for curve in curves if curve.name == name)


@pytest.mark.parametrize(
    ("name", "event_type", "field"),
    [
        ("mean_accuracy_pct", "BATCH_EPOCH_COMPLETED", "mean_accuracy_pct"),
        ("mean_task_return", "BATCH_EPOCH_COMPLETED", "mean_task_return"),
        ("mean_reward", "BATCH_EPOCH_COMPLETED", "mean_reward"),
        ("num_fossilized", "BATCH_STATS", "seeds_fossilized"),
        ("num_pruned", "BATCH_STATS", "seeds_pruned"),
        ("kl_divergence", "PPO_UPDATE_COMPLETED", "kl_divergence"),
        ("value_nrmse", "PPO_UPDATE_COMPLETED", "value_nrmse"),
        ("explained_variance", "PPO_UPDATE_COMPLETED", "explained_variance"),
        ("entropy", "PPO_UPDATE_COMPLETED", "entropy"),
    ],
)
def test_curve_has_what_the_logs_say(
    runs: list[Path], name: str, event_type: str, field: str
) -> None:
    curve = named(read_learning(runs).curves, name)

    assert [list(run) for run in curve.runs] == [
        [data[field] for data in payloads_of(run, event_type)] for run in runs
    ]


def test_entropy_of_every_head_is_a_curve_of_its_own(runs: list[Path]) -> None:
    entropies = read_learning(runs).entropies

    updates = payloads_of(runs[0], "PPO_UPDATE_COMPLETED")
    assert {curve.name for curve in entropies} == updates[0]["heads"].keys()
    for curve in entropies:
        assert list(curve.runs[0]) == [data["heads"][curve.name]["entropy"] for data in updates]


def test_rounds_are_averaged_over_the_runs_that_have_them(runs: list[Path]) -> None:
    curve = named(read_learning(runs).curves, "mean_accuracy_pct")
    long, short = curve.runs

    assert [len(long), len(short), len(curve.mean)] == [5, 2, 5]
    assert curve.mean[1] == pytest.approx(((long[1] or 0) + (short[1] or 0)) / 2)
    assert {curve.low[1], curve.high[1]} == {long[1], short[1]}
    assert curve.mean[2:] == curve.low[2:] == curve.high[2:] == long[2:]


def test_run_is_listed_with_its_verdict_and_every_alarm(runs: list[Path]) -> None:
    long, short = read_learning(runs).runs

    lines = (runs[0] / "events.jsonl").read_bytes().splitlines()
    events = [msgspec.json.decode(line) for line in lines]
    grave = ("warning", "error", "critical")
    counts = Counter(event["event_type"] for event in events if event["severity"] in grave)
    assert counts["ENTROPY_COLLAPSE_DETECTED"] == 1
    assert long.alarms == counts
    assert (long.status, long.num_rounds) == ("completed", 5)
    assert long.verdict.startswith("Finished")
    assert (short.status, short.alarms) == ("running", {})


def test_log_may_be_named_instead_of_its_directory(runs: list[Path]) -> None:
    assert read_learning([runs[0] / "events.jsonl"]) == read_learning(runs[:1])


def test_log_with_only_its_first_event_gives_empty_curves(tmp_path: Path) -> None:
    first, *_ = SHORT.lines()

    report = read_learning([write_run(tmp_path / "run", [first])])

    assert all(curve.runs == ((),) and curve.mean == () for curve in report.curves)
    assert report.entropies == ()


def test_report_survives_the_wire(runs: list[Path]) -> None:
    report = read_learning(runs)
    assert msgspec.json.decode(msgspec.json.encode(report), type=LearningReport) == report


def test_what_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    stranger = write_run(tmp_path / "stranger", [b'{"a": 1}'])
    for name in ("one", "two"):
        write_run(tmp_path / "several" / name, SHORT.lines())

    for path, reason in (
        (tmp_path / "nowhere", "no such file"),
        (tmp_path / "empty", r"no events\.jsonl here"),
        (tmp_path / "several", "contains 2 runs; name one of them"),
        (stranger, "has no TRAINING_STARTED event"),
    ):
        with pytest.raises(UsageError, match=reason) as refused:
            read_learning([path])
        assert str(path) in str(refused.value)


def test_log_with_a_round_beyond_all_runs_is_refused(runs: list[Path]) -> None:
    log = runs[0] / "events.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"round":4', b'"round":1000000'))
    with pytest.raises(UsageError, match="has a round 1000000; up to 1000000 are drawn"):
        read_learning(runs)
