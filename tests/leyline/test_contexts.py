"""The context of an episode is a function of seed, round and env, drawn in given shares."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.contexts import ContextSpec, draw_context, draw_sterile_seeds

RARE = ContextSpec(name="rare", weight=1.0)
USUAL = ContextSpec(name="usual", weight=3.0)
HIDDEN = ContextSpec(name="hidden", weight=0.0)
FAMILY = (RARE, HIDDEN, USUAL)
NUM_DRAWS = 4000


def draws(weights: dict[str, float]) -> Counter[str]:
    return Counter(
        draw_context(FAMILY, weights, run_seed=5, round_index=index // 40, env_id=index % 40).name
        for index in range(NUM_DRAWS)
    )


def test_contexts_are_drawn_by_their_own_weights() -> None:
    found = draws({})

    assert found["hidden"] == 0
    # Five standard deviations of a binomial share of one quarter.
    assert found["rare"] / NUM_DRAWS == pytest.approx(0.25, abs=5 * (0.1875 / NUM_DRAWS) ** 0.5)


def test_weights_on_request_replace_all_others() -> None:
    assert draws({"hidden": 2.0}) == {"hidden": NUM_DRAWS}
    assert set(draws({"hidden": 1.0, "rare": 1.0, "usual": 0.0})) == {"hidden", "rare"}


@given(run_seed=st.integers(0, 2**40), round_index=st.integers(0, 999), env_id=st.integers(0, 999))
def test_number_of_seeds_asked_for_changes_no_luck(
    run_seed: int, round_index: int, env_id: int
) -> None:
    luck = ContextSpec(name="luck", sterile_share=0.5)
    place = {"run_seed": run_seed, "round_index": round_index, "env_id": env_id}

    many = draw_sterile_seeds(luck, num_seeds=40, **place)

    assert draw_sterile_seeds(luck, num_seeds=7, **place) == many[:7]


def test_luck_has_the_share_of_its_context() -> None:
    luck = ContextSpec(name="luck", sterile_share=0.3)

    drawn = draw_sterile_seeds(luck, run_seed=1, round_index=0, env_id=0, num_seeds=NUM_DRAWS)

    assert sum(drawn) / NUM_DRAWS == pytest.approx(0.3, abs=5 * (0.21 / NUM_DRAWS) ** 0.5)
