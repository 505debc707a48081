"""Attribution evidence: looking up what was measured of a seed."""

import msgspec

from esper.leyline.attribution import Ablation, AttributionEvidence, SeedEvidence


def measured(slot_id: str, contribution_pp: float) -> SeedEvidence:
    return SeedEvidence(
        slot_id=slot_id,
        contribution_pp=contribution_pp,
        attributed_pp=None,
        interaction_sum_pp=None,
        boost_received_pp=None,
    )


EVIDENCE = AttributionEvidence(
    accuracy_pct=60.0,
    committed_accuracy_pct=50.0,
    seeds=(measured("r0c0", 1.0), measured("r0c2", 0.0)),
    interactions=(),
    shapley=(),
    is_exact=True,
)


def test_measurements_are_found_by_slot_and_none_means_not_measured() -> None:
    found = [EVIDENCE.of(slot_id) for slot_id in ("r0c0", "r0c1", "r0c2")]
    assert found == [EVIDENCE.seeds[0], None, EVIDENCE.seeds[1]]
    assert found[2] is not None
    assert found[2].contribution_pp == 0.0


def test_evidence_survives_the_wire() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(EVIDENCE), type=AttributionEvidence) == (
        EVIDENCE
    )


def test_ablations_of_the_same_seeds_are_equal_in_any_order() -> None:
    assert Ablation(frozenset({"a", "b"})) == Ablation(frozenset(("b", "a")))
    assert len({Ablation(frozenset({"a"})), Ablation(frozenset({"a"})), Ablation()}) == 2
