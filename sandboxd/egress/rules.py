"""What one sandbox may reach: an allow-list read, and the verdict on a host and on each address
that it turned out to have. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_network

from sandboxd.egress.addresses import Address, Host, Reach, plain, reach_of, read_host, shown
from sandboxd.model.template import Network

_ENTRY = re.compile(
    r"(?P<below>\*\.)?(?P<host>\[[^\[\]]*\]|[^\[\]:/*]+)(?P<bits>/[0-9]{1,3})?(?P<port>:[0-9]{1,5})?\Z"
)
_USUAL_PORTS = frozenset({80, 443})


class Refused(Exception):
    """A connection that may not be. Its text is one line: what was refused, and the mend."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of an allow-list: a name, all names below one, or a range of addresses."""

    host: str | IPv4Network | IPv6Network
    ports: frozenset[int]
    below: bool = False

    def names(self, name: str, port: int) -> bool:
        """Whether it allows that name."""
        if port not in self.ports or not isinstance(self.host, str):
            return False
        return name.endswith("." + self.host) if self.below else name == self.host

    def holds(self, address: Address, port: int) -> bool:
        """Whether it names that address, alone or in a range."""
        return port in self.ports and not isinstance(self.host, str) and address in self.host


def read_entry(text: str) -> Entry:
    """`HOST`, `*.DOMAIN`, an address or `ADDRESS/BITS`, each with `:PORT` behind it or for 80 and
    443; IPv6 in brackets: `[fd00::]/8:5432`. Raises ValueError with what is wrong.
    """
    found = _ENTRY.match(text)
    if found is None:
        msg = "must be HOST, *.DOMAIN, ADDRESS or ADDRESS/BITS, each with or without :PORT"
        raise ValueError(msg)
    ports = _USUAL_PORTS
    if found["port"] is not None:
        port = int(found["port"][1:])
        if not 0 < port < 65536:
            msg = "a port is from 1 to 65535"
            raise ValueError(msg)
        ports = frozenset({port})
    host, below, bits = read_host(found["host"]), found["below"] is not None, found["bits"]
    if isinstance(host, str):
        if bits is not None:
            msg = "only an address may have /BITS behind it"
            raise ValueError(msg)
        return Entry(host, ports, below)
    if below:
        msg = "nothing lies below an address"
        raise ValueError(msg)
    return Entry(_range(host, bits), ports)


def _range(host: Address, bits: str | None) -> IPv4Network | IPv6Network:
    most = 32 if isinstance(host, IPv4Address) else 128
    try:
        return ip_network((host, int(bits[1:]) if bits is not None else most))
    except ValueError:
        msg = "is no range of addresses: bits behind /BITS must be 0"
        raise ValueError(msg) from None


@dataclass(frozen=True, slots=True)
class Rules:
    """A network policy, ready to be asked. Every method raises Refused or returns nothing."""

    kind: str
    entries: tuple[Entry, ...] = ()

    @classmethod
    def of(cls, network: Network) -> Rules:
        """Raises ValueError for an entry that is not valid."""
        return cls(network.kind, tuple(map(read_entry, network.allow)))

    def check_host(self, host: Host, port: int) -> None:
        """May it be tried at all? Nothing is looked up for a host that may not."""
        if self.kind == "none":
            raise Refused(f"{shown(host, port)}: this sandbox has no way out (network is none)")
        if not isinstance(host, str):
            self.check_address(host, port, of=host)
            if self.kind == "allow" and not self._holds(host, port):
                raise Refused(_not_listed(host, port))
        elif self.kind == "allow" and not any(e.names(host, port) for e in self.entries):
            raise Refused(_not_listed(host, port))

    def check_address(self, address: Address, port: int, *, of: Host) -> None:
        """May that address, which `of` has, be connected to?"""
        address = plain(address)
        target = shown(of, port) if of == address else f"{shown(of, port)} ({address})"
        match reach_of(address):
            case Reach.NEVER:
                raise Refused(f"{target}: no sandbox may reach such an address")
            case Reach.PRIVATE if not self._holds(address, port):
                raise Refused(
                    f"{target} is a private address: to allow it, add {shown(address, port)!r} "
                    "to `network` beside the name, or use a forward"
                )
            case _:
                return

    def within(self, other: Rules) -> bool:
        """Whether it surely allows nothing that the other one does not."""
        if self.kind == "none":
            return True
        if other.kind == "internet":
            return self.kind == "internet" or not any(map(_is_private, self.entries))
        return self.kind == other.kind and all(
            any(_covers(wide, entry) for wide in other.entries) for entry in self.entries
        )

    def _holds(self, address: Address, port: int) -> bool:
        return any(entry.holds(plain(address), port) for entry in self.entries)


def check_entries(entries: Iterable[str]) -> None:
    """Raises ValueError that names the first entry which is not valid."""
    for text in entries:
        try:
            read_entry(text)
        except ValueError as error:
            msg = f"{text[:80]!r} {error}"
            raise ValueError(msg) from None


def _not_listed(host: Host, port: int) -> str:
    name = shown(host, port)
    return f"{name} is not on this sandbox's list: to allow it, add {name!r} to `network`"


def _is_private(entry: Entry) -> bool:
    if isinstance(entry.host, str):
        return False
    ends = (entry.host.network_address, entry.host.broadcast_address)
    wide = entry.host.num_addresses > 1  # what lies between its ends may be anything
    return wide or any(reach_of(end) is not Reach.PUBLIC for end in ends)


def _covers(wide: Entry, entry: Entry) -> bool:
    if not entry.ports <= wide.ports:
        return False
    if isinstance(wide.host, str) or isinstance(entry.host, str):
        if not isinstance(wide.host, str) or not isinstance(entry.host, str):
            return False
        if wide.below:
            below = entry.host.endswith("." + wide.host)
            return below or (entry.below and entry.host == wide.host)
        return not entry.below and entry.host == wide.host
    if isinstance(wide.host, IPv4Network) and isinstance(entry.host, IPv4Network):
        return entry.host.subnet_of(wide.host)
    if isinstance(wide.host, IPv6Network) and isinstance(entry.host, IPv6Network):
        return entry.host.subnet_of(wide.host)
    return False
