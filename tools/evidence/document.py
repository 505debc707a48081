"""Writes the figures of docs/evidence.md between its markers, from the stored reports only."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from esper.karn.report.comparison_plots import titled_curves
from esper.karn.report.comparison_tables import (
    FRONT_MARK,
    Table,
    contexts_table,
    costs_table,
    differences_table,
    estimate_text,
    oracle_table,
    scores_table,
    training_table,
)
from esper.leyline.actions import Op
from esper.leyline.comparison import ComparisonReport
from esper.leyline.inspection import InspectionReport
from esper.leyline.learning import LearningCurve
from tools.calibration import Calibration
from tools.evidence.claims import Claim, Outcome, difference, judge, learned_arms
from tools.evidence.closed_loop_claims import judge_closed_loop
from tools.evidence.pictures import picture_name, pictures_of
from tools.evidence.reports import (
    COMPARED,
    FASHION,
    KNOWN,
    ROOT,
    Kept,
    KeptInspections,
    read_calibration,
    read_inspections,
    read_kept,
)
from tools.markdown import table, with_block

__all__ = ["DOCUMENT", "document_of", "write_document"]

DOCUMENT: Final = ROOT / "docs" / "evidence.md"
MISSING: Final = "Not measured yet; run `make evidence`."
EDGE_ROUNDS: Final = 3
"""Rounds averaged at the start and end of a curve, because a single round is noisy."""


def write_document(document: Path = DOCUMENT, kept: Mapping[str, Kept] | None = None) -> Path:
    """Write the stored figures between the document's markers; leave the other text unchanged."""
    text = document.read_text(encoding="utf-8")
    calibration = read_calibration()
    shown = document_of(
        text,
        read_kept() if kept is None else kept,
        read_inspections(),
        None if calibration is None else calibration.report,
    )
    document.write_text(shown, encoding="utf-8")
    return document


def document_of(
    text: str,
    kept: Mapping[str, Kept],
    inspections: KeptInspections | None = None,
    calibration: Calibration | None = None,
) -> str:
    """Return the document with the figures of these reports."""
    known, unknown = kept.get(KNOWN), kept.get(FASHION)
    blocks = {
        "claims": _claims(known, unknown),
        "digits": MISSING if known is None else _comparison(KNOWN, known),
        "training": MISSING if known is None else _training(KNOWN, known.report),
        "fashion": MISSING if unknown is None else _fashion(unknown),
        "closed-loop": _closed_loop(kept, inspections, calibration),
    }
    for name, block in blocks.items():
        text = with_block(text, f"{block}\n", name=name)
    return text


def _claims(known: Kept | None, unknown: Kept | None) -> str:
    return _claims_table(judge(known and known.report, unknown and unknown.report))


def _claims_table(claims: Sequence[Claim]) -> str:
    rows = [
        (
            claim.name,
            claim.text,
            claim.figures or "-",
            f"**{claim.outcome}**" if claim.outcome is Outcome.NOT_MET else str(claim.outcome),
        )
        for claim in claims
    ]
    return table(("", "claim", "measured", "outcome"), rows)


def _comparison(preset: str, kept: Kept) -> str:
    report = kept.report
    return "\n\n".join(
        (
            f"```\n{command_of(report)}\n```",
            _measured(kept),
            _markdown(scores_table(report)),
            f"\\{FRONT_MARK} on the Pareto front of accuracy against parameters.",
            _markdown(costs_table(report)),
            _differences(report),
            *_pictures(preset, report, ("curves", "front")),
        )
    )


def _measured(kept: Kept) -> str:
    """Return what a report was measured on."""
    report = kept.report
    failed = sum(arm.num_failed for arm in report.arms)
    return (
        f"{len(report.seeds)} held-out seeds of {report.num_envs} envs and {report.num_steps} "
        f"steps, {_policies(report)}{'greedy' if report.is_greedy else 'sampled'} actions; "
        f"failed envs: {failed}. {kept.date}, commit `{kept.commit}`, {kept.machine}."
    )


def _closed_loop(
    kept: Mapping[str, Kept],
    inspections: KeptInspections | None,
    calibration: Calibration | None,
) -> str:
    """Return the claims of the second experiment, and the tables of its comparisons."""
    reports = {name: kept[name].report for name in COMPARED if name in kept}
    inspected = () if inspections is None else inspections.reports
    claims = _claims_table(judge_closed_loop(reports, inspected, calibration))
    tables = [
        f"### {name}\n\n{_closed_loop_tables(kept[name])}" for name in COMPARED if name in kept
    ]
    if inspected:
        tables.append(f"### Sabotage and sensitivity\n\n{_inspections_table(inspected)}")
    return "\n\n".join((claims, *(tables or [MISSING])))


