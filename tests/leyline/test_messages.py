"""Every message survives the trip to another process, non-finite numbers included."""

import functools
import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline import messages, workers
from esper.leyline.effects import EnvEffect, effect_of
from esper.leyline.payloads import SeedPruned

HAS_RANGES = {workers.WorkerSpec}
"""Contains a job, whose numbers have ranges; `test_workers.py` sends one."""
MESSAGES = [
    item
    for module in (messages, workers)
    for item in map(vars(module).get, module.__all__)
    if isinstance(item, type) and issubclass(item, msgspec.Struct) and item not in HAS_RANGES
]
INT64 = st.integers(-(2**63), 2**63 - 1)


def values_of(node: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a type, as msgspec sees the type."""
    leaves: dict[type, Callable[[], st.SearchStrategy[Any]]] = {
        msgspec.inspect.NoneType: st.none,
        msgspec.inspect.BoolType: st.booleans,
        msgspec.inspect.IntType: lambda: INT64,
        msgspec.inspect.FloatType: st.floats,
        msgspec.inspect.StrType: lambda: st.text(max_size=8),
        msgspec.inspect.BytesType: lambda: st.binary(max_size=8),
    }
    match node:
        case msgspec.inspect.StructType(cls=cls):
            return structs_of(cls)
        case msgspec.inspect.EnumType(cls=cls):
            return st.sampled_from(cls)
        case msgspec.inspect.Metadata(type=inner):
            return values_of(inner)
        case msgspec.inspect.UnionType(types=types):
            return st.one_of([values_of(item) for item in types])
        case msgspec.inspect.VarTupleType(item_type=item):
            return st.lists(values_of(item), max_size=2).map(tuple)
        case msgspec.inspect.TupleType(item_types=items):
            return st.tuples(*map(values_of, items))
        case msgspec.inspect.ListType(item_type=item):
            return st.lists(values_of(item), max_size=2)
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(values_of(key), values_of(value), max_size=2)
    return leaves[type(node)]()


@functools.cache
def structs_of(cls: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Return a strategy for a struct, built once: building it takes longer than an example."""
    node = msgspec.inspect.type_info(cls)
    assert isinstance(node, msgspec.inspect.StructType)
    return st.builds(cls, **{field.name: values_of(field.type) for field in node.fields})


def comparable(value: object) -> object:
    """Return a value in which NaN equals NaN and a struct equals only its own type."""
    if isinstance(value, msgspec.Struct):
        return type(value), [comparable(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value), [comparable(item) for item in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1.0, value))
    return value


@pytest.mark.parametrize("message", MESSAGES, ids=lambda item: item.__name__)
@given(data=st.data())
def test_a_message_is_decoded_as_it_was_encoded(
    message: type[msgspec.Struct], data: st.DataObject
) -> None:
    sent = data.draw(structs_of(message))

    received = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=message)

    assert comparable(received) == comparable(sent)


def test_effects_come_back_as_the_types_they_were() -> None:
    pruned = SeedPruned(
        slot_id="r0c0",
        seed_id="a",
        blueprint="norm",
        reason="policy",
        initiator="policy",
        age_steps=7,
        contribution_pp=float("nan"),
        improvement_pp=None,
        blending_delta_pp=float("-inf"),
    )

    received = msgspec.msgpack.decode(msgspec.msgpack.encode(effect_of(pruned)), type=EnvEffect)

    assert comparable(received) == comparable(effect_of(pruned))
    assert type(received.payload) is SeedPruned
