"""Tasks and their hosts as data."""

import pytest

from esper.leyline.errors import UnknownNameError
from esper.leyline.slots import parse_slot_id
from esper.leyline.tasks import PRESETS, TASKS, CnnHostSpec, preset_named, task_named


@pytest.mark.parametrize("name", TASKS)
def test_hosts_offer_slots_row_by_row(name: str) -> None:
    offered = TASKS[name].host.slot_ids
    assert list(offered) == sorted(offered, key=parse_slot_id)
    assert len(set(offered)) == len(offered)


def test_a_pool_adds_a_slot_behind_it() -> None:
    host = CnnHostSpec(
        in_channels=3, image_size=32, num_classes=10, base_channels=8, num_blocks=3, num_pools=2
    )
    assert host.slot_ids == ("r0c0", "r0c1", "r0c2", "r1c0", "r1c1")


def test_names_in_the_tables_are_the_names_they_are_found_by() -> None:
    assert all(task_named(name).name == name for name in TASKS)
    assert all(preset_named(name).name == name for name in PRESETS)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'digits'.*known: bytes_lm"):
        task_named("digit")
    with pytest.raises(UnknownNameError, match="known: bytes_lm"):
        preset_named("")
