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

INTRODUCTION = f"""# What the policy sees

Generated from `src/esper/tamiyo/features.py` by `python tools/generate_observation_docs.py`.

An observation has {BASE_FEATURES} features of the env and {SLOT_FEATURES} of each slot, slots in \
action order. Feature k of slot i stands at {BASE_FEATURES} + {SLOT_FEATURES} i + k. Beside it the \
policy gets each slot's blueprint as an index, -1 for an empty slot.

An empty slot is all zeros. A reading that was never made, or that is not finite, has a value that \
no real reading has: {UNMEASURED:g} where readings are not negative, {UNMEASURED_SIGNED:g} where \
they lie from -1 to 1. Neither is ever mistaken for a measured zero.

"""


def main() -> None:
    """Write the page."""
    PATH.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the whole page."""
    parts = [
        INTRODUCTION,
        "## Of the env\n\n",
        *table(BASE_TABLE, "`signals` unless it says otherwise"),
        "\n## Of each slot\n\n",
        *table(SLOT_TABLE, "`SeedReport`"),
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
    """Return how a reading x becomes this feature."""
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
