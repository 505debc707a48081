"""JSON whose type is not known: decoded and encoded by orjson, without its limits.

Where a type is known, msgspec decodes and encodes. orjson decodes integers beyond 64 bits as
floats, refuses some of what Python's `json` writes, and encodes neither such integers nor
unpaired surrogates. The functions here hand such values around orjson; every other text or value
goes through it untouched.
"""

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import orjson

__all__ = [
    "MarkedJson",
    "compact_json",
    "decode_json",
    "decode_marked",
    "decode_python_json",
    "readable_json",
    "without_tokens",
]

_BOM: Final = b"\xef\xbb\xbf"
_TOKENS: Final = (b"NaN", b"-Infinity", b"Infinity")
"""What Python's json writes for floats that are no numbers."""

_NUL: Final = rb"\u0000"
"""Has no other spelling in JSON."""
_MAX_MARK: Final = 8

_DIGITS_AS_ZEROS: Final = bytes(ord("0") if byte in b"0123456789" else byte for byte in range(256))
_LONG_INTEGER: Final = b"0" * 20
_LONG_NEGATIVE: Final = b"-" + b"0" * 19
"""Shorter ones fit into 64 bits."""
_LARGE_EXPONENTS: Final = (b"e000", b"E000", b"e+000", b"E+000")
_SURROGATES: Final = (rb"\ud", rb"\uD")

