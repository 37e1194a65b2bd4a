"""Where a request wants to go is read in one way, or not at all."""

from __future__ import annotations

import pytest

from sandboxd.egress.targets import below, read_absolute, read_connect, read_forward


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("example.org:443", "example.org", 443),
        ("EXAMPLE.org.:443", "example.org", 443),
        ("[2606:4700::1111]:443", "2606:4700::1111", 443),
        ("2130706433:80", "127.0.0.1", 80),
    ],
)
def test_connect_names_a_host_and_a_port(text: str, host: str, port: int) -> None:
    target = read_connect(text)
    assert (str(target.host), target.port) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "example.org",
        "example.org:",
        ":443",
        "example.org:0",
        "example.org:65536",
        "example.org:4 43",
        "a@example.org:443",
        "example.org:443/",
        "example.org:443@evil.test:443",
        "evil.test#example.org:443",
        "example.org:443:443",
        "http://example.org:443",
        "[::1]443",
        "example.org\\:443",
    ],
)
def test_connect_to_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_connect(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://example.org/a?b=c", ("example.org", 80, "/a?b=c", "example.org")),
        ("HTTP://example.org:8080", ("example.org", 8080, "/", "example.org:8080")),
        ("http://example.org?x", ("example.org", 80, "/?x", "example.org")),
        ("http://[::ffff:10.0.0.1]:81/", ("10.0.0.1", 81, "/", "10.0.0.1:81")),
        ("http://example.org/a#b", ("example.org", 80, "/a", "example.org")),
    ],
)
def test_an_absolute_address_is_taken_apart(text: str, said: tuple[str, int, str, str]) -> None:
    target = read_absolute(text)
    assert (str(target.host), target.port, target.path, target.authority) == said


@pytest.mark.parametrize(
    "text",
    [
        "/path",
        "*",
        "example.org:80",
        "https://example.org/",
        "ftp://example.org/",
        "http:///path",
        "http://allowed.test@evil.test/",
        "http://allowed.test:80@evil.test/",
        "http://a:b@evil.test",
        "http://allowed.test\\@evil.test/",
        "http://%65vil.test/",
        "file:///etc/passwd",
    ],
)
def test_what_is_no_request_to_a_proxy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_absolute(text)


def test_a_forward_s_address_has_a_scheme_that_says_how_it_is_spoken_to() -> None:
    assert read_forward("http://trainer:8000").path == "/"
    assert read_forward("https://api.example/v1").port == 443
    assert read_forward("tcp://10.0.0.1:5432").scheme == "tcp"
    for wrong in (
        "trainer:8000",
        "tcp://host",
        "tcp://h:1/x",
        "http://h/?q",
        "http://h/#f",
        "http://h h/",
        "ws://h",
        "http://u@h/",
        "http://h/\u00e9",
        "",
        "http://h/\r\nX: y",
    ):
        with pytest.raises(ValueError, match=r"\w"):
            read_forward(wrong)


def test_nothing_leaves_the_path_of_a_forward() -> None:
    assert below("/", "/../x") == "/../x"
    assert below("/v1", "/chat?a=../b") == "/v1/chat?a=../b"
    assert below("/v1/", "/chat") == "/v1/chat"
    for way in ("/../x", "/a/..", "/%2e%2e/x", "/%252e%252e/x", "/..\\x", "/./x", "/a%2f..%2fx"):
        with pytest.raises(ValueError, match=r"\.\."):
            below("/v1", way)
