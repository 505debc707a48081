"""The access token: given as text, in a file, or in the environment."""

import os
from pathlib import Path
from typing import Final

from esper.leyline.errors import UsageError

__all__ = ["TOKEN_VARIABLE", "resolve_token"]

TOKEN_VARIABLE: Final = "ESPER_SERVE_TOKEN"
FILE_MARK: Final = "@"
MAX_TOKEN_BYTES: Final = 4096


def resolve_token(given: str | None) -> str | None:
    """Return the token: `given` itself, the content of `@FILE`, or the environment's if None.

    A process's arguments are visible to every user of the machine; a file and the environment are
    not.
    """
    if given is not None and given.startswith(FILE_MARK):
        return _read_token(Path(given.removeprefix(FILE_MARK)))
    token = os.environ.get(TOKEN_VARIABLE) or None if given is None else given
    if token is not None and not token.isprintable():  # bytes that are not UTF-8 are not, either
        raise UsageError("the token has characters that cannot be part of an address")
    return token


def _read_token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TOKEN_BYTES + 1)
        token = data.decode().strip()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"token file {str(path)!r}: {reason}") from None
    except UnicodeDecodeError:
        raise UsageError(f"token file {str(path)!r}: not UTF-8 text") from None
    if not token or len(data) > MAX_TOKEN_BYTES or not token.isprintable():
        raise UsageError(
            f"token file {str(path)!r}: expected one line of 1 to {MAX_TOKEN_BYTES} bytes"
        )
    return token
