"""Effects: one tagged struct per kind of payload, decodable without the payload's envelope."""

import typing

import msgspec
import pytest
from tests.nissa.making import epoch, pruned

from esper.leyline.effects import EnvEffect, Pruning, effect_of
from esper.leyline.payloads import Payload

KINDS = typing.get_args(EnvEffect)


def sample(kind: type[Payload]) -> Payload:
    """Build a payload whose required fields are filled by type."""
    values = {"tuple": (), "str": "x", "int": 1, "float": 0.5, "bool": True}
    fields = {
        field.name: next((value for name, value in values.items() if name in str(field.type)), None)
        for field in msgspec.structs.fields(kind)
    }
    return kind(**fields)


@pytest.mark.parametrize("kind", KINDS)
def test_every_payload_becomes_its_own_kind_of_effect_and_back(kind: type[msgspec.Struct]) -> None:
    [field] = msgspec.structs.fields(kind)
    payload = sample(field.type)

    effect = effect_of(payload)

    assert type(effect) is kind
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(effect), type=EnvEffect) == effect


def test_tags_are_distinct() -> None:
    assert len({kind.__struct_config__.tag for kind in KINDS}) == len(KINDS)


def test_payload_of_another_kind_has_no_effect() -> None:
    with pytest.raises(KeyError):
        effect_of(epoch())


def test_unknown_fields_and_tags_are_refused() -> None:
    good = msgspec.to_builtins(effect_of(pruned()))
    assert msgspec.convert(good, EnvEffect) == Pruning(pruned())
    for bad in ({**good, "extra": 1}, {**good, "effect": "nothing"}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(bad, EnvEffect)
