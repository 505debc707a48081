"""The claims S6 to S8, judged by the reports of the second experiment and by nothing else."""

from collections.abc import Mapping, Sequence
from typing import Final

from esper.karn.report.comparison_tables import estimate_text
from esper.leyline.comparison import ComparisonReport, Estimate
from tools.evidence.claims import Claim, Outcome, difference, learned_arms

__all__ = ["judge_closed_loop"]

MIN_POLICIES: Final = 5
MIN_CLOSED: Final = 0.5
SEARCHED: Final = ("schedule:search", "rule:search")
COPIES: Final = ("yoked", "blind")
JUDGED_ON: Final = ("contexts", "lottery")


def judge_closed_loop(reports: Mapping[str, ComparisonReport]) -> list[Claim]:
    """Return every claim with its measurements and outcome, from the reports by name."""
    return [_better_than_searches(reports), _closes_the_gap(reports), _looks(reports)]


def _better_than_searches(reports: Mapping[str, ComparisonReport]) -> Claim:
    text = (
        "the policy beats the best schedule and the best rule of searches with its own budget in "
        "task return, 95 % interval above zero, on contexts and on the lottery"
    )
    return _above_zero("S6", text, reports, SEARCHED)


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
