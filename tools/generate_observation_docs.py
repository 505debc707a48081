"""Writes docs/observation.md from the feature tables in the code."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from esper.tamiyo.features import (
    BASE_FEATURES,
    BASE_TABLE,
    SLOT_FEATURES,
    SLOT_TABLE,
    UNMEASURED,
    UNMEASURED_SIGNED,
    Feature,
    Transform,
)

PATH = Path(__file__).resolve().parents[1] / "docs" / "observation.md"

INTRODUCTION = f"""# Observations

Generated from `src/esper/tamiyo/features.py` by `python tools/generate_observation_docs.py`.

The policy's input is one float32 vector per env: {BASE_FEATURES} features of the env, then \
{SLOT_FEATURES} features of each slot, with slots in action order. Feature k of slot i is at index \
{BASE_FEATURES} + {SLOT_FEATURES} i + k. In addition the policy gets each slot's blueprint as an \
index for an embedding, -1 for an empty slot.

The features of an empty slot are all zero. A missing or non-finite reading is replaced by a value \
outside the range of real readings, so that it differs from a measured zero: {UNMEASURED:g} where \
readings are not negative, {UNMEASURED_SIGNED:g} where they are in [-1, 1].

"""


def main() -> None:
    """Write the page."""
    PATH.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the whole page."""
    parts = [
        INTRODUCTION,
        "## Features of the env\n\n",
        *table(BASE_TABLE, "path in `signals` unless prefixed"),
        "\n## Features of each slot\n\n",
        *table(SLOT_TABLE, "path in `SeedReport`"),
    ]
    return "".join(parts)


def table(features: Iterable[Feature], origin: str) -> Iterator[str]:
    """Yield a Markdown table of features, line by line."""
    yield f"| offset | feature | meaning | source ({origin}) | value | unmeasured |\n"
    yield "|---|---|---|---|---|---|\n"
    for offset, feature in enumerate(features):
        source = "derived" if feature.source == "-" else f"`{feature.source}`"
        cells = (
            str(offset),
            f"`{feature.name}`",
            feature.meaning,
            source,
            formula(feature),
            "" if feature.unmeasured is None else f"{feature.unmeasured:g}",
        )
        yield f"| {' | '.join(cells)} |\n"


def formula(feature: Feature) -> str:
    """Return the formula that computes the feature from a reading x."""
    if feature.transform is Transform.STEPS:
        return "min(x / episode length, 1)"
    if feature.transform is Transform.SYMLOG:
        return f"sign(x) ln(1 + abs(x)) / {feature.scale:g}"
    if feature.transform is Transform.DECAY:
        return f"{feature.scale:g}^x"
    shifted = f"(x - {feature.shift:g})" if feature.shift else "x"
    scaled = shifted if feature.scale == 1.0 else f"{shifted} / {feature.scale:g}"
    is_clipped = math.isfinite(feature.low)
    return f"clip({scaled}, {feature.low:g}, {feature.high:g})" if is_clipped else scaled


if __name__ == "__main__":
    main()
