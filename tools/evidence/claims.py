"""The claims S1 to S5, judged by the reports and by nothing else."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from esper.karn.report.comparison_tables import estimate_text, figure_text
from esper.leyline.comparison import ArmSummary, ComparisonReport, Contrast, Estimate

__all__ = ["Claim", "Outcome", "difference", "judge", "learned_arms", "share_kept"]

MIN_SEEDS: Final = 20
MIN_POLICIES: Final = 3
MIN_USEFUL_PCT: Final = 90.0
MIN_SHARE: Final = 0.5
MAX_BEHIND_PP: Final = 0.5
POLICY: Final = "ppo"
STATIC: Final = "static-final"
NOTHING: Final = "wait"


class Outcome(StrEnum):
    """The outcome of a claim."""

    MET = "met"
    NOT_MET = "not met"
    UNKNOWN = "not measured"


class Claim(NamedTuple):
    """One claim beside its figures."""

    name: str
    text: str
    figures: str
    outcome: Outcome


class Share(NamedTuple):
    """A policy's gain on unseen data, relative to a reference arm."""

    value: float
    reference: str
    """The arm whose gain is the divisor."""
    gain_pp: float
    reference_gain_pp: float


def judge(known: ComparisonReport | None, unknown: ComparisonReport | None) -> list[Claim]:
    """Return every claim with its measurements and outcome.

    Args:
        known: the comparison on the data that the policies were trained on.
        unknown: the comparison on data that they were not trained on.
    """
    return [
        _better_than("S1", ("wait", "random"), known),
        _better_than("S2", ("heuristic", "periodic"), known),
        _useful(known),
        _transferred(unknown),
        _like_static(known),
    ]


def learned_arms(report: ComparisonReport) -> list[ArmSummary]:
    """Return the arms with a learned policy; the claims are about the first."""
    return [arm for arm in report.arms if arm.arm.partition(":")[0] == POLICY]


def difference(report: ComparisonReport, first: str, second: str) -> Contrast | None:
    """Return the first arm minus the second, whichever of them the report names first."""
    for found in report.contrasts:
        if (found.first, found.second) == (first, second):
            return found
        if (found.first, found.second) == (second, first):
            return Contrast(
                first=first,
                second=second,
                final_pp=_negated(found.final_pp),
                mean_pp=_negated(found.mean_pp),
                total_reward=_negated(found.total_reward),
                probability=_negated(found.probability, total=1.0),
                task_return=found.task_return and _negated(found.task_return),
            )
    return None


def _negated(estimate: Estimate, total: float = 0.0) -> Estimate:
    return Estimate(
        value=total - estimate.value, low=total - estimate.high, high=total - estimate.low
    )


def share_kept(report: ComparisonReport) -> Share | None:
    """Return a policy's gain over `wait` on unseen data, relative to a reference arm.

    The reference is a policy trained on these data, the second learned arm; without one, the arm
    with the largest gain. None if no reference arm gains anything.
    """
    learned = learned_arms(report)
    if not learned:
        return None
    others = [arm.arm for arm in learned[1:2]] or [
        arm.arm for arm in report.arms if arm.arm not in (learned[0].arm, NOTHING, STATIC)
    ]
    gains = {
        name: found.final_pp.value
        for name in (learned[0].arm, *others)
        if (found := difference(report, name, NOTHING)) is not None
    }
    gain_pp = gains.pop(learned[0].arm, None)
    if gain_pp is None or max(gains.values(), default=0.0) <= 0.0:
        return None
    reference = max(gains, key=lambda name: gains[name])
    return Share(gain_pp / gains[reference], reference, gain_pp, gains[reference])


