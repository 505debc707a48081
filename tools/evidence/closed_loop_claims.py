"""The claims S6 to S10, judged by the reports of the second experiment and by nothing else."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

from esper.karn.report.comparison_tables import estimate_text
from esper.leyline.comparison import ComparisonReport, Estimate
from esper.leyline.inspection import InspectionReport
from tools.calibration import REQUIRED_CORRELATION, Calibration
from tools.evidence.claims import Claim, Outcome, difference, learned_arms
from tools.evidence.reports import PLANS

__all__ = ["judge_closed_loop"]

MIN_POLICIES: Final = 5
MIN_CLOSED: Final = 0.5
MIN_NOTICED: Final = 0.5
MIN_SEEDS: Final = 40
SEARCHED: Final = ("schedule:search", "rule:search")
COPIES: Final = ("yoked", "blind")
JUDGED_ON: Final = ("contexts", "lottery")


def judge_closed_loop(
    reports: Mapping[str, ComparisonReport],
    inspections: Sequence[InspectionReport],
    calibration: Calibration | None = None,
) -> list[Claim]:
    """Return every claim with its measurements and outcome.

    Args:
        reports: the comparisons by name.
        inspections: one for each policy.
        calibration: of contributions, if it was made.
    """
    return [
        _better_than_searches(reports),
        _better_than_plans(reports),
        _closes_the_gap(reports),
        _looks(reports),
        _notices(inspections),
        _is_calibrated(calibration),
    ]


def _better_than_searches(reports: Mapping[str, ComparisonReport]) -> Claim:
    text = (
        "the policy beats the best schedule and the best rule of searches with its own budget in "
        "task return, 95 % interval above zero, on contexts and on the lottery"
    )
    return _above_zero("S6", text, reports, SEARCHED)


def _better_than_plans(reports: Mapping[str, ComparisonReport]) -> Claim:
    text = (
        "the same for the best schedule and the best rule that plans found on the probe of the "
        "policy's training, which need no network either"
    )
    return _above_zero("S6, plans", text, reports, PLANS)


def _looks(reports: Mapping[str, ComparisonReport]) -> Claim:
    text = (
        "the policy beats its yoked and its blind copy in task return, 95 % interval above zero, "
        "on contexts and on the lottery"
    )
    return _above_zero("S8", text, reports, COPIES)


def _above_zero(
    name: str, text: str, reports: Mapping[str, ComparisonReport], kinds: Sequence[str]
) -> Claim:
    found = {
        (where, kind): _difference_to(reports.get(where), kind)
        for where in JUDGED_ON
        for kind in kinds
    }
    figures = "; ".join(
        f"{where}, over `{kind}`: {estimate_text(estimate, 2)}"
        for (where, kind), estimate in found.items()
        if estimate is not None
    )
    if None in found.values():
        return Claim(name, text, figures, Outcome.UNKNOWN)
    is_met = all(estimate is not None and estimate.low > 0.0 for estimate in found.values())
    is_large = all(
        learned_arms(reports[where])[0].num_policies >= MIN_POLICIES for where in JUDGED_ON
    )
    return Claim(name, text, figures, Outcome.MET if is_met and is_large else Outcome.NOT_MET)


def _difference_to(report: ComparisonReport | None, kind: str) -> Estimate | None:
    """Return the policy minus the arm of a name or kind, in task return."""
    if report is None or not learned_arms(report):
        return None
    policy = learned_arms(report)[0].arm
    names = [arm.arm for arm in report.arms if kind in (arm.arm, arm.arm.partition(":")[0])]
    found = difference(report, policy, names[0]) if names else None
    return None if found is None else found.task_return


def _closes_the_gap(reports: Mapping[str, ComparisonReport]) -> Claim:
    text = (
        "the policy closes at least half of the gap in task return between the best schedule and "
        "the best schedule of each context, on contexts"
    )
    report = reports.get("contexts")
    learned = learned_arms(report)[:1] if report else []
    share = learned[0].gap_closed if learned else None
    if share is None:
        return Claim("S7", text, "", Outcome.UNKNOWN)
    outcome = Outcome.MET if share.value >= MIN_CLOSED else Outcome.NOT_MET
    return Claim("S7", text, estimate_text(share, 2), outcome)


def _notices(inspections: Sequence[InspectionReport]) -> Claim:
    text = (
        "of useful seeds that are scrambled, the policy prunes within five steps a share that is "
        "larger by at least 0.5 than of intact ones, on average over policies"
    )
    if not inspections:
        return Claim("S9", text, "", Outcome.UNKNOWN)
    noticed = [_noticed(report) for report in inspections]
    figures = f"{fmean(noticed):.2f}; by policy {', '.join(f'{share:.2f}' for share in noticed)}"
    is_met = fmean(noticed) >= MIN_NOTICED and len(noticed) >= MIN_POLICIES
    return Claim("S9", text, figures, Outcome.MET if is_met else Outcome.NOT_MET)


def _noticed(report: InspectionReport) -> float:
    found = report.sabotage
    # A policy that grows nothing useful has nothing to notice, which is no success.
    if not found.num_sabotaged or not found.num_intact:
        return 0.0
    return found.pruned_sabotaged - found.pruned_intact


def _is_calibrated(found: Calibration | None) -> Claim:
    text = (
        "counterfactual contributions rank seeds as removal and retraining does: rank correlation "
        f"of at least {REQUIRED_CORRELATION} over at least {MIN_SEEDS} seeds"
    )
    if found is None:
        return Claim("S10", text, "", Outcome.UNKNOWN)
    figures = f"{found.correlation:.2f}, slope {found.slope:.2f}; {len(found.seeds)} seeds"
    is_met = found.correlation >= REQUIRED_CORRELATION and len(found.seeds) >= MIN_SEEDS
    return Claim("S10", text, figures, Outcome.MET if is_met else Outcome.NOT_MET)
