"""Hosts and addresses as they are compared: one spelling for each, and how far it reaches. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Host = str | Address

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\Z")
_MAX_NAME = 253

# What clouds tell their machines' secrets at, beside 169.254.0.0/16.
_METADATA = frozenset(
    {
        IPv4Address("100.100.100.200"),
        IPv4Address("168.63.129.16"),
        IPv4Address("192.0.0.192"),
        IPv6Address("fd00:ec2::254"),
        IPv6Address("fd20:ce::254"),
    }
)
_PRIVATE = tuple(
    map(
        ip_network,
        (
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "100.64.0.0/10",  # shared by a provider's customers
            "192.0.0.0/24",
            "192.88.99.0/24",
            "198.18.0.0/15",
            "fc00::/7",
            "fec0::/10",
        ),
    )
)
_THIS_NETWORK = IPv4Network("0.0.0.0/8")
_COMPATIBLE = IPv6Network("::/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_6TO4 = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")


class Reach(StrEnum):
    """How far an address leads: anywhere, where only who names it may go, or where nobody may."""

    PUBLIC = "public"
    PRIVATE = "private"
    NEVER = "never"


def read_host(text: str) -> Host:
    """A host in its one spelling: lower case, without a last dot; every form of an address as the
    address. Raises ValueError, with the reason, for what is no host.
    """
    if text.startswith("["):
        return _read_v6(text)
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if not name or len(name) > _MAX_NAME or not all(map(_LABEL.match, labels)):
        msg = "not a host name or address (an international name is written as xn--…)"
        raise ValueError(msg)
    if _is_number(labels[-1]):
        return _read_v4(labels)
    return name


def plain(address: Address) -> Address:
    """An IPv4 address in IPv6 clothes as what it is."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def reach_of(address: Address) -> Reach:
    """How far an address leads, and what is wrapped in it as well."""
    address = plain(address)
    if address in _METADATA or _leads_nowhere(address):
        return Reach.NEVER
    if isinstance(address, IPv6Address):
        wrapped = _wrapped(address)
        if wrapped is not None:
            return reach_of(wrapped)
    return Reach.PRIVATE if any(address in network for network in _PRIVATE) else Reach.PUBLIC


def shown(host: Host, port: int) -> str:
    """`host:port` as people write it."""
    return f"[{host}]:{port}" if isinstance(host, IPv6Address) else f"{host}:{port}"


def _leads_nowhere(address: Address) -> bool:
    if (
        address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
        or address.is_reserved  # the broadcast address too
    ):
        # NAT64's prefix counts as reserved; what is wrapped in it is looked at instead.
        return not (isinstance(address, IPv6Address) and address in _NAT64)
    if isinstance(address, IPv4Address):
        return address in _THIS_NETWORK
    return address in _COMPATIBLE or address in _TEREDO


def _wrapped(address: IPv6Address) -> IPv4Address | None:
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _6TO4:
        return IPv4Address((int(address) >> 80) & 0xFFFFFFFF)
    return None


def _read_v6(text: str) -> Address:
    inner = text[1:-1]
    if not text.endswith("]") or "%" in inner:
        msg = "an IPv6 address stands in brackets, without a zone"
        raise ValueError(msg)
    try:
        return plain(IPv6Address(inner))
    except ValueError:
        msg = "no IPv6 address stands in the brackets"
        raise ValueError(msg) from None


def _is_number(label: str) -> bool:
    return label.isdigit() or re.match(r"0x[0-9a-f]*\Z", label) is not None


def _read_v4(labels: list[str]) -> IPv4Address:
    """As libraries read it: up to four numbers, decimal, octal or hex; the last fills the rest."""
    try:
        numbers = [_number(label) for label in labels]
        *heads, last = numbers
        if len(numbers) > 4 or any(head > 255 for head in heads) or last >= 256 ** (4 - len(heads)):
            raise ValueError
    except ValueError:
        msg = "a host that ends in a number must be an IPv4 address"
        raise ValueError(msg) from None
    value = last
    for place, head in enumerate(heads):
        value += head << (8 * (3 - place))
    return IPv4Address(value)


def _number(label: str) -> int:
    if label.startswith("0x"):
        return int(label[2:] or "0", 16)
    return int(label, 8 if len(label) > 1 and label.startswith("0") else 10)
