"""Allow-lists: what an entry names, what it does not, and what may be narrower than what."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from sandboxd.egress.addresses import read_host
from sandboxd.egress.rules import Refused, Rules, check_entries, read_entry
from sandboxd.model.template import Network


def rules(*entries: str) -> Rules:
    return Rules.of(Network(kind="allow", allow=entries))


def allows(asked: Rules, host: str, port: int = 443) -> bool:
    try:
        asked.check_host(read_host(host), port)
    except Refused:
        return False
    return True


@pytest.mark.parametrize(
    ("entry", "host", "port", "allowed"),
    [
        ("example.org", "example.org", 443, True),
        ("example.org", "example.org", 80, True),
        ("example.org", "example.org", 22, False),
        ("example.org:22", "example.org", 22, True),
        ("example.org:22", "example.org", 443, False),
        ("Example.org", "EXAMPLE.org.", 443, True),
        ("example.org", "www.example.org", 443, False),
        ("*.example.org", "www.example.org", 443, True),
        ("*.example.org", "a.b.example.org", 443, True),
        ("*.example.org", "example.org", 443, False),
        ("*.example.org", "evilexample.org", 443, False),
        ("*.example.org", "example.org.evil.test", 443, False),
        ("1.1.1.1", "1.1.1.1", 443, True),
        ("1.1.1.1", "0x1010101", 443, True),
        ("1.1.1.1", "[::ffff:1.1.1.1]", 443, True),
        ("10.0.0.0/8", "10.1.2.3", 443, True),
        ("10.0.0.0/8:5432", "10.1.2.3", 5432, True),
        ("10.0.0.0/8:5432", "10.1.2.3", 443, False),
        ("[fd00::]/8:443", "[fd00::1]", 443, True),
        ("127.0.0.1:80", "127.0.0.1", 80, False),
        ("169.254.0.0/16", "169.254.169.254", 80, False),
        ("0.0.0.0/0", "169.254.169.254", 80, False),
        ("example.org", "1.1.1.1", 443, False),
    ],
)
def test_an_entry_allows_what_it_names_and_nothing_else(
    entry: str, host: str, port: int, allowed: bool
) -> None:
    assert allows(rules(entry), host, port) is allowed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "*.",
        "a b",
        "host:",
        "host:0",
        "host:65536",
        "host:http",
        "http://host",
        "host/24",
        "*.10.0.0.1",
        "10.0.0.1/8",
        "10.0.0.0/33",
        "fd00::1:443",
        "[fd00::1",
        "a*b.example",
        "user@host",
    ],
)
def test_an_entry_that_could_be_misread_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_entry(text)
    with pytest.raises(ValueError, match=r"must be|not a host|port|range|address"):
        check_entries(["example.org", text])


def test_the_internet_is_what_is_public() -> None:
    internet = Rules.of(Network(kind="internet"))
    assert allows(internet, "example.org", 22)
    assert allows(internet, "1.1.1.1")
    assert not allows(internet, "10.0.0.1")
    assert not allows(Rules("none"), "example.org")


def test_a_name_leads_to_a_private_address_only_where_the_address_is_named_too() -> None:
    address, name = ip_address("10.0.0.5"), read_host("mirror.example")
    with pytest.raises(Refused, match=r"add '10\.0\.0\.5:443'"):
        rules("mirror.example").check_address(address, 443, of=name)
    rules("mirror.example", "10.0.0.5").check_address(address, 443, of=name)
    with pytest.raises(Refused):
        rules("mirror.example", "10.0.0.5:80").check_address(address, 443, of=name)
    with pytest.raises(Refused, match="no sandbox"):
        rules("mirror.example", "0.0.0.0/0").check_address(
            ip_address("::ffff:127.0.0.1"), 443, of=name
        )


@pytest.mark.parametrize(
    ("narrow", "wide", "within"),
    [
        ("none", "none", True),
        ("none", "internet", True),
        ("internet", "none", False),
        ("internet", "internet", True),
        ("internet", ["example.org"], False),
        (["example.org"], "internet", True),
        (["10.0.0.1"], "internet", False),
        (["0.0.0.0/0"], "internet", False),
        (["127.0.0.1"], "internet", False),
        (["example.org:443"], ["example.org"], True),
        (["example.org"], ["example.org:443"], False),
        (["www.example.org"], ["*.example.org"], True),
        (["*.www.example.org"], ["*.example.org"], True),
        (["*.example.org"], ["*.example.org"], True),
        (["*.example.org"], ["example.org"], False),
        (["example.org"], ["*.example.org"], False),
        (["10.1.0.0/16"], ["10.0.0.0/8"], True),
        (["10.0.0.0/8"], ["10.1.0.0/16"], False),
        (["10.0.0.1"], ["example.org"], False),
        (["[fd00::1]"], ["[fd00::]/8"], True),
    ],
)
def test_what_a_lease_may_narrow_is_known(
    narrow: str | list[str], wide: str | list[str], within: bool
) -> None:
    def read(said: str | list[str]) -> Rules:
        return rules(*said) if isinstance(said, list) else Rules(said)

    assert read(narrow).within(read(wide)) is within