def _better_than(name: str, others: Sequence[str], report: ComparisonReport | None) -> Claim:
    text = (
        f"the learned policy beats `{others[0]}` and `{others[1]}` in task return (without "
        "shaping) and final accuracy, 95 % interval above zero, at least "
        f"{MIN_SEEDS} held-out seeds and {MIN_POLICIES} policies"
    )
    learned = learned_arms(report)[:1] if report else []
    if report is None or not learned:
        return Claim(name, text, "", Outcome.UNKNOWN)
    found = [difference(report, learned[0].arm, other) for other in others]
    reported = [
        f"over `{contrast.second}`: {estimate_text(contrast.final_pp)} pp, task return "
        f"{estimate_text(contrast.task_return, 2)}"
        for contrast in found
        if contrast is not None
    ]
    size = f"{len(report.seeds)} seeds, policies: {learned[0].num_policies}"
    is_large = len(report.seeds) >= MIN_SEEDS and learned[0].num_policies >= MIN_POLICIES
    differences = [
        figure
        for contrast in found
        for figure in (contrast and contrast.final_pp, contrast and contrast.task_return)
    ]
    # The lower end decides: above zero means the whole interval is.
    is_above = all(figure is not None and figure.low > 0.0 for figure in differences)
    outcome = Outcome.MET if is_large and is_above else Outcome.NOT_MET
    return Claim(
        name,
        text,
        "; ".join((*reported, size)),
        Outcome.UNKNOWN if None in differences else outcome,
    )


def _useful(report: ComparisonReport | None) -> Claim:
    text = (
        f"at least {MIN_USEFUL_PCT:.0f} % of the fossilized seeds have a positive counterfactual "
        "contribution at the end of their episode"
    )
    learned = learned_arms(report)[:1] if report else []
    share_pct = learned[0].positive_fossils_pct if learned else None
    if share_pct is None:
        return Claim("S3", text, "", Outcome.UNKNOWN)
    (arm,) = learned
    reported = f"{arm.num_fossils_positive} of {arm.num_fossils_measured}, {share_pct:.1f} %"
    return Claim(
        "S3", text, reported, Outcome.MET if share_pct >= MIN_USEFUL_PCT else Outcome.NOT_MET
    )


def _transferred(report: ComparisonReport | None) -> Claim:
    text = (
        "zero-shot on `fashion_growth`, a policy trained on `digits_growth` keeps at least "
        f"{MIN_SHARE:.0%} of the gain over `{NOTHING}`".replace("%", " %")
    )
    share = None if report is None else share_kept(report)
    if report is None or share is None:
        return Claim("S4", text, "", Outcome.UNKNOWN)
    reference = report.labels()[share.reference]
    reported = (
        f"{100 * share.value:.0f} %: {share.gain_pp:.1f} pp over `{NOTHING}`, "
        f"`{reference}` {share.reference_gain_pp:.1f} pp; {len(report.seeds)} seeds"
    )
    return Claim("S4", text, reported, Outcome.MET if share.value >= MIN_SHARE else Outcome.NOT_MET)


def _like_static(report: ComparisonReport | None) -> Claim:
    text = (
        f"against `{STATIC}`, equal steps: final accuracy at most {MAX_BEHIND_PP} points below, "
        "with fewer training FLOP"
    )
    learned = learned_arms(report)[:1] if report else []
    static = [arm for arm in report.arms if arm.arm == STATIC] if report else []
    found = difference(report, learned[0].arm, STATIC) if report and learned else None
    if found is None or not static:
        return Claim("S5", text, "", Outcome.UNKNOWN)
    grown, scratch = learned[0], static[0]
    reported = (
        f"{estimate_text(found.final_pp)} pp; {grown.train_gflops:.2f} against "
        f"{scratch.train_gflops:.2f} GFLOP, {grown.num_params_added:.0f} against "
        f"{scratch.num_params_added:.0f} parameters, {figure_text(grown.wall_s)} against "
        f"{figure_text(scratch.wall_s)} s"
    )
    is_near = found.final_pp.value >= -MAX_BEHIND_PP
    is_cheaper = grown.train_gflops < scratch.train_gflops
    return Claim("S5", text, reported, Outcome.MET if is_near and is_cheaper else Outcome.NOT_MET)
