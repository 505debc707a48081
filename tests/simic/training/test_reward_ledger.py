"""The ledger: what one step leaves for the next, and what an episode comes to."""

import math

import msgspec
import pytest
from tests.builders.messages import attribution, env_evidence, make_report, make_signals
from tests.simic.rewards.builders import scheme
from tests.simic.training.builders import env_outcome, loss_scheme, rolled_back

from esper.leyline.actions import ActionOutcome, ActionSpec, Op
from esper.leyline.attribution import PairInteraction
from esper.leyline.effects import EnvEffect, effect_of
from esper.leyline.payloads import SeedFossilized, SeedGerminated, SeedPruned
from esper.leyline.reports import EpisodeStatus
from esper.leyline.rewards import EpisodeEnd, RewardResult
from esper.leyline.stages import Stage
from esper.simic.training.reward_ledger import EpisodeLedger, rollback_penalty

NUM_STEPS = 50


def ledger(**changes) -> EpisodeLedger:
    facts = {
        "env_id": 1,
        "round_index": 2,
        "episode_id": 9,
        "num_steps": NUM_STEPS,
        "scheme": loss_scheme(),
    }
    return EpisodeLedger(**{**facts, **changes})


def pay(book: EpisodeLedger, step: int, *, delta: float = 0.0, **outcome):
    evidence = env_evidence(1, step, delta=delta)
    return book.reward(evidence, env_outcome(evidence, **outcome))


def germinated(slot_id: str = "r0c0") -> EnvEffect:
    payload = SeedGerminated(
        slot_id=slot_id,
        seed_id="a",
        blueprint="norm",
        num_params=10,
        style="SIGMOID_ADD",
        tempo_steps=5,
        alpha_target=1.0,
    )
    return effect_of(payload)


def pruned(slot_id: str = "r0c0") -> EnvEffect:
    payload = SeedPruned(
        slot_id=slot_id,
        seed_id="a",
        blueprint="norm",
        reason="policy",
        initiator="policy",
        age_steps=7,
        contribution_pp=None,
        improvement_pp=None,
        blending_delta_pp=None,
    )
    return effect_of(payload)


def fossilized(slot_id: str = "r0c0") -> EnvEffect:
    payload = SeedFossilized(
        slot_id=slot_id,
        seed_id="a",
        blueprint="norm",
        num_params=10,
        age_steps=20,
        contribution_pp=2.0,
        improvement_pp=3.0,
        blending_delta_pp=1.0,
    )
    return effect_of(payload)


def grow_and_keep(book: EpisodeLedger) -> list[RewardResult]:
    """Reward a whole episode in which one seed goes from germination to a fossil."""
    stages = (Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING)
    path = [stages[min(step, 3)] for step in range(book.num_steps - 1)] + [Stage.FOSSILIZED]
    return [
        pay(book, step, delta=0.2, reports=(make_report(stage=stage, steps_in_stage=0),))
        for step, stage in enumerate(path)
    ]


@pytest.mark.parametrize("episode_end", EpisodeEnd)
def test_task_return_is_the_total_without_shaping(episode_end: EpisodeEnd) -> None:
    book = ledger()
    book.scheme = msgspec.structs.replace(book.scheme, episode_end=episode_end)
    results = grow_and_keep(book)
    record = book.record(outcome=None, success_accuracy_pct=0.0)

    shaping = [result.components.pbrs for result in results]
    discounted = sum(book.scheme.gamma**step * bonus for step, bonus in enumerate(shaping))
    last = results[-1].memory.potential

    assert record.total_reward - record.task_return == pytest.approx(sum(shaping))
    assert record.task_return == pytest.approx(sum(r.total - r.components.pbrs for r in results))
    assert (last > 0) is (episode_end is EpisodeEnd.BOOTSTRAP)
    expected = 0.1 * book.scheme.gamma**book.num_steps * last
    assert discounted == pytest.approx(expected, abs=1e-9)


