"""Which ablations are evaluated."""

import itertools

import pytest
from tests.builders.messages import make_report
from tests.simic.attribution.games import blending, fossil, slots

from esper.leyline.alpha import AlphaState
from esper.leyline.attribution import Ablation
from esper.leyline.stages import Stage
from esper.simic.attribution.configurations import AblationStrategy, plan_ablations


@pytest.mark.parametrize("num_seeds", range(5))
def test_up_to_four_seeds_every_combination_is_evaluated_once(num_seeds: int) -> None:
    players = slots(num_seeds)
    plan = plan_ablations([blending(slot_id) for slot_id in players])
    subsets = {
        frozenset(chosen)
        for size in range(num_seeds + 1)
        for chosen in itertools.combinations(players, size)
    }
    assert plan.strategy is AblationStrategy.FULL_FACTORIAL
    assert {ablation.off for ablation in plan.ablations} == subsets
    assert len(plan.ablations) == 2**num_seeds


@pytest.mark.parametrize("num_seeds", [5, 7])
def test_beyond_four_each_is_left_out_each_is_alone_and_all_are_off(num_seeds: int) -> None:
    players = frozenset(slots(num_seeds))
    plan = plan_ablations([blending(slot_id) for slot_id in slots(num_seeds)])
    expected = {frozenset(), players}
    expected |= {frozenset({slot_id}) for slot_id in players}
    expected |= {players - {slot_id} for slot_id in players}
    assert plan.strategy is AblationStrategy.LEAVE_ONE_OUT
    assert {ablation.off for ablation in plan.ablations} == expected
    assert len(plan.ablations) == 2 * num_seeds + 2


def test_the_first_ablation_is_the_network_as_it_is() -> None:
    for num_seeds in (0, 1, 3, 6):
        plan = plan_ablations([blending(slot_id) for slot_id in slots(num_seeds)])
        assert plan.ablations[0] == Ablation()
        assert plan.ablations[0].off == frozenset()


@pytest.mark.parametrize(
    "report",
    [
        make_report("r0c1", Stage.GERMINATED),
        make_report("r0c1", Stage.TRAINING),
        blending("r0c1", alpha=0.0),
        make_report("r0c1", Stage.EMBARGOED, alpha=AlphaState(alpha=1.0)),
    ],
)
def test_a_seed_that_does_not_reach_the_output_is_not_weighed(report) -> None:
    assert plan_ablations([blending("r0c0"), report]).active == ("r0c0",)


def test_fossils_are_part_of_the_network_unless_they_are_asked_for() -> None:
    plan = plan_ablations([fossil("r0c0"), blending("r0c1")])
    assert not any("r0c0" in ablation.off for ablation in plan.ablations)


def test_the_last_step_leaves_every_fossil_out_once() -> None:
    reports = [fossil("r0c0"), blending("r0c1"), fossil("r0c2")]
    plan = plan_ablations(reports, fossils_to_measure={"r0c0", "r0c1", "r0c2"})
    assert plan.fossils == ("r0c0", "r0c2")
    assert [sorted(ablation.off) for ablation in plan.ablations] == [
        [],
        ["r0c1"],
        ["r0c0"],
        ["r0c2"],
    ]


def test_seeds_keep_the_order_of_the_reports() -> None:
    reports = [blending("r0c2"), blending("r0c10")]
    plan = plan_ablations(reports)
    assert plan.active == ("r0c2", "r0c10")
    assert plan.seeds_on(Ablation(frozenset({"r0c2"}))) == ("r0c10",)
