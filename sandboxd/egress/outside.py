"""The world outside as one machine reaches it: names looked up, addresses dialled, and which of
them are the machine's own. Knows no sandbox and no rules.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, ip_address

import anyio
from anyio import to_thread

from sandboxd.egress.addresses import Address, Host, plain, read_host
from sandboxd.egress.targets import read_forward
from sandboxd.guest.streams.unix_stream import UnixStream

Resolve = Callable[[str], Awaitable[Sequence[Address]]]

_LOOKUPS = 32  # threads; a name server that is silent holds one for as long as the system waits
_MOST_ADDRESSES = 16


class Unreachable(Exception):
    """Nothing was reached: no such name, nobody listens, no answer in time. Its text says which."""


class SocketStream(UnixStream):
    """A connected TCP socket; reads as much at once as a tunnel wants."""

    async def receive(self, max_bytes: int = 1 << 18) -> bytes:
        """Some bytes; see the Unix one."""
        return await super().receive(max_bytes)


@dataclass(slots=True)
class OwnDoor:
    """Where our own API answers: its port, and the names that are handed out for it."""

    port: int = 0
    names: frozenset[tuple[Host, int]] = frozenset()


class Outside:
    """One for a daemon.

    door: our own API, which no way leads to. resolve: looks a name up; the system's resolver where
    none is given. is_ours: whether an address is this machine's.
    """

    def __init__(
        self,
        door: OwnDoor | None = None,
        *,
        resolve: Resolve | None = None,
        is_ours: Callable[[Address], bool] | None = None,
    ) -> None:
        self.door = door or OwnDoor()
        self.is_ours = is_ours or is_own_address
        self._resolve = resolve or _Resolver().resolve
        self._tls: ssl.SSLContext | None = None

    async def addresses(self, host: Host) -> list[Address]:
        """All addresses of a host, at least one. Raises Unreachable. Callers bound the wait."""
        if not isinstance(host, str):
            return [host]
        found = [plain(address) for address in await self._resolve(host)]
        if not found:
            raise Unreachable(f"{host}: there is no such name")
        return found[:_MOST_ADDRESSES]

    async def dial(
        self, addresses: Sequence[Address], port: int, *, within_s: float
    ) -> tuple[SocketStream, Address]:
        """The first of them that answers, and which; each gets its share of the time.

        Raises Unreachable.
        """
        ends_at = anyio.current_time() + within_s
        why = "no answer in time"
        for number, address in enumerate(addresses):
            left_s = max(0.0, ends_at - anyio.current_time())
            with anyio.move_on_after(left_s / (len(addresses) - number)):
                try:
                    return await connect_tcp(address, port), address
                except OSError as error:
                    why = error.strerror or "it cannot be reached"
        raise Unreachable(why)

    async def tls_context(self) -> ssl.SSLContext:
        """For servers outside, by the system's authorities; read once."""
        if self._tls is None:
            self._tls = await to_thread.run_sync(ssl.create_default_context)
        return self._tls

    def is_own_door(self, address: Address, port: int) -> bool:
        """Whether that is our own API, at whichever address of this machine."""
        return port == self.door.port and self.is_ours(address)


class _Resolver:
    """The system's, in threads: a wait that is given up leaves its thread to end by itself."""

    def __init__(self) -> None:
        self._limiter: anyio.CapacityLimiter | None = None  # belongs to the loop that uses it

    async def resolve(self, name: str) -> list[Address]:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_LOOKUPS)
        look_up = partial(socket.getaddrinfo, name, None, type=socket.SOCK_STREAM)
        try:
            found = await to_thread.run_sync(look_up, abandon_on_cancel=True, limiter=self._limiter)
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"{name}: the name cannot be looked up") from error
        texts = dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found)
        return [ip_address(text) for text in texts]


def is_own_address(address: Address) -> bool:
    """Whether packets to it would stay on this machine. Sends none."""
    address = plain(address)
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
            return ip_address(str(probe.getsockname()[0])) == address
        except OSError:  # no way leads there at all
            return False


def own_door(host: str, port: int, *, public_url: str = "") -> OwnDoor:
    """The door of an API that listens on `host` and `port`, and is handed out as `public_url`."""
    names: set[tuple[Host, int]] = set()
    with suppress(ValueError):
        names.add((read_host(f"[{host}]" if ":" in host else host), port))
    with suppress(ValueError):
        target = read_forward(public_url)
        names.add((target.host, target.port))
    return OwnDoor(port, frozenset(names))


async def connect_tcp(address: Address, port: int) -> SocketStream:
    """Connect. Raises OSError."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    connecting = socket.socket(family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)  # noqa: FBT003 - the standard library's word
        connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            connecting.connect((str(address), port))
        except BlockingIOError:
            await anyio.wait_writable(connecting)
            code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code)) from None
    except BaseException:
        connecting.close()
        raise
    return SocketStream(connecting)
