"""Claims are met by figures, and by enough of them."""

import pytest
from tests.karn.comparisons import FIGURE, arm, around, comparison, contrast
from tools.evidence.claims import Claim, Outcome, difference, judge, share_kept

from esper.leyline.comparison import ComparisonReport, Estimate

MET, NOT_MET, UNKNOWN = Outcome.MET, Outcome.NOT_MET, Outcome.UNKNOWN
OTHERS = ("wait", "random", "heuristic", "periodic", "static-final")


def report(
    gains: dict[str, Estimate] | None = None,
    *,
    task_return: Estimate | None = FIGURE,
    num_seeds: int = 20,
    **learned: object,
) -> ComparisonReport:
    """Return a comparison of a policy that gains this much over each of the others."""
    gains = gains or {}
    policy = arm("ppo:a", **{"num_policies": 3, **learned})
    return comparison(
        policy,
        *(arm(name, train_gflops=2.0) for name in OTHERS),
        seeds=tuple(range(num_seeds)),
        contrasts=tuple(
            contrast("ppo:a", name, gains.get(name, around(10.0)), task_return) for name in OTHERS
        ),
    )


def judged(name: str, known: ComparisonReport | None) -> Outcome:
    return next(claim.outcome for claim in judge(known, None) if claim.name == name)


def test_nothing_measured_is_nothing_claimed() -> None:
    claims = judge(None, None)

    assert [claim.name for claim in claims] == ["S1", "S2", "S3", "S4", "S5"]
    assert {claim.outcome for claim in claims} == {UNKNOWN}


@pytest.mark.parametrize(
    ("known", "outcome"),
    [
        (report(), MET),
        (report({"random": around(0.5)}), NOT_MET),
        (report({"heuristic": around(-5.0)}), MET),
        (report(task_return=around(0.5)), NOT_MET),
        (report(task_return=None), UNKNOWN),
        (report(num_seeds=19), NOT_MET),
        (report(num_policies=2), NOT_MET),
        (comparison(arm("ppo:a"), arm("heuristic")), UNKNOWN),
    ],
)
def test_policy_beats_others_by_whole_intervals_over_enough_runs(
    known: ComparisonReport, outcome: Outcome
) -> None:
    assert judged("S1", known) is outcome


def test_hand_written_rules_are_a_claim_of_their_own() -> None:
    assert judged("S2", report({"heuristic": around(-5.0)})) is NOT_MET
    assert judged("S2", report({"random": around(-5.0)})) is MET


@pytest.mark.parametrize(
    ("measured", "positive", "outcome"), [(10, 9, MET), (10, 8, NOT_MET), (0, 0, UNKNOWN)]
)
def test_nine_of_ten_fossils_have_to_be_useful(
    measured: int, positive: int, outcome: Outcome
) -> None:
    known = report(num_fossils_measured=measured, num_fossils_positive=positive)
    assert judged("S3", known) is outcome


@pytest.mark.parametrize(
    ("behind_pp", "gflops", "outcome"),
    [(0.4, 1.0, MET), (0.6, 1.0, NOT_MET), (0.4, 3.0, NOT_MET), (-5.0, 1.0, MET)],
)
def test_growth_is_held_against_its_topology_from_scratch(
    behind_pp: float, gflops: float, outcome: Outcome
) -> None:
    known = report({"static-final": around(-behind_pp)}, train_gflops=gflops)
    assert judged("S5", known) is outcome


def transferred(gains: dict[str, float]) -> ComparisonReport:
    """Return a comparison in which arms gain this much over waiting."""
    return comparison(
        *map(arm, gains),
        arm("wait"),
        contrasts=tuple(contrast(name, "wait", around(gain)) for name, gain in gains.items()),
    )


@pytest.mark.parametrize(
    ("gains", "share", "reference"),
    [
        ({"ppo:a": 4.0, "random": 2.0, "heuristic": 8.0}, 0.5, "heuristic"),
        ({"ppo:a": 9.0, "random": 3.0}, 3.0, "random"),
        ({"ppo:a": 4.0, "ppo:native": 5.0, "heuristic": 8.0}, 0.8, "ppo:native"),
        ({"ppo:a": 4.0, "heuristic": 8.0, "static-final": 80.0}, 0.5, "heuristic"),
        ({"ppo:a": -1.0, "heuristic": 2.0}, -0.5, "heuristic"),
    ],
)
def test_share_of_the_gain_is_measured_by_the_best_that_could_be_had(
    gains: dict[str, float], share: float, reference: str
) -> None:
    found = share_kept(transferred(gains))

    assert found is not None
    assert (found.value, found.reference) == (pytest.approx(share), reference)


@pytest.mark.parametrize("gains", [{"ppo:a": 4.0, "random": 0.0}, {"random": 4.0, "periodic": 1.0}])
def test_share_of_no_gain_is_not_a_number(gains: dict[str, float]) -> None:
    assert share_kept(transferred(gains)) is None


@pytest.mark.parametrize(("gain_pp", "outcome"), [(4.0, MET), (3.9, NOT_MET)])
def test_half_of_the_gain_has_to_be_kept(gain_pp: float, outcome: Outcome) -> None:
    claims: list[Claim] = judge(None, transferred({"ppo:a": gain_pp, "heuristic": 8.0}))
    assert next(claim.outcome for claim in claims if claim.name == "S4") is outcome


def test_difference_can_be_read_from_either_side() -> None:
    found = comparison(arm("a"), arm("b"), contrasts=(contrast("a", "b", FIGURE),))

    turned = difference(found, "b", "a")

    assert turned is not None
    assert (turned.first, turned.second) == ("b", "a")
    assert turned.final_pp == Estimate(value=-50.0, low=-65.0, high=-40.0)
    assert turned.task_return == turned.final_pp
    assert turned.probability.value == pytest.approx(0.5)
    assert difference(found, "a", "c") is None
