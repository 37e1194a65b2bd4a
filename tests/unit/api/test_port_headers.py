"""What passes a port's door and what stays, both ways; and where answers and frames end."""

from __future__ import annotations

import pytest

from sandboxd.api.ports.answered import outer_address, outer_cookie, response_headers
from sandboxd.api.ports.asked import Asked, request_head
from sandboxd.api.ports.borders import Borders, close_frame
from sandboxd.api.ports.place import Place, leads_inside, read_place
from sandboxd.api.ports.reading import AnswerReader, NotHttp
from sandboxd.errors import SandboxdError
from sandboxd.wire.http1 import Headers

HOST = "sandboxes.example:8420"
PREFIX = "/v1/sandboxes/sbx-1/ports/8000"


def place(raw: bytes = b"/v1/sandboxes/sbx-1/ports/8000/a", *, token: bool = False) -> Place:
    found = read_place(
        raw,
        below="/s/sbt-secret" if token else None,
        scheme="http",
        host=HOST,
        public_url="https://sandboxes.example",
    )
    assert found is not None
    return found


def passed(*headers: tuple[bytes, bytes], token: bool = False, trusted: bool = False) -> Headers:
    """The headers of a GET, as they arrive inside."""
    asked = Asked(
        method="GET",
        query=b"",
        headers=list(headers),
        request_id="req-1",
        trusted=trusted,
        is_ours=lambda value: value == "Bearer ours",
    )
    _, *lines = request_head(asked, place(token=token)).removesuffix(b"\r\n\r\n").split(b"\r\n")
    return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]


def answered(*headers: tuple[bytes, bytes], status: int = 200, trusted: bool = True) -> Headers:
    return response_headers(status, list(headers), place(), trusted=trusted)


# ------------------------------------------------------------------------------------------ places


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b"/v1/sandboxes/s/ports/8000", ""),
        (b"/v1/sandboxes/s/ports/8000/", "/"),
        (b"/v1/sandboxes/s/ports/8000/a%2Fb//c/../d", "/a%2Fb//c/../d"),
    ],
)
def test_the_rest_of_a_path_stays_as_it_came(raw: bytes, path: str) -> None:
    assert leads_inside(raw)
    assert place(raw).path == path


@pytest.mark.parametrize("port", ["0", "65536", "99999999", "-1", "x", "", "%38", "\uff18"])
def test_what_is_no_port_is_refused(port: str) -> None:
    with pytest.raises(SandboxdError, match="a port is a number"):
        place(f"/v1/sandboxes/s/ports/{port}/".encode())


@pytest.mark.parametrize("raw", [b"/v1/sandboxes/s/execs/ports/1", b"/v1/ports/1/", b"/portsx/1"])
def test_other_paths_are_none_of_a_port(raw: bytes) -> None:
    assert not leads_inside(raw)
    assert read_place(raw, below=None, scheme="http", host=HOST, public_url="") is None


def test_the_public_address_tells_that_callers_speak_tls() -> None:
    raw = b"/v1/sandboxes/s/ports/1/"
    url = "https://sandboxes.example"
    public = read_place(raw, below=None, scheme="http", host="Sandboxes.example", public_url=url)
    private = read_place(raw, below=None, scheme="http", host="10.0.0.1:8420", public_url=url)
    assert public is not None and public.scheme == "https"
    assert private is not None and private.scheme == "http"


# ---------------------------------------------------------------------------------------- requests


def test_only_a_key_of_ours_is_taken_off() -> None:
    ours, apps = (b"authorization", b"Bearer ours"), (b"authorization", b"Bearer app")
    assert ours not in passed(ours, apps)
    assert apps in passed(ours, apps)
    assert (b"cookie", b"a=b") in passed((b"cookie", b"a=b"))


def test_who_the_caller_is_stays_outside() -> None:
    names = [b"x-forwarded-for", b"forwarded", b"via", b"x-real-ip", b"x-forwarded-port"]
    inside = dict(passed(*[(name, b"203.0.113.9") for name in names]))
    assert not inside.keys() & set(names)


def test_a_server_inside_hears_the_name_that_it_has_inside() -> None:
    told = dict(passed((b"host", HOST.encode()), (b"origin", f"http://{HOST}".encode())))
    assert told[b"host"] == b"localhost:8000"
    assert told[b"origin"] == b"http://localhost:8000"
    assert told[b"x-forwarded-host"] == HOST.encode()
    assert told[b"x-forwarded-proto"] == b"http"
    assert told[b"x-forwarded-prefix"] == PREFIX.encode()


