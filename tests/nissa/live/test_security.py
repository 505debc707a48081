"""Who may talk to the live server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.leyline.errors import UsageError
from esper.nissa.live.security import Request, Security, is_loopback


def asked(
    host: str = "127.0.0.1:8765",
    *,
    path: str = "/api/events",
    method: str = "GET",
    query: dict[str, str] | None = None,
    **headers: str,
) -> Request:
    """Return a request; header names are given with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(headers={"host": host, **named}, query=query or {}, path=path, method=method)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.example"])
def test_address_that_others_can_reach_needs_a_token(host: str) -> None:
    with pytest.raises(UsageError, match="--serve-token"):
        Security(host=host)
    Security(host=host, token="sesame")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    assert is_loopback(host)
    Security(host=host)


def test_empty_token_is_none() -> None:
    with pytest.raises(UsageError):
        Security(host="127.0.0.1", token="")


def test_server_on_every_address_goes_by_numbers_but_not_by_foreign_names() -> None:
    security = Security(host="0.0.0.0", token="t")
    query = {"token": "t"}
    assert security.refusal(asked("192.168.1.5:8765", query=query)) is None
    assert security.refusal(asked("rebound.example:8765", query=query)) is not None


@given(host=st.text(max_size=20), origin=st.text(max_size=20), authorization=st.text(max_size=20))
def test_no_header_makes_the_check_stumble(host: str, origin: str, authorization: str) -> None:
    headers = {"host": host, "origin": origin, "authorization": authorization}
    security = Security(host="127.0.0.1", token="sesame")

    refusal = security.refusal(Request(headers=headers))

    assert refusal is not None
    assert refusal.status in (400, 401, 403)
