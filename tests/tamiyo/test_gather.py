"""Reports of all envs in one list, each with the indices of its env and slot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.messages import make_report
from tests.tamiyo.states import SLOTS

from esper.leyline.errors import UnknownNameError
from esper.tamiyo.gather import locate_reports

INDEX = {slot_id: index for index, slot_id in enumerate(SLOTS)}


@given(st.lists(st.lists(st.sampled_from(SLOTS), unique=True, max_size=3), max_size=5))
def test_each_report_is_found_at_its_env_and_slot(occupied: list[list[str]]) -> None:
    envs = [
        [make_report(slot_id, seed_id=f"{env}/{slot_id}") for slot_id in slots]
        for env, slots in enumerate(occupied)
    ]

    located = locate_reports(envs, INDEX)

    places = zip(located.env_indices, located.slot_indices, strict=True)
    assert [report.seed_id for report in located.reports] == [
        f"{env}/{SLOTS[slot]}" for env, slot in places
    ]
    assert len(located.reports) == sum(map(len, occupied))
    assert located.env_indices == sorted(located.env_indices)


def test_unknown_slot_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="r9c9"):
        locate_reports([[make_report("r9c9")]], INDEX)
