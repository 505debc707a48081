"""Where the access token comes from."""

from pathlib import Path

import pytest

from esper.leyline.errors import UsageError
from esper.nissa.live.token import TOKEN_VARIABLE, resolve_token


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def test_given_text_is_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "other")
    assert resolve_token("sesame") == "sesame"


def test_environment_is_used_only_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_token(None) is None
    monkeypatch.setenv(TOKEN_VARIABLE, "sesame")
    assert resolve_token(None) == "sesame"
    monkeypatch.setenv(TOKEN_VARIABLE, "")
    assert resolve_token(None) is None


@pytest.mark.parametrize("token", ["a\nb", "a\x1bb", "\udcff"])
@pytest.mark.parametrize("is_given", [True, False])
def test_token_that_no_address_can_hold_is_refused_without_showing_it(
    is_given: bool, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_given:
        monkeypatch.setenv(TOKEN_VARIABLE, token)
    with pytest.raises(UsageError, match="the token has characters that") as caught:
        resolve_token(token if is_given else None)
    assert token not in str(caught.value)


def test_file_holds_the_token_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("  open sesame \n")
    assert resolve_token(f"@{path}") == "open sesame"


@pytest.mark.parametrize("content", [b"", b" \n", b"one\ntwo", b"\xff", b"x" * 4097, b"a\x1bb"])
def test_file_without_one_token_is_refused_without_showing_it(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="token file") as caught:
        resolve_token(f"@{path}")
    assert "two" not in str(caught.value)


def test_longest_token_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"x" * 4096)
    assert resolve_token(f"@{path}") == "x" * 4096


def test_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or directory"):
        resolve_token(f"@{tmp_path / 'none'}")
