"""From a target to a stream that leads there: rules asked, names looked up, every address checked,
and a checked one dialled, so that no name can mean another address the second time.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.abc import ByteStream

from sandboxd.egress.addresses import Address, Reach, plain, reach_of
from sandboxd.egress.limits import WayOutLimits
from sandboxd.egress.outside import Outside, SocketStream, Unreachable
from sandboxd.egress.passage import Passage
from sandboxd.egress.rules import Refused, Rules
from sandboxd.egress.targets import Target


class Gate:
    """Of one sandbox. rules: as they are now. Both ways raise Refused and Unreachable.

    Cancelled: nothing stays open.
    """

    def __init__(
        self, outside: Outside, *, limits: WayOutLimits, rules: Callable[[], Rules]
    ) -> None:
        self._outside = outside
        self._limits = limits
        self._rules = rules
        self._lookups = anyio.Semaphore(limits.lookups)

    async def open(self, target: Target, passage: Passage) -> ByteStream:
        """A way that the sandbox's rules allow."""
        if (target.host, target.port) in self._outside.door.names:
            raise Refused(f"{target}: no sandbox may reach this daemon's own API")
        rules = self._rules()
        rules.check_host(target.host, target.port)
        addresses = await self._addresses(target)
        passage.leads_to(target)
        rules = self._rules()  # they may have changed while a name server thought
        rules.check_host(target.host, target.port)
        for address in addresses:
            rules.check_address(address, target.port, of=target.host)
            if self._outside.is_ours(address):
                raise Refused(
                    f"{target} is the machine that the sandboxes run on: use a forward to reach it"
                )
        return await self._dial(addresses, target, passage)

    async def forward(self, target: Target, passage: Passage) -> ByteStream:
        """A way to a forward's one address, which the caller vouches for."""
        check_forward(target, self._outside)
        addresses = await self._addresses(target)
        for address in addresses:
            check_forward_address(address, target, self._outside)
        return await self._dial(addresses, target, passage)

    def still_fits(self, passage: Passage) -> bool:
        """Whether the rules, as they are now, allow where a connection leads already."""
        target = passage.target
        if target is None:
            return True  # not decided yet: it will be asked for by the rules of then
        try:
            self._rules().check_host(target.host, target.port)
            if passage.address is not None:
                self._rules().check_address(passage.address, target.port, of=target.host)
        except Refused:
            return False
        return True

    async def _addresses(self, target: Target) -> list[Address]:
        try:
            with anyio.fail_after(self._limits.connect_s):
                async with self._lookups:
                    return await self._outside.addresses(target.host)
        except TimeoutError:
            raise Unreachable(f"{target.host}: no name server answered in time") from None

    async def _dial(
        self, addresses: list[Address], target: Target, passage: Passage
    ) -> SocketStream:
        passage.leads_to(target, addresses[0])
        try:
            stream, address = await self._outside.dial(
                addresses, target.port, within_s=self._limits.connect_s
            )
        except Unreachable as error:
            raise Unreachable(f"{target}: {error}") from error
        passage.leads_to(target, address)
        return stream


def check_forward(target: Target, outside: Outside) -> None:
    """What can be seen of a forward before its name is looked up. Raises Refused."""
    local = isinstance(target.host, str) and (
        target.host == "localhost" or target.host.endswith(".localhost")
    )
    if (target.host, target.port) in outside.door.names or (
        local and target.port == outside.door.port
    ):
        raise _own_api(target)
    if not isinstance(target.host, str):
        check_forward_address(target.host, target, outside)


def check_forward_address(address: Address, target: Target, outside: Outside) -> None:
    """Whether a forward may lead to that address of its target. Raises Refused."""
    address = plain(address)
    if outside.is_own_door(address, target.port):
        raise _own_api(target)
    if reach_of(address) is Reach.NEVER and not address.is_loopback:
        raise Refused(f"{target} ({address}): no forward may lead to such an address")


def _own_api(target: Target) -> Refused:
    return Refused(f"{target}: no sandbox may reach this daemon's own API")
