"""Forwards: a port inside that leads to one address outside, as bytes or as HTTP.

Bytes unless HTTP is needed: for TLS outside, a path that all requests go below, or headers that
are added outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from sandboxd.egress.gate import Gate
from sandboxd.egress.http_side import Asked, HttpInside, Left, relay
from sandboxd.egress.limits import WayOutLimits
from sandboxd.egress.outside import Outside, Unreachable
from sandboxd.egress.passage import Passage
from sandboxd.egress.rules import Refused
from sandboxd.egress.targets import Target, below, read_forward
from sandboxd.model.way_out import Forward, Headers
from sandboxd.wire.http1 import ConnectionLost
from sandboxd.wire.http1 import Headers as WireHeaders


@dataclass(frozen=True, slots=True)
class OpenForward:
    """A forward that leads somewhere. headers: None where their values are not known any more."""

    forward: Forward
    target: Target
    headers: Headers | None = field(repr=False)

    @classmethod
    def of(cls, forward: Forward, headers: Headers | None) -> OpenForward:
        """Raises ValueError for an address that is none."""
        known = {name.lower(): value for name, value in (headers or {}).items()}
        missing = set(forward.header_names) - set(known)
        return cls(forward, read_forward(forward.url), None if missing else known)

    @property
    def speaks_http(self) -> bool:
        """Whether requests are read here, or bytes passed on as they are."""
        encrypted, has_path = self.target.scheme == "https", self.target.path != "/"
        return encrypted or has_path or bool(self.forward.header_names)


class Forwarding:
    """Serves the connections to one sandbox's forwards. refused: is told what was not allowed."""

    def __init__(
        self,
        gate: Gate,
        outside: Outside,
        *,
        limits: WayOutLimits,
        refused: Callable[[str], None],
    ) -> None:
        self._gate = gate
        self._outside = outside
        self._limits = limits
        self._refused = refused

    async def serve(self, passage: Passage, forward: OpenForward) -> None:
        """One connection, until either side is done. Raises Left."""
        passage.leads_to(forward.target)
        if forward.speaks_http:
            await self._serve_http(passage, forward)
            return
        try:
            outside = await self._gate.forward(forward.target, passage)
        except Refused as refusal:
            self._refused(str(refusal))
            return
        except Unreachable:
            return  # as a connection that fails: there is no way to say more in bytes
        try:
            await passage.tunnel(outside)
        finally:
            await anyio.aclose_forcefully(outside)

    async def _serve_http(self, passage: Passage, forward: OpenForward) -> None:
        inside = HttpInside(passage.inside)
        within_s = self._limits.head_s
        while (asked := await inside.next_request(within_s=within_s)) is not None:
            try:
                if not await self._answer(asked, inside, passage, forward):
                    return
            except Refused as refusal:
                self._refused(str(refusal))
                if not await inside.refuse(403, str(refusal)):
                    return
            except Unreachable as failure:
                if not await inside.refuse(502, str(failure)):
                    return
            within_s = self._limits.idle_s

    async def _answer(
        self, asked: Asked, inside: HttpInside, passage: Passage, forward: OpenForward
    ) -> bool:
        if forward.headers is None:
            raise Unreachable(
                "the daemon was started anew and no longer has this forward's headers: "
                "its caller must give the forward again"
            )
        try:
            if not asked.target.startswith("/"):
                raise ValueError("ask for a path: this port is a server, no proxy")
            path = below(forward.target.path, asked.target)
        except ValueError as error:
            return await inside.refuse(400, str(error))
        raw = await self._gate.forward(forward.target, passage)
        try:
            outside = passage.metered(await self._encrypted(raw, forward.target))
            return await relay(
                inside,
                asked,
                outside,
                authority=forward.target.authority,
                path=path,
                secrets=_wire(forward.headers),
            )
        except ConnectionLost as lost:
            if not inside.untouched:
                raise Left from lost
            raise Unreachable(f"{forward.target} broke off: {lost}") from lost
        finally:
            await anyio.aclose_forcefully(raw)

    async def _encrypted(self, raw: ByteStream, target: Target) -> ByteStream:
        if target.scheme != "https":
            return raw
        context = await self._outside.tls_context()
        try:
            with anyio.fail_after(self._limits.connect_s):
                return await TLSStream.wrap(
                    raw, hostname=str(target.host), ssl_context=context, standard_compatible=False
                )
        except (OSError, anyio.BrokenResourceError, anyio.EndOfStream) as error:
            raise Unreachable(f"{target}: no TLS connection: {error}") from error


def _wire(headers: Headers) -> WireHeaders:
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]