@pytest.mark.parametrize("origin", [b"null", b"https://evil.example", b"http://other:8420"])
def test_a_foreign_origin_is_told_as_it_is(origin: bytes) -> None:
    assert (b"origin", origin) in passed((b"origin", origin))


def test_a_token_does_not_reach_inside_by_any_header() -> None:
    own = f"http://{HOST}/s/sbt-secret/ports/8000/page?x=1".encode()
    told = dict(passed((b"referer", own), token=True))
    assert told[b"referer"] == b"http://localhost:8000/page?x=1"
    assert b"x-forwarded-prefix" not in told
    other = f"http://{HOST}/s/sbt-other/ports/1/".encode()
    assert b"referer" not in dict(passed((b"referer", other), token=True))
    assert b"sbt-" not in repr(passed((b"referer", other), token=True)).encode()


def test_a_trusted_server_knows_its_prefix_whatever_is_in_it() -> None:
    told = dict(passed(token=True, trusted=True))
    assert told[b"x-forwarded-prefix"] == b"/s/sbt-secret/ports/8000"


def test_headers_of_one_hop_end_here() -> None:
    told = dict(
        passed(
            (b"connection", b"keep-alive, X-One-Hop, content-length"),
            (b"x-one-hop", b"1"),
            (b"keep-alive", b"timeout=5"),
            (b"te", b"trailers"),
            (b"upgrade", b"h2c"),
            (b"proxy-authorization", b"Basic x"),
            (b"content-length", b"0"),
        )
    )
    assert told[b"connection"] == b"close"
    assert told[b"content-length"] == b"0"
    assert not told.keys() & {b"x-one-hop", b"keep-alive", b"te", b"upgrade"}
    assert b"proxy-authorization" not in told


# ----------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("said", "passed_on"),
    [
        ("/login", f"{PREFIX}/login"),
        ("/", f"{PREFIX}/"),
        ("http://localhost:8000", f"{PREFIX}/"),
        ("http://localhost:8000/a?b=c#d", f"{PREFIX}/a?b=c#d"),
        ("http://127.0.0.1:8000/a", f"{PREFIX}/a"),
        ("http://[::1]:8000/a", f"{PREFIX}/a"),
        ("//localhost:8000/a", f"{PREFIX}/a"),
        (f"http://{HOST}/a", f"{PREFIX}/a"),
        (f"http://{HOST}{PREFIX}/a", f"{PREFIX}/a"),
        (f"{PREFIX}/a", f"{PREFIX}/a"),
        ("next?x=1", "next?x=1"),
        ("?x=1", "?x=1"),
        ("next\\one", "next\\one"),
        ("../up", f"{PREFIX}/up"),
        ("../../../../pools", f"{PREFIX}/pools"),
        ("\\pools", f"{PREFIX}/pools"),
        ("http:/pools", f"{PREFIX}/pools"),
        ("http:../../pools?x", f"{PREFIX}/pools?x"),
        ("http:\\\\localhost:8000\\a", f"{PREFIX}/a"),
        ("https://elsewhere.example/a", "https://elsewhere.example/a"),
        ("http://localhost:9000/a", "http://localhost:9000/a"),
        ("mailto:a@b.example", "mailto:a@b.example"),
        ("http://[broken", "http://[broken"),
        ("/../../../../pools", f"{PREFIX}/pools"),
        ("/%2e%2E/%2e./pools", f"{PREFIX}/pools"),
        (f"{PREFIX}/../../../../pools", f"{PREFIX}/v1/pools"),
        ("/a/./b/../c/", f"{PREFIX}/a/c/"),
        ("/a\\..\\..\\..\\pools", f"{PREFIX}/pools"),
    ],
)
def test_redirects_stay_below_the_prefix(said: str, passed_on: str) -> None:
    assert outer_address(said, place()) == passed_on
    assert dict(answered((b"location", said.encode())))[b"location"] == passed_on.encode()


