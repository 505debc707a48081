"""One pass over a log gathers what comparisons need, exactly."""

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.nissa.fake_run import FakeRun

from esper.leyline.baselines import RunProfile
from esper.nissa.analysis import run_profile
from esper.nissa.analysis.identities import check_profile
from esper.nissa.analysis.ordering import (
    EPOCH_BEFORE_ACTION,
    FINISHES_LAST,
    OUTCOME_BEFORE_BARRIER,
    ROUND_TAIL,
    STAGE_BEFORE_FATE,
    STARTS_FIRST,
)
from esper.nissa.analysis.reading_processes import run_tasks
from esper.nissa.analysis.run_profile import Scan, ScanTask, scan_log


def scan(tmp_path: Path, lines: list[bytes], *, with_keys: bool = True) -> Scan:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return scan_log(ScanTask(path=str(path), with_keys=with_keys))


def profile_of(tmp_path: Path, lines: list[bytes]) -> RunProfile:
    return scan(tmp_path, lines).profile


def index_of(lines: list[bytes], event_type: str, nth: int = 0) -> int:
    found = [
        i
        for i, line in enumerate(lines)
        if line.startswith(f'{{"event_type":"{event_type}"'.encode())
    ]
    return found[nth]


def test_counts_and_key_sets_equal_those_of_a_json_parser(tmp_path: Path) -> None:
    lines = list(FakeRun().lines())
    events = [json.loads(line) for line in lines]

    profile = profile_of(tmp_path, lines)

    assert profile.counts == Counter(event["event_type"] for event in events)
    assert profile.key_sets == {event["event_type"]: [sorted(event["data"])] for event in events}
    assert profile.num_bad_lines == 0
    assert profile.status == "completed"
    assert profile.started is not None
    assert profile.started.num_rounds == 2


def test_digest_ignores_clock_run_and_layout_but_no_value(tmp_path: Path) -> None:
    lines = list(FakeRun().lines())
    digest = profile_of(tmp_path, lines).digest
    turned = [json.dumps(dict(reversed(json.loads(line).items()))).encode() for line in lines]
    other = [*lines]
    other[40] = other[40].replace(b'"group":"default"', b'"group":"other"')

    assert profile_of(tmp_path, list(FakeRun(run_id="beef", started=9e8).lines())).digest == digest
    assert profile_of(tmp_path, turned).digest == digest
    assert profile_of(tmp_path, other).digest != digest


def test_digest_does_not_depend_on_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list(FakeRun().lines())
    monkeypatch.setattr(run_profile, "BLOCK_LINES", 50)
    whole = scan(tmp_path, lines)
    monkeypatch.setattr("esper.nissa.reading.lines.CHUNK_BYTES", 3000)

    assert scan(tmp_path, lines) == whole
    assert len(whole.blocks) == -(-len(lines) // 50)


def test_scan_in_another_process_is_the_same(tmp_path: Path) -> None:
    run = FakeRun().write(tmp_path)
    task = ScanTask(path=str(run / "events.jsonl"))

    assert run_tasks([task, task], Scan) == [scan_log(task)] * 2


@pytest.mark.parametrize(
    "shape",
    [
        FakeRun(),
        FakeRun(failed_env=0),
        FakeRun(failed_env=1, skipped_round=1),
        FakeRun(num_rounds=5, num_envs=3, num_steps=12, seed=3),
        FakeRun(num_rounds=1, num_envs=1, num_steps=1),
        FakeRun(is_finished=False),
    ],
)
def test_consistent_run_breaks_no_rule_and_no_equation(shape: FakeRun, tmp_path: Path) -> None:
    profile = profile_of(tmp_path, list(shape.lines()))

    assert profile.broken_orders == {}
    assert [check for check in check_profile(profile) if not check.holds] == []


@pytest.mark.parametrize(
    ("event_type", "equation"),
    [
        ("EPOCH_COMPLETED", "EPOCH_COMPLETED = rounds x envs x steps"),
        ("LAST_ACTION", "LAST_ACTION = rounds x envs x steps"),
        ("EPISODE_OUTCOME", "EPISODE_OUTCOME = rounds x envs"),
        (
            "TOPOLOGY_MANIFEST_RECORDED",
            "TOPOLOGY_MANIFEST_RECORDED = rounds x envs - failed envs",
        ),
        ("BATCH_STATS", "BATCH_STATS = rounds"),
        ("PPO_UPDATE_COMPLETED", "PPO_UPDATE_COMPLETED = rounds - skipped updates"),
        ("PHASE_PROFILE_COMPLETED", "PHASE_PROFILE_COMPLETED = rounds x (steps + 1)"),
        ("SEED_GERMINATED", "SEED_GERMINATED = seeds germinated by round"),
        ("SEED_FOSSILIZED", "SEED_FOSSILIZED = stage changes to FOSSILIZED"),
        ("SEED_PRUNED", "SEED_PRUNED = stage changes to PRUNED"),
        ("SEED_GATE_EVALUATED", "passed gate evaluations = gated stage changes"),
        ("MORPHOLOGY_CAUSAL_LOG", "causal proposal = causal verdict"),
    ],
)
def test_missing_event_breaks_its_equation(event_type: str, equation: str, tmp_path: Path) -> None:
    lines = list(FakeRun(num_rounds=3, num_envs=3, num_steps=12, seed=3).lines())
    del lines[index_of(lines, event_type)]

    profile = profile_of(tmp_path, lines)

    broken = [check.name for check in check_profile(profile) if not check.holds]
    assert any(name.startswith(equation) for name in broken)


def swap(lines: list[bytes], first: int, second: int) -> list[bytes]:
    swapped = [*lines]
    swapped[first], swapped[second] = swapped[second], swapped[first]
    return swapped


def reorderings() -> list[tuple[str, list[bytes]]]:
    lines = list(FakeRun(num_rounds=3, num_envs=3, num_steps=12, seed=3).lines())
    epoch, fossil = index_of(lines, "EPOCH_COMPLETED"), index_of(lines, "SEED_FOSSILIZED")
    outcome_index = index_of(lines, "EPISODE_OUTCOME")
    barrier = index_of(lines, "BATCH_EPOCH_COMPLETED")
    late = [*lines]
    late.insert(barrier, late.pop(outcome_index))  # right after the barrier of its round
    return [
        (STARTS_FIRST, swap(lines, 0, 1)),
        (FINISHES_LAST, swap(lines, len(lines) - 1, len(lines) - 2)),
        (EPOCH_BEFORE_ACTION, swap(lines, epoch, index_of(lines, "LAST_ACTION"))),
        (ROUND_TAIL, swap(lines, index_of(lines, "BATCH_STATS"), barrier)),
        (OUTCOME_BEFORE_BARRIER, late),
        (STAGE_BEFORE_FATE, swap(lines, fossil, fossil - 1)),
    ]


@pytest.mark.parametrize(("rule", "lines"), reorderings(), ids=lambda item: str(item)[:30])
def test_wrong_order_breaks_its_rule_and_no_other(
    rule: str, lines: list[bytes], tmp_path: Path
) -> None:
    assert list(profile_of(tmp_path, lines).broken_orders) == [rule]


def test_truncated_and_foreign_lines_are_distinguished(tmp_path: Path) -> None:
    lines = list(FakeRun().lines())

    profile = profile_of(
        tmp_path, [*lines[:5], lines[5][:-30], b'{"event_type":"X","data":{"v":NaN}}', b"", b"{"]
    )

    assert profile.counts["X"] == 1
    assert profile.key_sets["X"] == [["v"]]
    assert profile.num_bad_lines == 2
