"""Whatever is sent to the proxy is read, or refused: never anything else, and never twice apart."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from hypothesis import given
from hypothesis import strategies as st

from sandboxd.egress.addresses import Reach, reach_of, read_host
from sandboxd.egress.rules import Refused, Rules, read_entry
from sandboxd.egress.targets import read_absolute, read_connect, read_forward
from sandboxd.model.template import Network

ODD = st.text(st.sampled_from("abx019.:-[]/%@*#?\\_ é\t"), max_size=40) | st.text(max_size=40)


@given(ODD)
def test_parsers_raise_nothing_but_value_errors(text: str) -> None:
    for parse in (read_host, read_entry, read_connect, read_absolute, read_forward):
        with suppress(ValueError):
            parse(text)


@given(ODD)
def test_a_host_that_was_read_is_read_again_as_itself(text: str) -> None:
    with suppress(ValueError):
        host = read_host(text)
        again = f"[{host}]" if isinstance(host, IPv6Address) else str(host)
        assert read_host(again) == host


@given(ODD)
def test_the_host_that_is_checked_is_the_host_that_others_would_see(text: str) -> None:
    with suppress(ValueError):
        target = read_absolute(f"http://{text}/")
        seen = urlsplit(f"http://{text}/").hostname or ""
        assert target.host == read_host(f"[{seen}]" if ":" in seen else seen)


@given(st.ip_addresses(v=4), st.sampled_from(["{}", "[::ffff:{}]", "[64:ff9b::{}]"]))
def test_an_address_reaches_no_further_in_other_clothes(address: IPv4Address, form: str) -> None:
    dressed = read_host(form.format(address))
    assert not isinstance(dressed, str)
    assert reach_of(dressed) is reach_of(address)


@given(st.ip_addresses())
def test_no_list_allows_what_nobody_may_reach(address: IPv4Address | IPv6Address) -> None:
    everything = Rules.of(Network(kind="allow", allow=("0.0.0.0/0", "[::]/0", "*.example.org")))
    if reach_of(address) is Reach.NEVER:
        with suppress(Refused):
            everything.check_address(ip_address(str(address)), 443, of=address)
            raise AssertionError(address)
    else:
        everything.check_address(address, 443, of=address)
