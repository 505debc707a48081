"""Patches of the view, sent in parts."""

from typing import Any

import msgspec
from tests.karn.story import Story

from esper.karn.view.snapshot import Patch, patch_parts
from esper.karn.view.view_model import START, ViewModel
from esper.leyline.telemetry import decode_event

NUM_ROWS = 8
NUM_SEEDS = 5


def model_of(num_rounds: int) -> ViewModel:
    model = ViewModel()
    for line in Story(num_rounds=num_rounds, num_envs=2, num_steps=4).lines():
        model.apply(decode_event(line))
    return model


def merged(patches: list[Patch]) -> dict[str, Any]:
    """Merge patches as the page does; see `store.js`."""
    view: dict[str, Any] = {"rounds": {}, "steps": {}, "envs": {}, "seeds": {}}
    for patch in patches:
        sections = msgspec.to_builtins(patch)
        for name in sections.pop("replaced", ()):
            view[name] = {}
        for name, section in sections.items():
            if name in ("rounds", "steps", "envs", "seeds"):
                view[name] |= section
            else:
                view[name] = section
    return view


def test_parts_have_the_same_effect_as_the_whole_and_are_small() -> None:
    whole = model_of(30).patch(START, 0.0)
    parts = list(patch_parts(whole, NUM_ROWS, NUM_SEEDS))
    assert merged(parts) == merged([whole])
    assert len(parts) > 30 // NUM_ROWS
    for part in parts:
        for rows, limit in ((part.rounds, NUM_ROWS), (part.seeds, NUM_SEEDS)):
            assert isinstance(rows, msgspec.UnsetType) or len(rows) <= limit


def test_newest_rounds_come_first() -> None:
    first = next(patch_parts(model_of(30).patch(START, 0.0), NUM_ROWS, NUM_SEEDS))
    assert isinstance(first.rounds, dict)
    assert set(first.rounds) == set(range(30 - NUM_ROWS, 30))


def test_patch_without_changes_is_one_part() -> None:
    model = model_of(3)
    patch = model.patch(model.version, 0.0)
    assert list(patch_parts(patch, NUM_ROWS, NUM_SEEDS)) == [patch]