def _closed_loop_tables(kept: Kept) -> str:
    report = kept.report
    found = (scores_table(report), costs_table(report), oracle_table(report))
    shown = [_markdown(item) for item in (*found, contexts_table(report)) if item.rows]
    return "\n\n".join(
        (f"```\n{command_of(report)}\n```", _measured(kept), *shown, _differences(report))
    )


def _inspections_table(inspected: Sequence[InspectionReport]) -> str:
    """Return what each policy pruned, and how its wish to prune follows the evidence."""
    rows = []
    for report in inspected:
        found = report.sabotage
        shifts = [shift for shift in report.shifts if shift.op == Op.PRUNE.name]
        as_seen = f"{shifts[0].as_seen:.3f}" if shifts else "-"
        flipped = ", ".join(f"{shift.evidence} {shift.flipped:.3f}" for shift in shifts) or "-"
        rows.append(
            (
                f"`{report.policy}`",
                f"{found.pruned_sabotaged:.2f} of {found.num_sabotaged}",
                f"{found.pruned_intact:.2f} of {found.num_intact}",
                "-" if found.difference is None else estimate_text(found.difference, 2),
                as_seen,
                flipped,
            )
        )
    head = ("policy", "pruned: scrambled", "intact", "difference", "P(prune)", "evidence flipped")
    return table(head, rows)


def _fashion(kept: Kept) -> str:
    reported = _comparison(FASHION, kept)
    # There are training runs only where policies were trained on these data too.
    return (
        reported
        if kept.report.learning is None
        else f"{reported}\n\n{_training(FASHION, kept.report)}"
    )


def _policies(report: ComparisonReport) -> str:
    learned = learned_arms(report)
    return f"trained policies: {learned[0].num_policies}, " if learned else ""


def command_of(report: ComparisonReport) -> str:
    """Return the command that reproduces a report; policies are given by file name only."""
    seeds = report.seeds
    is_range = len(seeds) > 2 and seeds == tuple(range(seeds[0], seeds[-1] + 1))
    texts = [f"{seeds[0]}-{seeds[-1]}"] if is_range else list(map(str, seeds))
    where = f"--task {report.task}" if report.preset is None else f"--preset {report.preset}"
    greedy = " --greedy" if report.is_greedy else ""
    data = " --data real" if report.preset == FASHION else ""
    return (
        f"esper-train compare {where} --envs {report.num_envs} --episode-length "
        f"{report.num_steps} --seeds {' '.join(texts)}{greedy}{data} \\\n"
        f"  --arms {' '.join(arm.arm for arm in report.arms)}"
    )


def _differences(report: ComparisonReport) -> str:
    """Render the differences of the learned policy to the others; all pairs if there is none."""
    learned = learned_arms(report)[:1]
    found = [
        contrast
        for arm in report.arms
        if learned and (contrast := difference(report, learned[0].arm, arm.arm)) is not None
    ]
    return _markdown(differences_table(report, found or None))


def _training(preset: str, report: ComparisonReport) -> str:
    learning = report.learning
    if learning is None:
        return "The comparison was made without `--training-runs`."
    named = [
        *titled_curves(learning),
        *((curve, f"entropy: {curve.name}") for curve in learning.entropies),
    ]
    curves = [
        (title, _edge(curve, slice(None, EDGE_ROUNDS)), _edge(curve, slice(-EDGE_ROUNDS, None)))
        for curve, title in named
    ]
    return "\n\n".join(
        (
            _markdown(training_table(learning)),
            f"Means over the first and the last {EDGE_ROUNDS} rounds of each run, with the lowest "
            "and the highest of several runs; entropies are shares of the maximum, over the steps "
            "at which the head had a choice.",
            table(("figure", "first rounds", "last rounds"), curves),
            *_pictures(preset, report, ("growth", "update", "entropy")),
        )
    )


def _edge(curve: LearningCurve, rounds: slice) -> str:
    seen = [[value for value in run[rounds] if value is not None] for run in curve.runs]
    means = [fmean(values) for values in seen if values]
    if not means:
        return "-"
    spread = f" ({min(means):.3g} to {max(means):.3g})" if len(means) > 1 else ""
    return f"{fmean(means):.3g}{spread}"


def _pictures(preset: str, report: ComparisonReport, elements: Sequence[str]) -> list[str]:
    captions = pictures_of(report)
    return [
        f"![{captions[element]}](images/{picture_name(preset, element)})"
        for element in elements
        if element in captions
    ]


def _markdown(shown: Table) -> str:
    return table(shown.head, shown.rows)