@pytest.mark.parametrize(
    ("said", "passed_on"),
    [
        ("a=b", "a=b"),
        ("a=b; Path=/", f"a=b; Path={PREFIX}/"),
        ("a=b; path=/x; HttpOnly", f"a=b; HttpOnly; Path={PREFIX}/x"),
        ("a=b; Domain=example; Secure; Path=/", f"a=b; Secure; Path={PREFIX}/"),
        (f"a=b; Path={PREFIX}/x", f"a=b; Path={PREFIX}/x"),
        ("a=b; Path=/../..", f"a=b; Path={PREFIX}/"),
        ("a=b; Path=", "a=b"),
    ],
)
def test_cookies_stay_below_the_prefix(said: str, passed_on: str) -> None:
    assert outer_cookie(said, place()) == passed_on


def test_answers_are_sandboxed_unless_the_template_trusts_them() -> None:
    own = (b"content-security-policy", b"default-src 'self'")
    ours = (b"content-security-policy", b"sandbox")
    assert {own, ours} <= set(answered(own, trusted=False))
    assert ours not in answered(own, trusted=True)


def test_what_is_of_the_whole_host_is_not_one_servers_to_say() -> None:
    names = [
        b"strict-transport-security",
        b"alt-svc",
        b"clear-site-data",
        b"service-worker-allowed",
    ]
    assert answered(*[(name, b"x") for name in names], (b"server", b"s")) == [(b"server", b"s")]


def test_a_length_without_a_body_is_not_passed_on() -> None:
    length = (b"content-length", b"5")
    assert answered(length, status=304) == answered(length, status=204) == []
    assert answered(length) == [length]


# --------------------------------------------------------------------------------- where they end


def read(*pieces: bytes, method: str = "GET") -> tuple[AnswerReader, bytes]:
    reader = AnswerReader(method=method)
    return reader, b"".join([reader.feed(piece) for piece in pieces])


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcrest", b"abc"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX: y\r\n\r\n",
            b"ab",
        ),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", b"a"),
        (b"HTTP/1.1 204 None\r\n\r\n", b""),
        (b"HTTP/1.1 304 Same\r\nContent-Length: 9\r\n\r\n", b""),
    ],
)
def test_an_answer_ends_where_its_head_says_however_it_was_split(
    answer: bytes, body: bytes
) -> None:
    for step in (1, 7, len(answer)):
        reader, got = read(*[answer[i : i + step] for i in range(0, len(answer), step)])
        assert (got, reader.complete, reader.until_end) == (body, True, False)


def test_an_answer_to_head_has_no_body_whatever_it_says() -> None:
    reader, _ = read(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", method="HEAD")
    assert reader.complete and reader.headers == [(b"content-length", b"9")]


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    reader, body = read(b"HTTP/1.0 200 OK\n\nab", b"c")
    assert (body, reader.complete) == (b"abc", False)
    assert reader.feed_end()
    cut, _ = read(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
    assert not cut.feed_end()


def test_a_switch_keeps_what_came_behind_it() -> None:
    head = b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    reader, body = read(head + b"\x81\x02hi")
    assert (reader.switched, reader.rest, body) == (True, b"\x81\x02hi", b"")


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-server\r\n",
        b"\0" * 100,
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 70_000,
        b"HTTP/1.1 102 Processing\r\n\r\n" * 30,
    ],
)
def test_what_is_no_answer_is_told(said: bytes) -> None:
    with pytest.raises(NotHttp):
        read(said)


def frame(size: int, opcode: int = 2) -> bytes:
    if size < 126:
        return bytes((0x80 | opcode, size)) + b"x" * size
    if size < 1 << 16:
        return bytes((0x80 | opcode, 126)) + size.to_bytes(2, "big") + b"x" * size
    return bytes((0x80 | opcode, 127)) + size.to_bytes(8, "big") + b"x" * size


def test_frames_are_followed_however_they_are_split() -> None:
    sizes = (0, 1, 125, 126, 300, 70_000)
    stream = b"".join(map(frame, sizes))
    ends, place_ = {0}, 0
    for size in sizes:
        place_ += len(frame(size))
        ends.add(place_)
    for step in (1, 3, 1000, len(stream)):
        borders, at = Borders(), 0
        while at < len(stream):
            borders.feed(stream[at : at + step])
            at = min(at + step, len(stream))
            assert borders.at_border is (at in ends), (step, at)
        assert not borders.closed
        borders.feed(close_frame(1000, "bye"))
        assert borders.closed and borders.at_border


def test_a_close_frame_is_a_frame_however_long_its_reason() -> None:
    said = close_frame(4410, "é" * 100)
    assert len(said) <= 2 + 125 and said[1] == len(said) - 2
    assert said[4:].decode()
