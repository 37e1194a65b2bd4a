"""Hosts have one spelling each, and no clothes hide an address."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from sandboxd.egress.addresses import Reach, plain, reach_of, read_host


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("Example.ORG", "example.org"),
        ("example.org.", "example.org"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("0x7f.1", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("017700000001", "127.0.0.1"),
        ("169.254.43518", "169.254.169.254"),
        ("127.0.0.1.", "127.0.0.1"),
        ("[::1]", "::1"),
        ("[::ffff:127.0.0.1]", "127.0.0.1"),
        ("[::FFFF:7f00:1]", "127.0.0.1"),
        ("[0:0:0:0:0:ffff:10.0.0.1]", "10.0.0.1"),
    ],
)
def test_every_spelling_of_a_host_is_read_as_the_one(text: str, host: str) -> None:
    assert str(read_host(text)) == host


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a..b",
        "-a.example",
        "a b",
        "a\tb",
        "user@host",
        "ex%61mple.org",
        "bücher.example",
        "example.org\\@evil.example",
        "\uff1127.0.0.1",
        "256.1.1.1",
        "1.2.3.4.5",
        "0x7g.1",
        "09.1",
        "1.2.3.999",
        "4294967296",
        "[::1%eth0]",
        "[::1",
        "::1",
        "[1.2.3.4]",
        "[]",
        "a" * 64 + ".example",
        "a.b" * 90,
        "example.org/",
        "host:80",
        "*.example.org",
        "example.1",
    ],
)
def test_what_could_be_read_in_two_ways_is_no_host(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_host(text)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "0.1.2.3",
        "169.254.169.254",
        "169.254.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16",
        "::",
        "::1",
        "fe80::1",
        "febf::1",
        "ff02::1",
        "fd00:ec2::254",
        "fd20:ce::254",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "::ffff:0:0",
        "64:ff9b::127.0.0.1",
        "64:ff9b::169.254.169.254",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "2001:0:7f00:1::",
        "64:ff9b:1::1",
    ],
)
def test_nobody_may_reach_these_in_whatever_clothes(address: str) -> None:
    assert reach_of(ip_address(address)) is Reach.NEVER


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "100.64.0.1",
        "198.18.0.1",
        "192.0.0.8",
        "fd12:3456::1",
        "fc00::1",
        "fec0::1",
        "::ffff:10.0.0.1",
        "64:ff9b::10.0.0.1",
        "2002:a00:1::",
    ],
)
def test_private_addresses_are_for_those_who_name_them(address: str) -> None:
    assert reach_of(ip_address(address)) is Reach.PRIVATE


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "172.32.0.1",
        "203.0.113.80",
        "2606:4700::1111",
        "64:ff9b::1.1.1.1",
        "2002:101:101::",
    ],
)
def test_all_else_is_public(address: str) -> None:
    assert reach_of(ip_address(address)) is Reach.PUBLIC


def test_a_mapped_address_is_dialled_as_what_it_is() -> None:
    assert plain(ip_address("::ffff:192.0.2.1")) == ip_address("192.0.2.1")
