"""Text of unknown origin, made safe for a terminal."""

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""Escape what a terminal might act on: control characters, among them newlines, as `\x1b`.

    Bidirectional marks and the halves of characters that file names may contain are escaped too.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
