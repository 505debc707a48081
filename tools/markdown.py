"""Figures as Markdown: tables, and blocks between the marks of a document."""

from collections.abc import Iterable, Sequence

from esper.leyline.errors import UsageError

__all__ = ["table", "with_block"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, without a line end after its last row."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join((*lines, *(f"| {' | '.join(row)} |" for row in rows)))


def with_block(text: str, block: str, *, name: str = "") -> str:
    """Return a document with this block of lines between two of its marks.

    Args:
        text: the document; what lies outside of the marks stays as it is.
        block: what to put between the marks, with its last line end.
        name: of the marks, where a document has several pairs.
    """
    begin, end = _mark(name, "begin"), _mark(name, "end")
    before, first, rest = text.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise UsageError(f"the document has no marks {begin.strip()} and {end.strip()}")
    return f"{before}{begin}{block}{end}{after}"


def _mark(name: str, edge: str) -> str:
    return f"<!-- figures: {f'{name} ' if name else ''}{edge} -->\n"