def test_task_return_has_the_penalty_of_a_rollback_and_nothing_it_forfeits() -> None:
    book = ledger()
    for step in range(2):
        pay(book, step, delta=1.0, reports=(make_report(stage=Stage.TRAINING),))
    evidence = env_evidence(1, 2)
    book.roll_back(evidence, rolled_back(evidence), -10.0)
    later = pay(book, 3, delta=0.5)
    record = book.record(outcome=None, success_accuracy_pct=0.0)
    assert record.task_return == pytest.approx(-10.0 + later.total - later.components.pbrs)


def test_a_governor_prune_costs_the_following_step_exactly_once() -> None:
    book = ledger()
    evidence = env_evidence(1, 0)
    book.roll_back(evidence, rolled_back(evidence, num_auto_prunes=2), -10.0)

    penalties = [pay(book, step).components.auto_prune_penalty for step in (1, 2)]

    assert penalties == pytest.approx([2 * book.scheme.config.auto_prune_penalty, 0.0])


def fossilize(book: EpisodeLedger, step: int, slot_id: str, contribution_pp: float) -> None:
    reports = (make_report(slot_id, Stage.HOLDING),)
    evidence = env_evidence(
        1, step, reports=reports, attribution=attribution(**{slot_id: contribution_pp})
    )
    action = ActionSpec(op=Op.FOSSILIZE, slot_id=slot_id)
    book.reward(evidence, env_outcome(evidence, action, action_effects=(fossilized(slot_id),)))


def interact(book: EpisodeLedger, step: int, interaction_pp: float) -> None:
    pair = PairInteraction(first_slot="r0c0", second_slot="r0c1", interaction_pp=interaction_pp)
    weighed = attribution(r0c0=1.0, r0c1=1.0)
    evidence = env_evidence(
        1,
        step,
        attribution=type(weighed)(
            **{name: getattr(weighed, name) for name in weighed.__struct_fields__}
            | {"interactions": (pair,)}
        ),
    )
    book.reward(evidence, env_outcome(evidence))


def test_a_fossil_pays_its_scaffolds_back_in_the_following_step_and_only_there() -> None:
    book = ledger()
    interact(book, 3, 2.0)
    fossilize(book, 5, "r0c0", 1.5)

    credits = [pay(book, step).components.hindsight_credit for step in (6, 7)]

    expected = 0.1 * math.tanh(0.1 * 2.0 * 1.5) * book.scheme.gamma**2
    assert credits == pytest.approx([expected, 0.0])


def test_a_credit_that_was_earned_survives_a_rollback() -> None:
    book = ledger()
    interact(book, 3, 2.0)
    fossilize(book, 5, "r0c0", 1.5)
    evidence = env_evidence(1, 6)
    book.roll_back(evidence, rolled_back(evidence), -10.0)

    assert pay(book, 7).components.hindsight_credit > 0


def test_what_a_seed_was_helped_with_is_not_its_successors() -> None:
    book = ledger()
    interact(book, 3, 2.0)
    pay(book, 4, tick_effects=(pruned("r0c0"),))
    fossilize(book, 12, "r0c0", 1.5)

    assert pay(book, 13).components.hindsight_credit == 0.0
    fossilize(book, 14, "r0c1", 1.5)
    assert pay(book, 15).components.hindsight_credit > 0.0


def test_a_refused_fossilization_settles_nothing() -> None:
    book = ledger()
    interact(book, 3, 2.0)
    evidence = env_evidence(1, 4, attribution=attribution(r0c0=1.5))
    action = ActionSpec(op=Op.FOSSILIZE, slot_id="r0c0")
    refused = ActionOutcome(action=action, effective_op=Op.FOSSILIZE, succeeded=False)
    book.reward(evidence, env_outcome(evidence, outcome=refused))

    assert pay(book, 5).components.hindsight_credit == 0.0


