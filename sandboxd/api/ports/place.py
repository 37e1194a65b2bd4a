"""Where a proxied request leads, and under which addresses that is known outside and inside."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from sandboxd.errors import SandboxdError
from sandboxd.wire.codes import ErrorCode

_BELOW = rb"/(?:v1/sandboxes|s)/[^/]+"
_INSIDE = re.compile(_BELOW + rb"/ports(?:/|$)")
_PORT = re.compile(rb"/v1/sandboxes/([^/]+)/ports/([^/]*)(/.*)?", re.DOTALL)
_MAX_PORT = 65535


def leads_inside(raw_path: bytes) -> bool:
    """Whether a request's path, as it came, is one of a port inside."""
    return _INSIDE.match(raw_path) is not None


@dataclass(frozen=True, slots=True)
class Place:
    """One port of one sandbox, as one request names it.

    path: the rest of the request's path, percent-encoded as it came; empty, or from a slash on.
    prefix: what stands before `path` outside, a token included.
    scheme, host: of the daemon as the caller knows it; `host` with its port, maybe empty.
    """

    sandbox_id: str
    port: int
    path: str
    prefix: str
    scheme: str
    host: str
    by_token: bool

    @property
    def origin(self) -> str:
        """Of the daemon, outside."""
        return f"{self.scheme}://{self.host}".lower()

    @property
    def inner_host(self) -> str:
        """The server's name inside. Development servers answer to `localhost` and refuse names
        that they were not told of.
        """
        return f"localhost:{self.port}"

    def is_inner(self, netloc: str) -> bool:
        """Whether an authority is this port's, under one of the names that it has inside."""
        try:
            parts = urlsplit(f"//{netloc}")
            port = parts.port or 80
        except ValueError:
            return False
        names = {"localhost", "127.0.0.1", "0.0.0.0", "::1", "::"}  # noqa: S104 - names alone
        return port == self.port and (parts.hostname or "") in names


def read_place(
    raw_path: bytes, *, below: str | None, scheme: str, host: str, public_url: str
) -> Place | None:
    """The place that a request's path names; None if it names no port's.

    raw_path: as it came, but below `/v1`. below: `/s/TOKEN` if it came like that.
    Raises `bad_request` for what is no port.
    """
    found = _PORT.fullmatch(raw_path)
    if found is None:
        return None
    sandbox_id, digits, path = (
        part.decode("latin-1") for part in (found[1], found[2], found[3] or b"")
    )
    if not (
        digits.isascii() and digits.isdigit() and len(digits) <= 5 and 0 < int(digits) <= _MAX_PORT
    ):
        raise SandboxdError(ErrorCode.BAD_REQUEST, f"a port is a number from 1 to {_MAX_PORT}")
    public = urlsplit(public_url)
    if host and public.netloc.lower() == host.lower():
        scheme = public.scheme  # the proxy in front of us speaks TLS, we do not
    return Place(
        sandbox_id=sandbox_id,
        port=int(digits),
        path=path,
        prefix=f"{below or '/v1/sandboxes/' + sandbox_id}/ports/{digits}",
        scheme=scheme,
        host=host,
        by_token=below is not None,
    )
