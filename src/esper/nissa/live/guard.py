"""ASGI middleware in front of every route: work budget, access rules, headers, errors."""

import logging
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from esper.nissa.live.budget import ConnectionBudget
from esper.nissa.live.security import Refusal, Request, Security

__all__ = ["Guard", "budget_of"]

COMMON_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    # The URL may contain the token, which must not leak to other servers.
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every response; a route may set its own value of one."""


def budget_of(scope: Scope) -> ConnectionBudget:
    """Return the budget of a request's connection."""
    state = scope.setdefault("state", {})
    # Apps that are called without our server, as in tests, have no budget of a connection yet.
    budget: ConnectionBudget = state.setdefault("budget", ConnectionBudget())
    return budget


class Guard:
    """Charges every request to its connection, then forwards it to the app or rejects it."""

    def __init__(self, app: ASGIApp, security: Security) -> None:
        self._app = app
        self._security = security

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or websocket."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        # Before the access rules: requests that are refused cost work as well.
        await budget_of(scope).spend()
        if scope["type"] == "http":
            send = _Headers(send)
        refusal = self._security.refusal(_request_of(scope))
        if refusal is not None:
            await _refuse(refusal, scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except Exception:
            # uvicorn answers with status 500 or closes the connection. It logs nothing, as clients
            # must not be able to fill the operator's terminal; a developer can ask for this line.
            logging.getLogger(__name__).debug("a request failed", exc_info=True)
            raise


def _request_of(scope: Scope) -> Request:
    return Request(
        headers=Headers(scope=scope),
        query=QueryParams(scope["query_string"]),
        path=scope["path"],
        method=scope.get("method", "GET"),
    )


async def _refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    # The connection ends with the refusal: what follows on it, such as a body, is not read. For a
    # websocket handshake, Starlette sends this as a plain HTTP response too.
    headers = {"Connection": "close"}
    response = PlainTextResponse(refusal.reason + "\n", refusal.status, headers)
    await response(scope, receive, send)


@dataclass(eq=False, slots=True)
class _Headers:
    """Adds the common headers to a response."""

    send: Send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in COMMON_HEADERS.items():
                headers.setdefault(name, value)
        await self.send(message)
