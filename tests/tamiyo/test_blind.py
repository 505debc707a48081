"""A blind policy is shown rows of the round's observations, and never its own."""

import torch
from tests.tamiyo.states import SLOTS

from esper.leyline.signals import TrainingSignals
from esper.tamiyo.blind import SwappedExtractor
from esper.tamiyo.features import ActionFeedback, FeatureExtractor

NUM_ENVS = 5
NUM_STEPS = 40


def signals(accuracy_pct: float) -> TrainingSignals:
    return TrainingSignals(
        step=3,
        train_loss=1.0,
        train_accuracy_pct=50.0,
        val_loss=1.0,
        val_accuracy_pct=accuracy_pct,
        loss_delta=None,
        accuracy_delta_pp=None,
        plateau_steps=0,
        stable_steps=0,
        is_stabilized=False,
        best_val_accuracy_pct=accuracy_pct,
        loss_history=(),
        accuracy_history=(),
    )


def shown(extractor: FeatureExtractor, num_envs: int = NUM_ENVS) -> torch.Tensor:
    states = [signals(10.0 * env_id) for env_id in range(num_envs)]
    feedback = [ActionFeedback()] * num_envs
    return extractor.observe(states, [()] * num_envs, feedback).observations


def swapper(seed: int = 3) -> SwappedExtractor:
    return SwappedExtractor(SLOTS, NUM_STEPS, seed=seed)


def sources(extractor: SwappedExtractor) -> list[int]:
    """Return whose observation each env is shown."""
    own, seen = shown(FeatureExtractor(SLOTS, NUM_STEPS)), shown(extractor)
    return [next(i for i, row in enumerate(own) if torch.equal(row, other)) for other in seen]


def test_no_env_sees_itself_and_every_row_is_shown_once() -> None:
    extractor = swapper()
    orders = [sources(extractor) for _ in range(40)]

    for order in orders:
        assert sorted(order) == list(range(NUM_ENVS))
        assert all(source != env_id for env_id, source in enumerate(order))
    # Drawn anew in each step: in time every other env is seen.
    assert {order[0] for order in orders} == {1, 2, 3, 4}


def test_round_swaps_alike_whatever_came_before_it() -> None:
    resumed, unbroken = swapper(), swapper()
    for _ in range(7):
        shown(unbroken)

    for extractor in (resumed, unbroken):
        extractor.begin_round(4)

    assert sources(resumed) == sources(unbroken)


def test_single_row_has_nothing_to_be_swapped_with() -> None:
    assert torch.equal(shown(swapper(), 1), shown(FeatureExtractor(SLOTS, NUM_STEPS), 1))
