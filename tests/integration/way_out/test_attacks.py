"""The way out attacked from inside: what must not be reached is not, and is told so."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from anyio.abc import SocketStream

from sandboxd.backends.protocol import Backend
from sandboxd.egress.limits import WayOutLimits
from sandboxd.errors import SandboxdError
from sandboxd.model.template import Network
from sandboxd.wire.codes import ErrorCode
from tests.conformance.conftest import Maker
from tests.support.ways import API_PORT, World, echo, open_world, serving

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

CONNECT = """
for where in {wheres!r}:
    s, said = tunnel(where)
    print(where, said.split()[1])
"""


@asynccontextmanager
async def counting(world: World) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server outside that keeps what each connection sent first."""
    seen: list[bytes] = []

    async def serve(stream: SocketStream) -> None:
        seen.append(await stream.receive())
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await echo(stream)

    async with serving(serve, host=str(world.here)) as port:
        yield port, seen


async def test_no_form_of_an_address_leads_where_nobody_may_go(world: World) -> None:
    wheres = [
        "127.0.0.1:80",
        "127.1:80",
        "0x7f.1:80",
        "2130706433:80",
        "0177.0.0.01:80",
        "0.0.0.0:80",
        "0:80",
        "[::1]:80",
        "[::]:80",
        "[::ffff:127.0.0.1]:80",
        "[::ffff:7f00:1]:80",
        "[64:ff9b::7f00:1]:80",
        "[2002:7f00:1::]:80",
        "169.254.169.254:80",
        "2852039166:80",
        "0xa9fea9fe:80",
        "[fe80::1]:80",
        "[fd00:ec2::254]:80",
        "100.100.100.200:80",
        "224.0.0.1:80",
        "255.255.255.255:80",
        "10.0.0.1:80",
        "192.168.0.1:80",
        "[fd00::1]:80",
    ]
    box = await world.lease("internet")
    said = await box.python(CONNECT.format(wheres=wheres))
    assert [line.split()[1] for line in said.splitlines()] == ["403"] * len(wheres)
    assert world.looked_up == []


async def test_names_that_lead_inward_are_refused_after_they_are_looked_up(world: World) -> None:
    inward = {
        "loop.test": ["127.0.0.1"],
        "mapped.test": ["::ffff:127.0.0.1"],
        "metadata.test": ["169.254.169.254"],
        "private.test": ["10.0.0.1"],
        "mixed.test": [str(world.here), "127.0.0.1"],
        "six.test": ["2002:7f00:1::"],
    }
    for name, addresses in inward.items():
        world.name(name, *addresses)
    box = await world.lease(allow=("*.test",))
    said = await box.python(CONNECT.format(wheres=[f"{name}:443" for name in inward]))
    assert [line.split()[1] for line in said.splitlines()] == ["403"] * len(inward)
    assert len(box.refusals) == len(inward)
    assert "mixed.test:443 (127.0.0.1)" in " ".join(box.refusals)


async def test_a_name_that_changes_its_meaning_is_looked_up_once_and_dialled_as_checked(
    world: World,
) -> None:
    async with counting(world) as (port, seen), counting(world) as (_, others):
        world.names["rebind.test"] = [[world.here], []]
        box = await world.lease(allow=(f"rebind.test:{port}",))
        said = await box.python(
            f'print(ask(b"GET http://rebind.test:{port}/ HTTP/1.1\\r\\nHost: x\\r\\n'
            'Connection: close\\r\\n\\r\\n"))'
        )
        assert "200" in said
        assert (world.looked_up, len(seen), others) == (["rebind.test"], 1, [])


async def test_a_list_names_hosts_and_no_look_alikes(world: World) -> None:
    world.name("good.test")
    wheres = [
        "evilgood.test:443",
        "good.test.evil.test:443",
        "sub.good.test:443",
        "good.test:22",
        "bad.test:443",
    ]
    box = await world.lease(allow=("good.test",))
    said = await box.python(CONNECT.format(wheres=wheres))
    assert [line.split()[1] for line in said.splitlines()] == ["403"] * len(wheres)
    assert world.looked_up == []  # names tell nobody anything, either
    assert box.refusals[0].endswith("to allow it, add 'evilgood.test:443' to `network`")


async def test_our_own_api_is_reached_by_no_name_and_no_way(world: World) -> None:
    world.name("trainer.test", "127.0.0.1")
    box = await world.lease(
        allow=("*.test", "0.0.0.0/0"), forwards={8000: f"http://trainer.test:{API_PORT}"}
    )
    wheres = [f"localhost:{API_PORT}", f"127.0.0.1:{API_PORT}", "api.test:443"]
    said = await box.python(CONNECT.format(wheres=wheres) + "print(repr(ask(b'x', 8000)))")
    assert [line.split()[-1] for line in said.splitlines()] == ["403", "403", "403", "''"]
    assert sum("own API" in refusal for refusal in box.refusals) >= 2


@pytest.mark.parametrize(
    "url",
    [
        f"http://127.0.0.1:{API_PORT}",
        f"tcp://localhost:{API_PORT}",
        f"http://[::1]:{API_PORT}/v1",
        f"http://0x7f000001:{API_PORT}",
        f"http://[::ffff:127.0.0.1]:{API_PORT}",
        "https://api.test",
        "http://169.254.169.254/latest",
        "http://0.0.0.0:80",
    ],
)
async def test_a_forward_to_what_nobody_may_reach_is_refused_at_once(
    world: World, url: str
) -> None:
    with pytest.raises(SandboxdError) as refused:
        await world.lease(forwards={8000: url})
    assert refused.value.code is ErrorCode.FORBIDDEN


