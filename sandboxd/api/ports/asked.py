"""The head of a request as the server inside gets it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.types import Scope

from sandboxd.api.ports.place import Place
from sandboxd.wire.http1 import Headers

HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate",
        b"proxy-authorization", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
# Ours to say, or nobody's: who the caller is, and what it reached us by, ends here.
_OURS = frozenset(
    {
        b"host", b"origin", b"referer", b"authorization", b"content-length", b"x-request-id",
        b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-forwarded-for",
        b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-prefix", b"x-forwarded-proto",
        b"x-forwarded-scheme", b"x-forwarded-server", b"x-forwarded-ssl",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked, as it came. is_ours: whether an Authorization header carries a key of ours.

    trusted: whether the sandbox's template trusts its ports.
    """

    method: str
    query: bytes
    headers: Headers
    request_id: str
    trusted: bool
    is_ours: Callable[[str], bool]

    def all(self, name: bytes) -> list[bytes]:
        """The values of a header."""
        return [value for key, value in self.headers if key == name]


def asked_of(scope: Scope, *, trusted: bool, is_ours: Callable[[str], bool]) -> Asked:
    """What a request asks. See Asked."""
    head_only = scope["state"].get("head_only", False)
    return Asked(
        method="HEAD" if head_only else scope.get("method", "GET"),
        query=scope["query_string"],
        headers=scope["headers"],
        request_id=scope["state"]["request_id"],
        trusted=trusted,
        is_ours=is_ours,
    )


def request_head(asked: Asked, place: Place, *, upgrade: bool = False) -> bytes:
    """The whole head, with the empty line. upgrade: to a WebSocket."""
    target = (place.path or "/").encode("latin-1") + (b"?" + asked.query if asked.query else b"")
    lines = [asked.method.encode("ascii") + b" " + target + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in _headers(asked, place, upgrade=upgrade)]
    return b"\r\n".join([*lines, b"", b""])


def without_hop(headers: Headers) -> Headers:
    """What of a head concerns both ends."""
    gone = HOP
    for name, value in headers:
        if name == b"connection":
            # Whoever names the length there would have the other side guess it.
            named = {each.strip().lower() for each in value.split(b",")}
            gone = gone | (named - {b"content-length", b"content-type", b"host", b"set-cookie"})
    return [(name, value) for name, value in headers if name not in gone]


def _headers(asked: Asked, place: Place, *, upgrade: bool) -> Headers:
    headers: Headers = [(b"host", place.inner_host.encode("ascii"))]
    headers += [each for each in without_hop(asked.headers) if each[0] not in _OURS]
    headers += [
        (b"authorization", value)
        for value in asked.all(b"authorization")
        if not asked.is_ours(value.decode("latin-1"))
    ]
    for name, value in ((b"origin", _origin(asked, place)), (b"referer", _referer(asked, place))):
        if value:
            headers.append((name, value))
    headers.append((b"x-request-id", asked.request_id.encode("ascii")))
    headers.append((b"x-forwarded-proto", place.scheme.encode("ascii")))
    if place.host:
        headers.append((b"x-forwarded-host", place.host.encode("latin-1")))
    # A token must not come to know of itself inside, but where pages see their address anyway.
    if asked.trusted or not place.by_token:
        headers.append((b"x-forwarded-prefix", place.prefix.encode("latin-1")))
    if upgrade:
        return [*headers, (b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    # One connection inside for each request: nothing of one caller can be left over for another.
    return [*headers, (b"connection", b"close"), *_length(asked)]


def _length(asked: Asked) -> Headers:
    if b"transfer-encoding" in dict(asked.headers):
        return [(b"transfer-encoding", b"chunked")]
    return [(b"content-length", value) for value in asked.all(b"content-length")[:1]]


def _origin(asked: Asked, place: Place) -> bytes:
    """A page's own origin is the server's own inside, too; any other it should hear of as it is."""
    given = next(iter(asked.all(b"origin")), b"")
    if given.decode("latin-1").lower() == place.origin:
        return b"http://" + place.inner_host.encode("ascii")
    return given


def _referer(asked: Asked, place: Place) -> bytes:
    """A page below the prefix as it is inside. Other pages of ours may have a token in their path,
    and are not told of.
    """
    given = next(iter(asked.all(b"referer")), b"").decode("latin-1")
    try:
        parts = urlsplit(given)
    except ValueError:
        return b""
    if parts.netloc.lower() != place.host.lower():
        return given.encode("latin-1")
    if parts.path != place.prefix and not parts.path.startswith(place.prefix + "/"):
        return b""
    inner = parts._replace(
        scheme="http", netloc=place.inner_host, path=parts.path[len(place.prefix) :] or "/"
    )
    return inner.geturl().encode("latin-1")
