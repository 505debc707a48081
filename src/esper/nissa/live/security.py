"""Access rules of the live server: host, origin, cross-site requests and token."""

import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from esper.leyline.errors import UsageError

__all__ = ["Refusal", "Request", "Security", "is_loopback"]

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


PUBLIC_PREFIX: Final = "/assets/"
"""Files of the installed package, the same for every run: they need no token."""
METHODS: Final = frozenset({"GET", "HEAD"})
_PAGES: Final = re.compile(r"/|/runs|/run/[^/]+/")
"""What a link of another site may lead to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What the rules look at."""

    headers: Mapping[str, str]
    query: Mapping[str, str]
    path: str
    method: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """The status and reason with which a request is rejected."""

    status: int
    reason: str


def is_loopback(host: str) -> bool:
    """Check whether an address is reachable from this machine only."""
    if host in LOOPBACK_NAMES:
        return True
    address = _address_of(host)
    return address is not None and address.is_loopback


@dataclass(frozen=True, kw_only=True, slots=True)
class Security:
    """The access rules of one server; a non-loopback address requires a token."""

    host: str
    """The host that the server is bound to, without the port."""
    token: str | None = None
    allowed_origins: frozenset[str] = frozenset()
    """Origins of other pages that may connect, each with scheme, host and port."""

    def __post_init__(self) -> None:
        if self.token == "" or (self.token is None and not is_loopback(self.host)):
            raise UsageError(
                f"serving on {self.host} allows remote connections; set a token with --serve-token"
            )

    def refusal(self, request: Request) -> Refusal | None:
        """Return why a request is rejected, or None if it is allowed."""
        headers = request.headers
        host = headers.get("host", "")
        if not self._is_own_name(_name_of(host)):
            return Refusal(status=400, reason="unknown host name in the Host header")
        origin = headers.get("origin")
        if origin is not None and not self._is_allowed_origin(origin, host):
            return Refusal(status=403, reason="origin not allowed")
        if origin not in self.allowed_origins and _is_cross_site(request):
            return Refusal(status=403, reason="request of another site not allowed")
        if request.method not in METHODS or _has_body(headers):
            return Refusal(status=405, reason="only GET and HEAD, without a body")
        if request.path.startswith(PUBLIC_PREFIX) or self.token is None:
            return None
        if not _is_equal(_token_in(headers, request.query), self.token):
            return Refusal(status=401, reason="the token is missing or wrong")
        return None

    def _is_own_name(self, name: str) -> bool:
        if name == self.host or name in LOOPBACK_NAMES:
            return True
        # A server bound to all addresses accepts any IP address as its host. DNS rebinding is
        # still blocked, because it needs a host name.
        bound, named = _address_of(self.host), _address_of(name)
        return bound is not None and bound.is_unspecified and named is not None

    def _is_allowed_origin(self, origin: str, host: str) -> bool:
        if origin in self.allowed_origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc == host


def _address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _name_of(host_header: str) -> str:
    """Return the host of a Host header without port and brackets; '' if it is malformed."""
    try:
        parts = urlsplit(f"//{host_header}")
    except ValueError:
        return ""
    # No user, path, query or fragment, which would hide the name in front of them or behind them.
    is_whole = parts.netloc == host_header and "@" not in host_header
    return (parts.hostname or "") if is_whole else ""


def _is_cross_site(request: Request) -> bool:
    """Check whether a browser marks a request as caused by a page of another site.

    A link to a page of the dashboard, followed in a whole tab, is allowed.
    """
    headers = request.headers
    if headers.get("sec-fetch-site", "none").lower() in ("none", "same-origin"):
        return False
    is_link = headers.get("sec-fetch-mode") == "navigate" and _PAGES.fullmatch(request.path)
    return not (is_link and headers.get("sec-fetch-dest") == "document")


def _has_body(headers: Mapping[str, str]) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _token_in(headers: Mapping[str, str], query: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else query.get("token", "")


def _is_equal(given: str, expected: str) -> bool:
    # Constant-time comparison, so that response times reveal nothing about the token.
    return hmac.compare_digest(
        given.encode("utf-8", "surrogatepass"), expected.encode("utf-8", "surrogatepass")
    )
