"""The proxy inside: CONNECT, and plain HTTP/1.1 by absolute address."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from sandboxd.egress.gate import Gate
from sandboxd.egress.http_side import Asked, HttpInside, Left, relay
from sandboxd.egress.limits import WayOutLimits
from sandboxd.egress.outside import Unreachable
from sandboxd.egress.passage import Passage
from sandboxd.egress.rules import Refused
from sandboxd.egress.targets import Target, read_absolute, read_connect
from sandboxd.wire.http1 import ConnectionLost

_BLOCKED, _NOT_A_REQUEST, _FAILED = 403, 400, 502


class Proxy:
    """Serves the connections to one sandbox's proxy port. refused: is told what was not allowed."""

    def __init__(self, gate: Gate, *, limits: WayOutLimits, refused: Callable[[str], None]) -> None:
        self._gate = gate
        self._limits = limits
        self._refused = refused

    async def serve(self, passage: Passage) -> None:
        """One connection, until either side is done. Raises Left."""
        inside = HttpInside(passage.inside)
        within_s = self._limits.head_s
        while (asked := await inside.next_request(within_s=within_s)) is not None:
            try:
                if not await self._answer(asked, inside, passage):
                    return
            except Refused as refusal:
                self._refused(str(refusal))
                if not await inside.refuse(_BLOCKED, str(refusal)):
                    return
            except Unreachable as failure:
                if not await inside.refuse(_FAILED, str(failure)):
                    return
            within_s = self._limits.idle_s

    async def turn_away(self, passage: Passage, text: str) -> None:
        """Tell somebody that there is no room. Raises Left."""
        inside = HttpInside(passage.inside)
        if await inside.next_request(within_s=self._limits.head_s) is not None:
            await inside.refuse(503, text)

    async def _answer(self, asked: Asked, inside: HttpInside, passage: Passage) -> bool:
        """False: nothing more comes on this connection."""
        try:
            is_tunnel = asked.method == "CONNECT"
            target = read_connect(asked.target) if is_tunnel else read_absolute(asked.target)
        except ValueError as error:
            return await inside.refuse(_NOT_A_REQUEST, f"not a target of this proxy: {error}")
        outside = await self._gate.open(target, passage)
        try:
            if is_tunnel:
                early = await inside.switch()
                await passage.tunnel(outside, early)
                return False
            return await self._relay(asked, target, inside, passage.metered(outside))
        finally:
            await anyio.aclose_forcefully(outside)

    async def _relay(
        self, asked: Asked, target: Target, inside: HttpInside, outside: anyio.abc.ByteStream
    ) -> bool:
        authority = target.authority
        try:
            return await relay(
                inside, asked, outside, authority=authority, path=target.path, secrets=[]
            )
        except ConnectionLost as lost:
            if not inside.untouched:
                raise Left from lost  # an answer that is cut must look cut
            raise Unreachable(f"{target} broke off: {lost}") from lost
