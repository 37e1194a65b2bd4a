"""The head of an answer from inside as the caller gets it. Pure."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from sandboxd.api.ports.asked import without_hop
from sandboxd.api.ports.place import Place
from sandboxd.wire.http1 import Headers

# What would be said of the daemon's whole address, and not of one server inside; and what the
# server in front says itself.
_NOT_ITS_TO_SAY = frozenset(
    {
        b"strict-transport-security", b"public-key-pins", b"alt-svc", b"clear-site-data",
        b"service-worker-allowed", b"expect-ct", b"nel", b"report-to", b"reporting-endpoints",
        b"date", b"x-request-id",
    }
)  # fmt: skip
_SANDBOX = (b"content-security-policy", b"sandbox")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")


def response_headers(status: int, headers: Headers, place: Place, *, trusted: bool) -> Headers:
    """The headers to pass on. names: in lower case."""
    passed: Headers = [] if trusted else [_SANDBOX]
    for name, value in without_hop(headers):
        if name in _NOT_ITS_TO_SAY or not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            continue
        if name == b"content-length" and status in {204, 304}:
            continue  # there is no body that it could be the length of
        passed.append((name, _outer(name, value, place)))
    return passed


def _outer(name: bytes, value: bytes, place: Place) -> bytes:
    text = value.decode("latin-1")
    if name in {b"location", b"content-location"}:
        return outer_address(text, place).encode("latin-1")
    if name == b"set-cookie":
        return outer_cookie(text, place).encode("latin-1")
    return value


def outer_address(address: str, place: Place) -> str:
    """An address that is the server's own, below the prefix; any other as it is.

    Own are: paths from the root on, relative ones that climb, its names inside, and the daemon's,
    which a server that reads X-Forwarded-Host uses. What is below the prefix already stays.
    """
    try:
        parts = urlsplit(_with_slashes(address))
    except ValueError:
        return address
    if parts.scheme not in {"", "http", "https"}:
        return address
    path = parts.path
    if parts.netloc:
        host_is_ours = bool(place.host) and parts.netloc.lower() == place.host.lower()
        if not (host_is_ours or place.is_inner(parts.netloc)):
            return address
        path = path or "/"
    elif not path.startswith("/"):
        if not parts.scheme and ".." not in path.lower().replace("%2e", "."):
            return address
        path = f"{place.path.rpartition('/')[0]}/{path}"
    return outer_path(path, place) + parts._replace(scheme="", netloc="", path="").geturl()


def _with_slashes(address: str) -> str:
    """To browsers a backslash in a path is a slash."""
    end = min((place for place in map(address.find, "?#") if place >= 0), default=len(address))
    return address[:end].replace("\\", "/") + address[end:]


def outer_path(path: str, place: Place) -> str:
    """A path from the root on, below the prefix. One that climbs does not leave it."""
    kept: list[str] = []
    segments = path.replace("\\", "/").split("/")[1:]
    for segment in segments:
        plain = segment.lower().replace("%2e", ".")
        if plain == "..":
            if kept:
                kept.pop()
        elif plain != ".":
            kept.append(segment)
    if segments and segments[-1].lower().replace("%2e", ".") in {".", ".."}:
        kept.append("")
    path = "/" + "/".join(kept)
    if path == place.prefix or path.startswith(place.prefix + "/"):
        return path
    return place.prefix + path


def outer_cookie(cookie: str, place: Place) -> str:
    """A cookie that goes to this port of this sandbox alone: its path is below the prefix, and it
    is the daemon's host's alone.
    """
    pair, *attributes = cookie.split(";")
    kept = [pair]
    path = ""
    for attribute in attributes:
        name, _, value = attribute.strip().partition("=")
        match name.strip().lower():
            case "domain":
                continue
            case "path":
                path = value.strip()
            case _:
                kept.append(attribute)
    if path.startswith("/"):
        kept.append(f" Path={outer_path(path, place)}")
    return ";".join(kept)
