"""Writes docs/observation.md from the feature tables in the code."""

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
readings are not negative, {UNMEASURED_SIGNED:g} where they have either sign.

Differences between accuracies (contributions, interactions) are on a symmetric logarithmic scale \
on which 100 percentage points are 1: readings of any size differ, small ones most. Nothing is \
clipped here.

## Normalisation

Each feature x reaches the policy as (x - mean) / deviation, clipped to ±10, with the mean and the \
standard deviation of all observations of the rounds so far. A round's n observations with mean m \
and variance v are merged into the N of the rounds before, with mean M and variance V (Chan's \
formula): with w = n / (N + n), the mean becomes M + w (m - M) and the variance \
(1 - w) V + w v + w (1 - w) (m - M)². This equals the mean and variance of the whole sample \
(`tests/simic/test_normalizers.py`). The statistics are frozen during a rollout, belong to a \
checkpoint, and count only observations of envs that have not failed. A constant feature is \
centred and not scaled. In the first round, features pass unchanged.

After one round every feature that varied in it reaches the policy with a deviation between 0.5 \
and 1 (`tests/integration/test_rollouts_on_probes.py`). The exception is a flag that is set in \
fewer than one of 400 observations: its readings are more than 20 deviations away and are clipped.

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
    return shifted if feature.scale == 1.0 else f"{shifted} / {feature.scale:g}"


if __name__ == "__main__":
    main()
