"""The claims of the second experiment are met by figures of both families."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from tests.karn.comparisons import arm, around, comparison, contrast
from tools.calibration import Calibration, SeedWorth
from tools.evidence import closed_loop
from tools.evidence.claims import Outcome
from tools.evidence.closed_loop import COMPARISONS, courses_in
from tools.evidence.closed_loop_claims import judge_closed_loop
from tools.evidence.reports import (
    PLANS,
    inspection_path,
    keep_calibration,
    keep_inspections,
    read_calibration,
    read_inspections,
)

from esper.leyline.comparison import ComparisonReport, Estimate
from esper.leyline.errors import UnreadableFileError
from esper.leyline.inspection import InspectionReport, SabotageFigures
from esper.leyline.jobs import merge_job
from esper.leyline.tasks import PRESETS, TASKS

POLICY = "ppo:a,b"
OTHERS = ("yoked:a,b", "blind:a,b", "ppo:blind", "schedule:search", "rule:search", *PLANS)
MET, NOT_MET, UNKNOWN = Outcome.MET, Outcome.NOT_MET, Outcome.UNKNOWN
ABOVE = Estimate(value=2.0, low=0.1, high=3.0)
ACROSS = Estimate(value=2.0, low=-0.1, high=3.0)


def report(
    gains: dict[str, Estimate] | None = None,
    *,
    gap_closed: Estimate | None = None,
    num_policies: int = 5,
) -> ComparisonReport:
    """Return a comparison in which the policy gains this much return over each of the others."""
    gains = gains or {}
    learned = arm(POLICY, num_policies=num_policies, gap_closed=gap_closed)
    return comparison(
        learned,
        *map(arm, OTHERS),
        contrasts=tuple(
            contrast(POLICY, name, around(1.0), gains.get(name, ABOVE)) for name in OTHERS
        ),
    )


def judged(name: str, contexts: ComparisonReport, lottery: ComparisonReport | None) -> Outcome:
    reports = {"contexts": contexts} | ({} if lottery is None else {"lottery": lottery})
    return next(claim.outcome for claim in judge_closed_loop(reports, ()) if claim.name == name)


def inspection(pruned_sabotaged: float, pruned_intact: float, *, num: int = 9) -> InspectionReport:
    """Return an inspection with this many sabotaged and as many intact seeds."""
    return InspectionReport(
        policy="closed-loop-1.pt",
        task="digits_contexts",
        seeds=(1,),
        num_envs=18,
        num_decisions=99,
        shifts=(),
        sabotage=SabotageFigures(
            first_step=12,
            window=5,
            min_worth_pp=4.0,
            num_sabotaged=num,
            num_intact=num,
            pruned_sabotaged=pruned_sabotaged,
            pruned_intact=pruned_intact,
            difference=None,
        ),
    )


def test_nothing_measured_is_nothing_claimed() -> None:
    claims = judge_closed_loop({}, ())

    assert [claim.name for claim in claims] == [*("S6", "S6, plans", "S7", "S8", "S9", "S10")]
    assert {claim.outcome for claim in claims} == {UNKNOWN}


@pytest.mark.parametrize(
    ("name", "beaten"),
    [
        ("S6", "schedule:search"),
        ("S6", "rule:search"),
        ("S6, plans", PLANS[0]),
        ("S6, plans", PLANS[1]),
        ("S8", "yoked:a,b"),
    ],
)
def test_every_interval_must_be_above_zero_on_both(name: str, beaten: str) -> None:
    good, bad = report(), report({beaten: ACROSS})

    assert judged(name, good, good) is MET
    assert judged(name, bad, good) is NOT_MET
    assert judged(name, good, bad) is NOT_MET
    assert judged(name, good, None) is UNKNOWN


def test_other_blind_policy_is_not_the_blind_copy() -> None:
    good, bad = report(), report({"ppo:blind": ACROSS})

    assert judged("S8", bad, good) is MET


def test_few_policies_prove_nothing() -> None:
    assert judged("S6", report(num_policies=4), report()) is NOT_MET


@pytest.mark.parametrize(("share", "outcome"), [(0.5, MET), (0.49, NOT_MET)])
def test_half_of_the_gap_must_be_closed(share: float, outcome: Outcome) -> None:
    closed = Estimate(value=share, low=0.0, high=1.0)

    assert judged("S7", report(gap_closed=closed), None) is outcome
    assert judged("S7", report(), None) is UNKNOWN


@pytest.mark.parametrize(
    ("reports", "outcome"),
    [
        ([inspection(0.75, 0.25)] * 5, MET),
        ([inspection(0.75, 0.25)] * 4, NOT_MET),
        ([inspection(0.75, 0.26)] * 5, NOT_MET),
        ([inspection(1.0, 0.0)] * 4 + [inspection(0.25, 0.75)], MET),
        ([inspection(1.0, 0.5)] * 4 + [inspection(1.0, 0.0, num=0)], NOT_MET),
    ],
)
def test_scrambled_seeds_must_be_pruned_more_often_by_half_on_average(
    reports: list[InspectionReport], outcome: Outcome
) -> None:
    (claim,) = (claim for claim in judge_closed_loop({}, reports) if claim.name == "S9")

    assert claim.outcome is outcome


def test_inspection_of_every_policy_is_written_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = SimpleNamespace(run=inspecting, PIPE=subprocess.PIPE)
    monkeypatch.setattr(closed_loop, "subprocess", commands)

    assert closed_loop.inspect_all(tmp_path, 2, "1-2") == 0

    kept = tmp_path / "kept"
    assert list(keep_inspections(tmp_path, kept)) == [kept / "inspections.json"]
    assert list(keep_inspections(tmp_path, kept)) == []
    found = read_inspections(kept)
    assert found is not None
    assert found.reports == (inspection(1.0, 0.33333),) * 2


def inspecting(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
    """Print a report as `esper-train inspect --json` does."""
    assert command[3] == "inspect"
    assert command[-1] == "--json"
    report = msgspec.json.encode(inspection(1.0, 1 / 3))
    return subprocess.CompletedProcess(command, 0, report)


@pytest.mark.parametrize(
    ("correlation", "num", "outcome"), [(0.8, 40, MET), (0.79, 40, NOT_MET), (0.8, 39, NOT_MET)]
)
def test_contributions_must_rank_enough_seeds(
    correlation: float, num: int, outcome: Outcome
) -> None:
    seed = SeedWorth(blueprint="norm", slot="r0c0", measured_pp=1.0, real_pp=2.0)
    found = Calibration(seeds=(seed,) * num, correlation=correlation, slope=1.0)

    (claim,) = (claim for claim in judge_closed_loop({}, (), found) if claim.name == "S10")

    assert claim.outcome is outcome


def test_calibration_is_kept_with_its_origin_once(tmp_path: Path) -> None:
    seed = SeedWorth(blueprint="norm", slot="r0c0", measured_pp=1.23456789, real_pp=2.0)
    found = Calibration(seeds=(seed,), correlation=0.9, slope=1.0)
    (tmp_path / "calibration.json").write_bytes(msgspec.json.encode(found))
    kept = tmp_path / "kept"

    assert list(keep_calibration(tmp_path, kept)) == [kept / "calibration.json"]
    assert list(keep_calibration(tmp_path, kept)) == []
    again = read_calibration(kept)
    assert again is not None
    assert again.report.seeds[0].measured_pp == 1.2346


def test_file_that_is_no_inspection_is_named(tmp_path: Path) -> None:
    inspection_path(tmp_path, "closed-loop-1").write_bytes(b"{}")

    with pytest.raises(UnreadableFileError, match="not the report of an inspection"):
        list(keep_inspections(tmp_path, tmp_path / "kept"))


def test_every_comparison_is_of_a_task_and_contexts_that_exist() -> None:
    for item in COMPARISONS:
        names = {setting.split(".")[2].partition("=")[0] for setting in item.settings}
        assert names <= {context.name for context in TASKS[item.task].contexts}


def test_policies_learn_in_all_contexts_that_they_are_judged_in(tmp_path: Path) -> None:
    *seeing, blind = courses_in(tmp_path, 5, ())
    job, _ = merge_job(("test", {"training": {"preset": "closed_loop"}}))
    probe = TASKS[PRESETS[seeing[0].preset].settings["task"]]

    trained_in = {context.name: context.weight for context in probe.contexts}
    assert trained_in == job.training.contexts
    assert set(trained_in) == {"pointwise", "spatial", "permuted", "noisy", "lottery"}
    assert len({course.seed for course in (*seeing, blind)}) == 6
    assert blind.flags == ("--blind",)