# Possessive throughout: a long or unfinished string takes linear time and no memory.
_PLAIN: Final = (
    rb'(?:[^"NI\d-]++|"(?:[^"\\]++|\\[^u])*+"'
    rb"|-?\d{1,18}+(?:\.\d++)?+(?:[eE][-+]?\d{1,2}+)?+(?![\d.eE]))++"
)
"""What orjson decodes as Python does: punctuation, words, most strings and most numbers."""
_NUMBER: Final = rb"-?(?:(?:0|[1-9]\d*+)(?:\.\d++)?+(?:[eE][-+]?\d++)?+|Infinity)|NaN"
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"?'
_LEXEMES: Final = re.compile(
    b"%b|(?P<number>%b)|(?P<string>%b)" % (_PLAIN, _NUMBER, _STRING), re.DOTALL
)
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|u([dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""Any escape in a string; the group holds a surrogate that has no partner."""


class MarkedJson(NamedTuple):
    """A value in which an array `[mark, text]` stands for every number that is beyond orjson."""

    value: Any
    mark: str | None
    """A string that occurs nowhere else in the value; None where orjson was given the text as it
    is."""


def decode_json(text: bytes | str) -> Any:
    """Decode JSON with integers of any size; what is not JSON raises ValueError."""
    # First, so that what is not JSON is refused whatever numbers it contains.
    value = orjson.loads(text)
    data = text.encode() if isinstance(text, str) else text
    return decode_python_json(data) if _has_long_integer(data) else value


def decode_python_json(text: bytes) -> Any:
    """Decode UTF-8 that Python's `json` may have written; anything else raises ValueError.

    Unlike JSON, that has NaN, Infinity and -Infinity. Numbers beyond the range of a float, a
    byte order mark and unpaired surrogates are accepted, too. Such a surrogate becomes U+FFFD and
    its four digits, since it could be neither encoded nor printed.
    """
    value, mark = decode_marked(text)
    if mark is None:
        return value
    top = [value]
    try:
        _unmark(top, mark)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return top[0]


def _unmark(container: Any, mark: str) -> None:
    """Put numbers in the place of marked arrays, at any depth."""
    places = container.items() if isinstance(container, dict) else enumerate(container)
    for place, item in places:
        if isinstance(item, list) and len(item) == 2 and item[0] == mark:
            container[place] = _python_number(item[1])
        elif isinstance(item, dict | list):
            _unmark(item, mark)


def _python_number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:  # not an integer, or one with more digits than Python converts
        return float(text)


def decode_marked(text: bytes) -> MarkedJson:
    """Decode like `decode_python_json`, at the speed of orjson: numbers beyond it stay texts."""
    text = text.removeprefix(_BOM)
    has_long_integer = _has_long_integer(text)
    has_tokens = b"NaN" in text or b"Infinity" in text
    try:
        if not has_long_integer:
            return _decode_tokens(text) if has_tokens else MarkedJson(orjson.loads(text), None)
    except orjson.JSONDecodeError:
        if not _has_other_marks(text):
            raise
    mark = _unused_mark(text)
    return MarkedJson(orjson.loads(_LEXEMES.sub(partial(_marked, mark), text)), orjson.loads(mark))


def _has_long_integer(text: bytes) -> bool:
    # Several times as fast as a regular expression, and asked of every line.
    zeros = text.translate(_DIGITS_AS_ZEROS)
    return _LONG_INTEGER in zeros or _LONG_NEGATIVE in zeros


def _has_other_marks(text: bytes) -> bool:
    """Check for large numbers and surrogates, which orjson refuses and Python's json does not."""
    zeros = text.translate(_DIGITS_AS_ZEROS)
    return any(exponent in zeros for exponent in _LARGE_EXPONENTS) or any(
        escape in text for escape in _SURROGATES
    )


def _unused_mark(text: bytes) -> bytes:
    """Return a string that the text does not hold, as JSON."""
    marks = (b'"%b"' % (_NUL * length) for length in range(1, _MAX_MARK + 1))
    mark = next((mark for mark in marks if mark not in text), None)
    if mark is None:
        raise ValueError("a number that orjson cannot hold, among strings of NUL characters")
    return mark


def _decode_tokens(text: bytes) -> MarkedJson:
    """Decode a text with NaN or Infinity, by far the most frequent of Python's additions."""
    mark = _unused_mark(text)
    for token in _TOKENS:
        text = _replace_token(text, token, b'[%b,"%b"]' % (mark, token))
    return MarkedJson(orjson.loads(text), orjson.loads(mark))


def without_tokens(text: bytes) -> bytes:
    """Return JSON, or lines of it, with null in the place of NaN, Infinity and -Infinity."""
    for token in _TOKENS:
        text = _replace_token(text, token, b"null")
    return text


def _replace_token(text: bytes, token: bytes, replacement: bytes) -> bytes:
    """Replace a token everywhere but behind an odd number of quotes, which is inside a string."""
    if token not in text:
        return text
    # Same length, so that places in one text are places in the other; escaped quotes count for
    # nothing.
    quotes = text.replace(rb"\\", b"__").replace(rb"\"", b"__") if b"\\" in text else text
    pieces: list[bytes] = []
    copied = counted = num_quotes = 0
    while (place := text.find(token, counted)) >= 0:
        num_quotes += quotes.count(b'"', counted, place)
        counted = place + len(token)
        if num_quotes % 2 == 0:
            pieces += (text[copied:place], replacement)
            copied = counted
    return b"".join((*pieces, text[copied:]))


def _marked(mark: bytes, match: re.Match[bytes]) -> bytes:
    lexeme = match[0]
    match match.lastgroup:
        case "number":
            return b'[%b,"%b"]' % (mark, lexeme) if _is_beyond_orjson(lexeme) else lexeme
        case "string":
            return _ESCAPE.sub(_paired, lexeme)
    return lexeme


def _is_beyond_orjson(number: bytes) -> bool:
    if not number.removeprefix(b"-").isdigit():
        return not math.isfinite(float(number))
    # 20 characters are short enough to convert.
    return len(number) > 20 or not -(1 << 63) <= int(number) < 1 << 64


def _paired(match: re.Match[bytes]) -> bytes:
    """Replace a surrogate without a partner."""
    return match[0] if match[1] is None else rb"\ufffd" + match[1].lower()


def readable_json(value: object) -> bytes:
    """Encode for people: keys sorted, two spaces per level, a newline at the end."""
    return _encode(
        msgspec.to_builtins(value, str_keys=True),
        orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE,
    )


def compact_json(value: object) -> bytes:
    """Encode on one line, keys in their order; a date, and what JSON has no form for, as text."""
    return _encode(value, orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_NON_STR_KEYS)


def _encode(value: object, option: int) -> bytes:
    try:
        return orjson.dumps(value, default=str, option=option)
    except orjson.JSONEncodeError:
        return orjson.dumps(_encodable(value), default=str, option=option)


def _encodable(value: object) -> object:
    """Replace what orjson refuses: long integers stay numbers, surrogates become their escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 64 else orjson.Fragment(str(value))
    if isinstance(value, Mapping):
        return {_encodable(str(key)): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value
