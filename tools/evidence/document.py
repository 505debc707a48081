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
    oracle_table,
    scores_table,
    training_table,
)
from esper.leyline.comparison import ComparisonReport
from esper.leyline.learning import LearningCurve
from tools.evidence.claims import Outcome, difference, judge, learned_arms
from tools.evidence.closed_loop_claims import judge_closed_loop
from tools.evidence.pictures import picture_name, pictures_of
from tools.evidence.reports import (
    COMPARED,
    FASHION,
    KNOWN,
    ROOT,
    Kept,
    KeptInspections,
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
    shown = document_of(text, read_kept() if kept is None else kept, read_inspections())
    document.write_text(shown, encoding="utf-8")
    return document


def document_of(
    text: str, kept: Mapping[str, Kept], inspections: KeptInspections | None = None
) -> str:
    """Return the document with the figures of these reports."""
    known, unknown = kept.get(KNOWN), kept.get(FASHION)
    blocks = {
        "claims": _claims(known, unknown),
        "digits": MISSING if known is None else _comparison(KNOWN, known),
        "training": MISSING if known is None else _training(KNOWN, known.report),
        "fashion": MISSING if unknown is None else _fashion(unknown),
        "closed-loop": _closed_loop(kept, inspections),
    }
    for name, block in blocks.items():
        text = with_block(text, f"{block}\n", name=name)
    return text


def _claims(known: Kept | None, unknown: Kept | None) -> str:
    claims = judge(known and known.report, unknown and unknown.report)
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
    failed = sum(arm.num_failed for arm in report.arms)
    measured = (
        f"{len(report.seeds)} held-out seeds of {report.num_envs} envs and {report.num_steps} "
        f"steps, {_policies(report)}{'greedy' if report.is_greedy else 'sampled'} actions; "
        f"failed envs: {failed}. {kept.date}, commit `{kept.commit}`, {kept.machine}."
    )
    return "\n\n".join(
        (
            f"```\n{command_of(report)}\n```",
            measured,
            _markdown(scores_table(report)),
            f"\\{FRONT_MARK} on the Pareto front of accuracy against parameters.",
            _markdown(costs_table(report)),
            _differences(report),
            *_pictures(preset, report, ("curves", "front")),
        )
    )


def _closed_loop(kept: Mapping[str, Kept], inspections: KeptInspections | None) -> str:
    """Return the claims of the second experiment, and the tables of its comparisons."""
    reports = {name: kept[name].report for name in COMPARED if name in kept}
    rows = [
        (claim.name, claim.text, claim.figures or "-", claim.outcome)
        for claim in judge_closed_loop(reports, () if inspections is None else inspections.reports)
    ]
    tables = [
        f"### {name}\n\n{_closed_loop_tables(reports[name])}"
        for name in COMPARED
        if name in reports
    ]
    return "\n\n".join((table(("", "claim", "measured", "outcome"), rows), *(tables or [MISSING])))


def _closed_loop_tables(report: ComparisonReport) -> str:
    found = (scores_table(report), oracle_table(report), contexts_table(report))
    shown = [_markdown(item) for item in found if item.rows]
    return "\n\n".join((f"```\n{command_of(report)}\n```", *shown, _differences(report)))


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
