"""Access control of the live server: checks host, origin and token before anything else."""

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, QueryParams
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from esper.leyline.errors import UsageError

__all__ = ["Guard", "Refusal", "Security", "is_loopback"]

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


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
    """Origins of other pages that may connect, such as `http://dash.example:3000`."""

    def __post_init__(self) -> None:
        if self.token == "" or (self.token is None and not is_loopback(self.host)):
            raise UsageError(
                f"serving on {self.host} allows remote connections; set a token with --serve-token"
            )

    def refusal(self, headers: Mapping[str, str], query: Mapping[str, str]) -> Refusal | None:
        """Return why a request is rejected, or None if it is allowed."""
        host = headers.get("host", "")
        if not self._is_own_name(_name_of(host)):
            return Refusal(status=400, reason="unknown host name in the Host header")
        origin = headers.get("origin")
        if origin is not None and not self._is_allowed_origin(origin, host):
            return Refusal(status=403, reason="origin not allowed")
        if self.token is not None and not _is_equal(_token_in(headers, query), self.token):
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
        return urlsplit(f"//{host_header}").hostname or ""
    except ValueError:
        return ""


def _token_in(headers: Mapping[str, str], query: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else query.get("token", "")


def _is_equal(given: str, expected: str) -> bool:
    # Constant-time comparison, so that response times reveal nothing about the token.
    return hmac.compare_digest(
        given.encode("utf-8", "surrogatepass"), expected.encode("utf-8", "surrogatepass")
    )


class Guard:
    """ASGI middleware that rejects requests that violate the access rules."""

    def __init__(self, app: ASGIApp, security: Security) -> None:
        self._app = app
        self._security = security

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request, then forward it to the app or reject it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._security.refusal(Headers(scope=scope), QueryParams(scope["query_string"]))
        if refusal is None:
            await self._app(scope, receive, send)
            return
        # For a websocket handshake, Starlette sends this as a plain HTTP response too.
        response = PlainTextResponse(refusal.reason + "\n", status_code=refusal.status)
        await response(scope, receive, send)
