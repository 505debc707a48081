"""Addresses of the live server: parsing, binding, and the URL that is printed."""

import socket
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import quote

from esper.leyline.errors import UsageError

__all__ = ["ServerAddress", "dashboard_url", "listen"]

BACKLOG: Final = 128
RECEIVE_BYTES: Final = 32 * 1024
"""Kernel's receive buffer of a connection, which bounds what one read returns; Linux doubles it."""

SEND_BYTES: Final = 128 * 1024
"""Kernel's send buffer of a connection, which would grow to megabytes by itself."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address a server listens on; port 0 lets the operating system choose a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `HOST:PORT`; an IPv6 host is written in brackets."""
        host, _, port = text.rpartition(":")
        is_port = port.isdecimal() and len(port) <= 5 and int(port) <= 65535
        if not host or not host.isprintable() or not is_port:
            raise UsageError(f"address {text!r}: expected HOST:PORT, such as 127.0.0.1:8765")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listen(address: ServerAddress) -> socket.socket:
    """Bind an address and return the listening socket; raise UsageError if that fails."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets whose protocol is IPPROTO_TCP. Without it, Nagle's
    # algorithm delays every other frame by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)
        listener.setblocking(False)  # required by loop.sock_accept
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"cannot serve on {address}: {reason}; choose another with --serve HOST:PORT"
        ) from None
    return listener


def dashboard_url(host: str, listener: socket.socket, token: str | None) -> str:
    """Return the URL of the dashboard of a bound server; None leaves the token out."""
    query = "" if token is None else f"?token={quote(token, safe='')}"
    return f"http://{ServerAddress(host, listener.getsockname()[1])}/{query}"