async def test_another_sandbox_is_out_of_reach(world: World) -> None:
    one, other = await world.lease("internet"), await world.lease("internet")
    await other.start("""
s = socket.create_server(("0.0.0.0", 9000))
s.accept()
""")
    said = await one.python("""
try:
    to(9000)
except ConnectionRefusedError:
    print("nobody")
s, said = tunnel("127.0.0.1:9000")
print(said.split()[1])
""")
    assert said == "nobody\n403\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("Content-Length: 5\\r\\nTransfer-Encoding: chunked", 400),
        ("Transfer-Encoding: chunked\\r\\nContent-Length: 5", 400),
        ("Content-Length: 5\\r\\nContent-Length: 6", 400),
        ("Content-Length: +5", 400),
        ("Transfer-Encoding : chunked", 400),
        ("Transfer-Encoding: chunked, identity", 501),
        ("Transfer-Encoding: xchunked", 501),
        ("X-Long: {long}", 431),
        ("Bad\\x00Name: x", 400),
    ],
)
async def test_a_request_that_two_readers_would_read_apart_goes_nowhere(
    world: World, head: str, status: int
) -> None:
    world.name("web.test")
    async with counting(world) as (port, seen):
        box = await world.lease(allow=(f"web.test:{port}",))
        said = await box.python(f"""
head = b"{head}".replace(b"{{long}}", b"x" * 100000)
behind = b"GET http://web.test/admin HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n"
print(ask(b"POST http://web.test:{port}/ HTTP/1.1\\r\\nHost: web.test\\r\\n" + head +
      b"\\r\\n\\r\\n0\\r\\n\\r\\n" + behind))
""")
        assert said.startswith(f"HTTP/1.1 {status} ")
        assert said.count("HTTP/1.1") == 1
        assert seen == []


async def test_a_chunked_body_with_a_request_behind_it_is_two_requests_and_both_are_checked(
    world: World,
) -> None:
    world.name("web.test")
    async with counting(world) as (port, seen):
        box = await world.lease(allow=(f"web.test:{port}",))
        said = await box.python(f"""
print(ask(b"POST http://web.test:{port}/ HTTP/1.1\\r\\nHost: evil.test\\r\\n"
          b"Transfer-Encoding: chunked\\r\\n\\r\\n3\\r\\nabc\\r\\n0\\r\\n\\r\\n"
          b"GET http://evil.test/ HTTP/1.1\\r\\nHost: web.test\\r\\nConnection: close\\r\\n\\r\\n"))
""")
        assert re.findall(r"HTTP/1\.1 (\d+)", said) == ["200", "403"]
        assert len(seen) == 1
        assert b"evil" not in seen[0]


@pytest.mark.parametrize(
    "line",
    [
        "GET / HTTP/1.1",
        "GET https://web.test/ HTTP/1.1",
        "GET http://web.test@evil.test/ HTTP/1.1",
        "CONNECT http://web.test HTTP/1.1",
        "CONNECT web.test HTTP/1.1",
        "GET ftp://web.test/ HTTP/1.1",
        "PRI * HTTP/2.0",
        "\\x16\\x03\\x01\\x02\\x00",
    ],
)
async def test_what_is_no_request_to_a_proxy_is_told_so(world: World, line: str) -> None:
    box = await world.lease("internet")
    said = await box.python(
        f'print(ask(b"{line}\\r\\nHost: web.test\\r\\nConnection: close\\r\\n\\r\\n"))'
    )
    assert said.startswith(("HTTP/1.1 400 ", "HTTP/1.1 505 "))
    assert world.looked_up == []


async def test_slow_heads_and_floods_cost_a_sandbox_its_own_way_out_alone(
    backend: Backend, maker: Maker
) -> None:
    limits = WayOutLimits(connections=8, head_s=1.0, opens_per_s=200)
    async with open_world(backend, image=maker.image, limits=limits) as world:
        world.name("echo.test")
        async with serving(echo, host=str(world.here)) as port:
            hostile = await world.lease(allow=(f"echo.test:{port}",))
            other = await world.lease(allow=(f"echo.test:{port}",))
            flood = await hostile.start("""
held = []
for _ in range(150):
    try:
        held.append(to(PROXY, b"GET http://echo.test/ HT"))
    except OSError:
        break
print(len(held), flush=True)
ends = [rest(s).split(b" ")[:2] for s in held[:6]]
print(ends)
""")
            said = await other.python(f"""
for _ in range(5):
    s, said = tunnel("echo.test:{port}")
    print(said.split()[1])
    s.close()
""")
            assert said == "200\n" * 5
            way = hostile.tenancy.way_out
            assert way is not None
            assert way.connections <= 2 * limits.connections
            assert "b'408'" in await hostile.said(flood)
        assert any("connections of this sandbox are open" in text for text in hostile.refusals)


async def test_refusals_do_not_drive_everything_else_out_of_the_diary(
    backend: Backend, maker: Maker
) -> None:
    async with open_world(
        backend, image=maker.image, limits=WayOutLimits(opens_per_s=2000)
    ) as world:
        box = await world.lease("internet")
        await box.python("""
for _ in range(300):
    tunnel("10.0.0.1:80")[0].close()
""")
        assert len(box.refusals) < 40
        assert box.tenancy.diary[0]["event"] == "leased"


async def test_what_an_operator_forbids_no_lease_has(backend: Backend, maker: Maker) -> None:
    async with open_world(backend, image=maker.image, wider=False, forwards=False) as world:
        for wish in ({"kind": "internet"}, {"allow": ("example.org",)}):
            with pytest.raises(SandboxdError, match="more than its template"):
                await world.lease(**wish)
        with pytest.raises(SandboxdError, match="switched off"):
            await world.lease(forwards={8000: "http://trainer:1"})
        assert (await world.lease()).tenancy.lease.terms.network == Network()
