"""Where somebody inside wants to go, read out of a proxy request, and a forward's address. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from sandboxd.egress.addresses import Host, read_host, shown

_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^\[\]:@/?#\\]+)(?::([0-9]{1,5}))?\Z")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)(#.*)?\Z")
_USUAL = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Target:
    """A host in its one spelling, a port, and for HTTP the path with its query."""

    host: Host
    port: int
    path: str = ""
    scheme: str = ""

    def __str__(self) -> str:
        return shown(self.host, self.port)

    @property
    def authority(self) -> str:
        """As a `Host` header names it."""
        if self.port == _USUAL.get(self.scheme):
            return shown(self.host, 0).removesuffix(":0")
        return str(self)


def read_authority(text: str, *, port: int | None = None) -> tuple[Host, int]:
    """`HOST:PORT`; port: what stands for a missing one. Raises ValueError."""
    found = _AUTHORITY.match(text)
    if found is None or (found[2] is None and port is None):
        msg = "must be HOST:PORT" if port is None else "must be HOST or HOST:PORT"
        raise ValueError(msg)
    number = int(found[2]) if found[2] is not None else port or 0
    if not 0 < number < 65536:
        msg = "a port is from 1 to 65535"
        raise ValueError(msg)
    return read_host(found[1]), number


def read_connect(target: str) -> Target:
    """What `CONNECT` names. Raises ValueError."""
    return Target(*read_authority(target))


def read_absolute(target: str) -> Target:
    """What any other method names. Raises ValueError, also for what is no request to a proxy."""
    found = _URL.match(target)
    if found is None:
        msg = "this is a proxy: ask for http://HOST/PATH, or CONNECT HOST:PORT"
        raise ValueError(msg)
    if found[1].lower() != "http":
        msg = f"{found[1][:20]}:// cannot be asked of a proxy; use CONNECT HOST:PORT"
        raise ValueError(msg)
    host, port = read_authority(found[2], port=80)
    return Target(host, port, _path(found[3]), "http")


def read_forward(url: str) -> Target:
    """A forward's address: `http://`, `https://` or `tcp://`. Raises ValueError."""
    found = _URL.match(url)
    scheme = found[1].lower() if found is not None else ""
    if found is None or scheme not in {"http", "https", "tcp"} or not url.isascii():
        msg = "must be http://HOST:PORT, https://HOST or tcp://HOST:PORT"
        raise ValueError(msg)
    if "?" in found[3] or found[4] or any(c.isspace() or ord(c) < 32 for c in url):
        msg = "must have neither a query nor a fragment"
        raise ValueError(msg)
    if scheme == "tcp" and found[3] not in {"", "/"}:
        msg = "tcp:// has no path"
        raise ValueError(msg)
    host, port = read_authority(found[2], port=_USUAL.get(scheme))
    return Target(host, port, _path(found[3]), scheme)


def below(base: str, asked: str) -> str:
    """A path that was asked for, put below a forward's own. Raises ValueError if it would leave."""
    if base == "/":
        return asked
    steps = unquote(unquote(asked.partition("?")[0])).replace("\\", "/").split("/")
    if ".." in steps or "." in steps:
        msg = "a path below a forward's own may not have `..` in it"
        raise ValueError(msg)
    return base.rstrip("/") + asked


def _path(text: str) -> str:
    return text if text.startswith("/") else "/" + text
