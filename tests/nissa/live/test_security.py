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
    request = asked(host, origin=origin, authorization=authorization)
    security = Security(host="127.0.0.1", token="sesame")

    refusal = security.refusal(request)

    assert refusal is not None
    assert refusal.status in (400, 401, 403)


OWN = "127.0.0.1:8765"
RULES: dict[str, tuple[Request, int | None]] = {
    "nothing but the host": (asked(), None),
    "another port of this machine": (asked("localhost:1"), None),
    "a host in brackets": (asked("[::1]:8765"), None),
    "another address of this machine": (asked("127.0.0.2:8765"), 400),
    "no host": (Request(headers={}, query={}, path="/", method="GET"), 400),
    "a foreign host": (asked("evil.example"), 400),
    "a malformed host": (asked("["), 400),
    "a foreign host that begins like ours": (asked("127.0.0.1.evil.example"), 400),
    "a foreign host as a user": (asked(f"evil.example@{OWN}"), 400),
    "a host with a path": (asked(f"{OWN}/evil.example"), 400),
    "a host with a fragment": (asked("127.0.0.1#@evil.example"), 400),
    "our own page": (asked(origin=f"http://{OWN}"), None),
    "our own page behind a proxy that encrypts": (asked(origin=f"https://{OWN}"), None),
    "our own host with another scheme": (asked(origin=f"ftp://{OWN}"), 403),
    "a foreign page": (asked(origin="http://evil.example"), 403),
    "a page without an origin": (asked(origin="null"), 403),
    "a malformed origin": (asked(origin="http://["), 403),
    "an allowed page": (asked(origin="http://dash.example"), None),
    "an allowed page of another site": (
        asked(origin="http://dash.example", sec_fetch_site="cross-site"),
        None,
    ),
    "an image on a foreign page": (
        asked(sec_fetch_site="cross-site", sec_fetch_mode="no-cors"),
        403,
    ),
    "a page on another port": (asked(sec_fetch_site="same-site"), 403),
    "a mark in capitals": (asked(sec_fetch_site="CROSS-SITE"), 403),
    "an unknown mark": (asked(sec_fetch_site="elsewhere"), 403),
    "the address bar": (asked(sec_fetch_site="none"), None),
    "our own page, marked": (asked(sec_fetch_site="same-origin"), None),
    "a link to the page": (
        asked(
            path="/",
            sec_fetch_site="cross-site",
            sec_fetch_mode="navigate",
            sec_fetch_dest="document",
        ),
        None,
    ),
    "a frame with the page": (
        asked(
            path="/",
            sec_fetch_site="cross-site",
            sec_fetch_mode="navigate",
            sec_fetch_dest="iframe",
        ),
        403,
    ),
    "a request to the page": (
        asked(
            path="/", sec_fetch_site="cross-site", sec_fetch_mode="cors", sec_fetch_dest="document"
        ),
        403,
    ),
    "a link to the log": (
        asked(sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document"),
        403,
    ),
    "a request for the head": (asked(method="HEAD"), None),
    "a request to change something": (asked(method="POST"), 405),
    "a body": (asked(content_length="1"), 405),
    "no body, said so": (asked(content_length="0"), None),
    "a body in parts": (asked(transfer_encoding="chunked"), 405),
}


@pytest.mark.parametrize("what", RULES)
def test_rule_without_a_token(what: str) -> None:
    request, status = RULES[what]
    security = Security(host="127.0.0.1", allowed_origins=frozenset({"http://dash.example"}))

    refusal = security.refusal(request)

    assert (None if refusal is None else refusal.status) == status
    assert refusal is None or refusal.reason in REASONS[refusal.status]


REASONS = {
    400: ("unknown host name in the Host header",),
    401: ("the token is missing or wrong",),
    403: ("origin not allowed", "request of another site not allowed"),
    405: ("only GET and HEAD, without a body",),
}


@pytest.mark.parametrize("host", ["localhost:80", "127.0.0.1:80", "[::1]:80"])
def test_server_of_any_address_answers_to_the_names_of_its_own_machine(host: str) -> None:
    security = Security(host="box.example", token="t")
    assert security.refusal(asked(host, query={"token": "t"})) is None


TOKENS: dict[str, tuple[Request, bool]] = {
    "none": (asked(), False),
    "in the header": (asked(authorization="Bearer sesame"), True),
    "in the header, in small letters": (asked(authorization="bearer sesame"), True),
    "in the query": (asked(query={"token": "sesame"}), True),
    "wrong": (asked(query={"token": "sesam"}), False),
    "wrong in the header, right in the query": (
        asked(authorization="Bearer x", query={"token": "sesame"}),
        False,
    ),
    "of another kind, right in the query": (
        asked(authorization="Basic x", query={"token": "sesame"}),
        True,
    ),
    "of another kind": (asked(authorization="Basic sesame"), False),
    "without a kind": (asked(authorization="sesame"), False),
    "not text": (asked(query={"token": "\udcff"}), False),
    "for a file of the package": (asked(path="/assets/main.js"), True),
    "for a path that only begins so": (asked(path="/assets"), False),
}


@pytest.mark.parametrize("what", TOKENS)
def test_token_is_asked_for(what: str) -> None:
    request, is_right = TOKENS[what]
    refusal = Security(host="127.0.0.1", token="sesame").refusal(request)
    assert (None if refusal is None else refusal.status) == (None if is_right else 401)
    assert refusal is None or refusal.reason in REASONS[401]


def test_server_has_the_name_it_is_bound_to_and_no_other() -> None:
    security = Security(host="box.example", token="t")
    given = {"token": "t"}
    assert security.refusal(asked("box.example:80", query=given)) is None
    assert security.refusal(asked("10.0.0.1:80", query=given)) is not None
    assert Security(host="10.0.0.1", token="t").refusal(asked("10.0.0.2", query=given)) is not None


def test_names_of_other_machines_are_not_loopback() -> None:
    assert not is_loopback("localhost.example")
    assert not is_loopback("10.0.0.1")
    assert not is_loopback("")


def test_message_names_the_address() -> None:
    with pytest.raises(UsageError, match=r"^serving on 10\.0\.0\.1 allows remote connections; set"):
        Security(host="10.0.0.1")


@pytest.mark.parametrize("headers", [{}, {"host": ":80"}, {"host": "["}, {"host": "a@b"}])
def test_request_without_a_name_is_for_no_server(headers: dict[str, str]) -> None:
    request = Request(headers=headers, query={"token": "t"}, path="/", method="GET")
    for host in ("XX", "xx", "box.example"):
        refusal = Security(host=host, token="t").refusal(request)
        assert refusal is not None
        assert refusal.status == 400


@pytest.mark.parametrize("token", ["XX", "\udcff"])
def test_token_is_needed_whatever_it_is(token: str) -> None:
    security = Security(host="127.0.0.1", token=token)
    assert security.refusal(asked()) is not None
    assert security.refusal(asked(query={"token": token})) is None