def test_recovering_by_a_rollback_is_no_improvement() -> None:
    book = ledger()
    pay(book, 0)
    evidence = env_evidence(1, 1)
    book.roll_back(evidence, rolled_back(evidence), -10.0)

    rewards = [pay(book, step, delta=delta).total for step, delta in ((2, math.inf), (3, 0.2))]

    assert rewards == pytest.approx([0.0, 1.0])


def test_seeds_are_counted_from_actions_and_ticks_and_rollbacks() -> None:
    book = ledger()
    pay(book, 0, action_effects=(germinated(),))
    pay(book, 1, tick_effects=(pruned(),))
    pay(book, 2, action_effects=(fossilized(),))
    evidence = env_evidence(1, 3)
    book.roll_back(evidence, rolled_back(evidence, action_effects=(pruned(), pruned())), -10.0)

    episode = book.record(outcome=rolled_back(evidence), success_accuracy_pct=80.0)

    assert (episode.num_germinated, episode.num_pruned, episode.num_fossilized) == (1, 3, 1)


def test_stability_follows_from_the_spread_of_the_last_rewards() -> None:
    book = ledger()
    pay(book, 0, delta=4.0)
    for step in range(1, 21):
        result = pay(book, step, delta=float(step % 2))
    assert result.total == 0.0
    evidence = env_evidence(1, 20)

    episode = book.record(outcome=env_outcome(evidence), success_accuracy_pct=80.0)

    assert episode.stability == pytest.approx(1 / (1 + 2.5**2))


def test_only_fossils_worth_keeping_at_the_end_are_contributing() -> None:
    book = ledger()
    threshold = book.scheme.lifecycle.min_fossilize_contribution_pp
    evidence = env_evidence(1, 0)
    book.reward(evidence, env_outcome(evidence))
    reports = (
        make_report("r0c0", Stage.FOSSILIZED, contribution_pp=threshold),
        make_report("r0c1", Stage.FOSSILIZED, contribution_pp=threshold - 0.1),
        make_report("r0c2", Stage.FOSSILIZED, contribution_pp=None),
    )

    episode = book.record(outcome=env_outcome(evidence, reports=reports), success_accuracy_pct=80.0)

    assert episode.num_contributing_fossils == 1


def test_an_episode_reports_its_last_evidence() -> None:
    book = ledger()
    signals = make_signals(step=7, val_loss=0.5, val_accuracy_pct=91.0, best_val_accuracy_pct=93.0)
    evidence = env_evidence(1, 7, signals=signals)
    book.reward(evidence, env_outcome(evidence))

    whole = book.record(outcome=env_outcome(evidence), success_accuracy_pct=90.0)
    broken = book.record(outcome=None, success_accuracy_pct=90.0)

    assert (whole.round, whole.env_id, whole.episode_id) == (2, 1, 9)
    assert (whole.num_steps, whole.final_accuracy_pct, whole.final_loss) == (8, 91.0, 0.5)
    assert whole.best_accuracy_pct == 93.0
    assert whole.status is EpisodeStatus.SUCCESS
    assert broken.status is EpisodeStatus.FAILED


def test_accuracy_is_measured_from_where_the_episode_began() -> None:
    book = ledger(scheme=scheme(mode="basic"), num_steps=3)
    for step, accuracy in enumerate((40.0, 45.0, 52.0)):
        signals = make_signals(step=step, val_accuracy_pct=accuracy)
        evidence = env_evidence(1, step, signals=signals)
        result = book.reward(evidence, env_outcome(evidence))

    weight = book.scheme.config.basic_acc_delta_weight
    assert result.components.terminal == pytest.approx(weight * 12.0 / 100.0)


@pytest.mark.parametrize(("death_penalty", "expected"), [(3.0, -3.0), (10.0, -10.0), (40.0, -10.0)])
def test_a_penalty_is_clamped_like_a_reward(death_penalty: float, expected: float) -> None:
    assert rollback_penalty(death_penalty) == expected
