"""Numbers of the configuration with their ranges, and the sentences that state the ranges.

msgspec checks the ranges when it converts a value, never when a struct is constructed.
"""

from typing import Annotated, TypeAlias, get_args

from msgspec import Meta

__all__ = [
    "Fraction",
    "NonNegativeFloat",
    "NonNegativeInt",
    "PositiveFloat",
    "PositiveFraction",
    "PositiveInt",
    "range_of",
]

PositiveInt: TypeAlias = Annotated[int, Meta(ge=1)]
NonNegativeInt: TypeAlias = Annotated[int, Meta(ge=0)]
PositiveFloat: TypeAlias = Annotated[float, Meta(gt=0)]
NonNegativeFloat: TypeAlias = Annotated[float, Meta(ge=0)]
Fraction: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
PositiveFraction: TypeAlias = Annotated[float, Meta(gt=0, le=1)]


def range_of(kind: object) -> str | None:
    """Return the range of a field's type as a sentence, such as `must be at least 1`."""
    for part in get_args(kind):
        if isinstance(part, Meta):
            return _sentence(part)
        if (inner := range_of(part)) is not None:
            return inner
    return None


def _sentence(meta: Meta) -> str:
    if meta.min_length is not None:
        return f"must have at least {meta.min_length} item"
    bounds = (("above", meta.gt), ("at least", meta.ge), ("at most", meta.le))
    texts = [f"{words} {bound}" for words, bound in bounds if bound is not None]
    assert texts, "a range has a bound"
    return f"must be {' and '.join(texts)}"
