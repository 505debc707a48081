"""The life of a seed as data."""

from esper.leyline.stages import (
    ACTIVE_STAGES,
    ADVANCEABLE_STAGES,
    COOLDOWN_STAGES,
    GATE_FOR_TARGET,
    NUM_STAGES,
    PRUNABLE_STAGES,
    RETARGETABLE_STAGES,
    STAGE_INDEX,
    TRANSITIONS,
    Gate,
    LifecycleRules,
    Stage,
    is_legal_transition,
    next_stage,
)


def test_stored_numbers_of_the_stages_never_change() -> None:
    stored = {stage.name: int(stage) for stage in Stage}
    assert stored == {
        "UNKNOWN": 0,
        "DORMANT": 1,
        "GERMINATED": 2,
        "TRAINING": 3,
        "BLENDING": 4,
        "HOLDING": 6,
        "FOSSILIZED": 7,
        "PRUNED": 8,
        "EMBARGOED": 9,
        "RESETTING": 10,
    }


def test_one_hot_columns_are_dense() -> None:
    assert sorted(STAGE_INDEX.values()) == list(range(NUM_STAGES))


def reachable_from(stage: Stage) -> set[Stage]:
    found: set[Stage] = set()
    frontier = [stage]
    while frontier:
        for target in TRANSITIONS[frontier.pop()]:
            if target not in found:
                found.add(target)
                frontier.append(target)
    return found


def test_every_stage_but_the_fossil_leads_back_to_an_empty_slot() -> None:
    assert TRANSITIONS[Stage.FOSSILIZED] == ()
    for stage in set(Stage) - {Stage.FOSSILIZED}:
        assert Stage.DORMANT in reachable_from(stage), stage.name


def test_advancing_without_a_target_walks_from_seed_to_fossil() -> None:
    path = [Stage.GERMINATED]
    while (stage := next_stage(path[-1])) is not None:
        path.append(stage)

    assert path == [
        Stage.GERMINATED,
        Stage.TRAINING,
        Stage.BLENDING,
        Stage.HOLDING,
        Stage.FOSSILIZED,
    ]


def test_failure_is_never_the_default_way_on() -> None:
    for stage in ACTIVE_STAGES | {Stage.GERMINATED}:
        assert next_stage(stage) not in COOLDOWN_STAGES


def test_sets_agree_with_the_transitions() -> None:
    assert {stage for stage in Stage if is_legal_transition(stage, Stage.PRUNED)} == PRUNABLE_STAGES
    assert ADVANCEABLE_STAGES | {Stage.HOLDING} == PRUNABLE_STAGES
    assert {stage for stage in ADVANCEABLE_STAGES if next_stage(stage) in GATE_FOR_TARGET} == (
        ADVANCEABLE_STAGES
    )
    assert RETARGETABLE_STAGES < PRUNABLE_STAGES
    assert not ACTIVE_STAGES & COOLDOWN_STAGES


def test_advance_is_no_decision_once_every_gate_forwards_itself() -> None:
    assert not LifecycleRules(auto_forward=(Gate.G1, Gate.G3)).is_advance_disabled
    assert LifecycleRules(auto_forward=(Gate.G3, Gate.G2, Gate.G1)).is_advance_disabled
