"""One figure of a bench beside its target."""

from dataclasses import dataclass

__all__ = ["Row"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A measured figure."""

    name: str
    measured: float
    target: float
    unit: str
    is_lower_better: bool = True
    note: str = ""
