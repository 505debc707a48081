"""Outliers first, for reasons that can be read."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.karn.story import Story

from esper.karn.view.attention import rank_envs
from esper.karn.view.snapshot import EnvView
from esper.karn.view.view_model import ViewModel


def calm_env(env_id: int, **changes: object) -> EnvView:
    model = ViewModel()
    for event in Story(num_rounds=1, num_envs=1, num_steps=3, has_trouble=False).events():
        model.apply(event)
    env = model.snapshot().envs[0]
    calm = {"accuracy_pct": 50.0, "best_accuracy_pct": 50.0, "steps_since_best": 0, "outcome": None}
    return msgspec.structs.replace(env, env_id=env_id, **(calm | changes))


CALM = calm_env(0)


def test_worst_comes_first_and_says_why() -> None:
    envs = [
        CALM,
        msgspec.structs.replace(CALM, env_id=1, steps_since_best=20),
        msgspec.structs.replace(CALM, env_id=2, failure="ValueError"),
        msgspec.structs.replace(CALM, env_id=3, num_rollbacks=2),
        msgspec.structs.replace(CALM, env_id=4, best_accuracy_pct=55.0),
    ]
    ranked = rank_envs(envs)
    assert [item.env_id for item in ranked] == [2, 3, 4, 1, 0]
    assert [item.reasons for item in ranked] == [
        ("failed",),
        ("2 rollbacks",),
        ("below its best",),
        ("no new best for a while",),
        (),
    ]


@given(st.permutations(range(6)), st.lists(st.floats(45, 54), min_size=6, max_size=6))
def test_envs_without_a_reason_stay_in_order_whatever_their_accuracy(
    order: list[int], accuracies: list[float]
) -> None:
    envs = [
        msgspec.structs.replace(
            CALM,
            env_id=env_id,
            accuracy_pct=accuracies[env_id],
            best_accuracy_pct=accuracies[env_id],
        )
        for env_id in order
    ]
    assert [item.env_id for item in rank_envs(envs)] == sorted(order)


def test_env_far_behind_the_others_is_an_outlier() -> None:
    others = [msgspec.structs.replace(CALM, env_id=index) for index in range(1, 5)]
    behind = msgspec.structs.replace(CALM, accuracy_pct=30.0, best_accuracy_pct=30.0)
    first = rank_envs([*others, behind])[0]
    assert (first.env_id, first.reasons) == (0, ("behind its peers",))


def test_env_without_a_measurement_is_no_outlier() -> None:
    (item,) = rank_envs([msgspec.structs.replace(CALM, accuracy_pct=None)])
    assert (item.score, item.reasons) == (0, ())
