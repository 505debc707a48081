"""Slot ids and the two orders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.errors import InvalidValueError, SlotIdError, UnknownNameError, UsageError
from esper.leyline.slots import (
    InjectionSpec,
    SlotConfig,
    Surface,
    format_slot_id,
    parse_slot_id,
)

coordinates = st.integers(min_value=0, max_value=999_999)


def spec(slot_id: str, order: int, channels: int = 8) -> InjectionSpec:
    return InjectionSpec(
        slot_id=slot_id,
        channels=channels,
        order=order,
        surface=Surface.PRE_POOL,
        layer_range=(order, order + 1),
        position=0.5,
    )


@given(coordinates, coordinates)
def test_ids_are_parsed_back_to_their_row_and_column(row: int, column: int) -> None:
    assert parse_slot_id(format_slot_id(row, column)) == (row, column)


@given(st.text(alphabet="rc0123456789 \n-early", max_size=12))
def test_an_id_is_accepted_only_in_its_one_spelling(text: str) -> None:
    try:
        row, column = parse_slot_id(text)
    except SlotIdError as error:
        assert repr(text) in str(error)
    else:
        assert format_slot_id(row, column) == text


@pytest.mark.parametrize("value", ["early", "mid", "late", "r00c1", "r0c1\n", "R0C1", "", 3, None])
def test_ids_off_the_grammar_are_refused_by_name(value: object) -> None:
    with pytest.raises(SlotIdError, match="expected r<row>c<column>"):
        parse_slot_id(value)


def test_columns_sort_as_numbers() -> None:
    assert parse_slot_id("r0c9") < parse_slot_id("r0c10") < parse_slot_id("r1c0")


def test_action_order_follows_the_specs_and_execution_order_the_forward_pass() -> None:
    specs = [spec("r1c0", 2), spec("r0c1", 1, 16), spec("r0c0", 0)]

    config = SlotConfig.from_specs(specs, execution_order=["r0c0", "r1c0", "r0c1"])

    assert config.slot_ids == ("r0c0", "r0c1", "r1c0")
    assert config.execution_order == ("r0c0", "r1c0", "r0c1")
    assert config.channels_by_id() == {"r0c0": 8, "r0c1": 16, "r1c0": 8}


@given(st.permutations(["r0c0", "r0c1", "r1c0"]), st.integers(min_value=1, max_value=3))
def test_enabled_slots_keep_both_orders_however_they_are_named(names: list[str], n: int) -> None:
    specs = [spec("r0c0", 0), spec("r0c1", 1), spec("r1c0", 2)]
    whole = SlotConfig.from_specs(specs, execution_order=["r0c0", "r1c0", "r0c1"])

    part = SlotConfig.from_specs(specs, whole.execution_order, enabled=names[:n])

    assert part.slot_ids == tuple(name for name in whole.slot_ids if name in names[:n])
    assert part.execution_order == tuple(
        name for name in whole.execution_order if name in names[:n]
    )


@pytest.mark.parametrize(
    ("enabled", "error"),
    [
        (["r7c7"], UnknownNameError),
        ([], InvalidValueError),
        (["r0c0", "r0c0"], InvalidValueError),
        (["late"], SlotIdError),
    ],
)
def test_slots_a_host_does_not_offer_once_are_refused(
    enabled: list[str], error: type[UsageError]
) -> None:
    with pytest.raises(error):
        SlotConfig.from_specs([spec("r0c0", 0)], ["r0c0"], enabled)


@pytest.mark.parametrize(
    "wrong",
    [{"channels": 0}, {"order": -1}, {"position": 1.5}, {"layer_range": (2, 1)}],
)
def test_impossible_injection_points_are_refused(wrong: dict[str, object]) -> None:
    right = {
        "slot_id": "r0c0",
        "channels": 8,
        "order": 0,
        "surface": Surface.BLOCK_END,
        "layer_range": (0, 1),
        "position": 0.5,
    }
    with pytest.raises(InvalidValueError, match=next(iter(wrong))):
        InjectionSpec(**(right | wrong))
