"""A way out as its lease lives: changed, held to its limits, and closed with it."""

from __future__ import annotations

import anyio
import pytest
from anyio.abc import SocketStream

from sandboxd.backends.protocol import Backend
from sandboxd.egress.limits import WayOutLimits
from sandboxd.errors import SandboxdError
from sandboxd.leases.ways_out import Wiring
from sandboxd.model.template import Network
from sandboxd.model.way_out import ForwardOrder
from sandboxd.wire.codes import ErrorCode
from tests.conformance.conftest import Maker
from tests.support.ways import Box, World, echo, open_world, serving

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

HOLD = """
s, said = tunnel("echo.test:{port}", early=b"a")
assert s.recv(1) == b"a", said
print("open", flush=True)
print(repr(rest(s)))
"""


async def holding(box: Box, port: int) -> str:
    """A program inside that holds a tunnel open until it is closed from outside."""
    running = await box.start(HOLD.format(port=port))
    await box.until_said(running, b"open")
    return running


async def test_a_narrower_network_closes_what_it_does_not_allow_and_nothing_else(
    world: World,
) -> None:
    world.name("echo.test")
    world.name("other.test")
    async with serving(echo, host=str(world.here)) as port:
        box = await world.lease(allow=(f"echo.test:{port}", f"other.test:{port}"))
        kept = await holding(box, port)
        desk = world.rooms.desk
        narrower = Network(kind="allow", allow=(f"echo.test:{port}", f"{world.here}:{port}"))
        await desk.rewire(box.tenancy, Wiring(network=narrower))
        assert " 403 " in await box.python(f'print(tunnel("other.test:{port}")[1])')
        assert box.tenancy.way_out is not None
        assert box.tenancy.way_out.connections >= 1  # the first tunnel is open still
        await desk.rewire(box.tenancy, Wiring(network=Network()))
        assert "b''" in await box.said(kept)
        assert await box.python("""
try:
    to(3128)
except ConnectionRefusedError:
    print("closed")
""") == "closed\n"  # fmt: skip


async def test_a_lease_that_began_without_a_network_may_get_one(world: World) -> None:
    world.name("echo.test")
    async with serving(echo, host=str(world.here)) as port:
        box = await world.lease()
        allow = Network(kind="allow", allow=(f"echo.test:{port}", f"{world.here}:{port}"))
        lease = await world.rooms.desk.rewire(box.tenancy, Wiring(network=allow))
        assert lease.terms.network == allow
        said = await box.python(
            f'PROXY = {box.tenancy.proxy_port}\nprint(tunnel("echo.test:{port}")[1])'
        )
        assert " 200 " in said


async def test_forwards_come_and_go(world: World) -> None:
    async with serving(echo, host="127.0.0.1") as port:
        box = await world.lease()
        desk = world.rooms.desk
        there = {8000: ForwardOrder(url=f"tcp://127.0.0.1:{port}")}
        await desk.rewire(box.tenancy, Wiring(add=there))
        running = await box.start("""
s = to(8000, b"a")
assert s.recv(1) == b"a"
print(repr(rest(s)))
""")
        with anyio.fail_after(10):
            while not (box.tenancy.way_out and box.tenancy.traffic.in_bytes):  # noqa: ASYNC110
                await anyio.sleep(0.01)
        await desk.rewire(box.tenancy, Wiring(remove=frozenset({8000})))
        assert await box.said(running) == "b''\n"


async def test_a_port_that_something_inside_has_is_refused_and_nothing_changes(
    world: World,
) -> None:
    async with serving(echo, host="127.0.0.1") as port:
        url = f"tcp://127.0.0.1:{port}"
        box = await world.lease(forwards={8000: url})
        await box.start("""
s = socket.create_server(("127.0.0.1", 8001))
s.accept()
""")
        await box.python("""
while True:
    try:
        socket.create_server(("127.0.0.1", 8001)).close()
    except OSError:
        break
    time.sleep(0.02)
""")
        with pytest.raises(SandboxdError, match=r"port 8001 .*in_use") as refused:
            await world.rooms.desk.rewire(box.tenancy, Wiring(add={8001: ForwardOrder(url=url)}))
        assert refused.value.code is ErrorCode.BAD_REQUEST
        assert [forward.port for forward in box.tenancy.lease.terms.forwards] == [8000]
        assert await box.python("""
s = to(8000, b"still")
s.shutdown(socket.SHUT_WR)
print(rest(s))
""") == "b'still'\n"  # fmt: skip


async def test_release_closes_everything_at_once(world: World) -> None:
    world.name("echo.test")
    ended = anyio.Event()

    async def until_the_end(stream: SocketStream) -> None:
        try:
            await echo(stream)
        finally:
            ended.set()

    async with serving(until_the_end, host=str(world.here)) as port:
        box = await world.lease(allow=(f"echo.test:{port}",))
        await holding(box, port)
        await world.rooms.desk.release(box.id, owner="tests")
        with anyio.fail_after(5):
            await ended.wait()
        assert box.tenancy.way_out is None
        end = box.tenancy.shown()
        assert end.usage.network_in_bytes == end.usage.network_out_bytes == 1


async def test_a_silent_connection_is_closed_in_time(backend: Backend, maker: Maker) -> None:
    limits = WayOutLimits(idle_s=1.0)
    async with open_world(backend, image=maker.image, limits=limits) as world:
        world.name("echo.test")
        async with serving(echo, host=str(world.here)) as port:
            box = await world.lease(allow=(f"echo.test:{port}",))
            assert "b''" in await box.said(await holding(box, port))


async def test_a_sandbox_that_has_used_up_its_bytes_is_told(backend: Backend, maker: Maker) -> None:
    limits = WayOutLimits(total_bytes=1 << 20)
    async with open_world(backend, image=maker.image, limits=limits) as world:
        world.name("echo.test")
        async with serving(echo, host=str(world.here)) as port:
            box = await world.lease(allow=(f"echo.test:{port}",))
            said = await box.python(f"""
s, said = tunnel("echo.test:{port}")
try:
    for _ in range(100):
        s.sendall(b"x" * 65536)
        s.recv(65536)
except OSError:
    pass
s, said = tunnel("echo.test:{port}")
print(said.splitlines()[0])
""")
            assert said.startswith("HTTP/1.1 503 this sandbox has used up")


async def test_traffic_counts_as_use(world: World) -> None:
    go = anyio.Event()

    async def when_told(stream: SocketStream) -> None:
        await stream.receive()
        await go.wait()
        await stream.send(b"x")

    async with serving(when_told, host="127.0.0.1") as port:
        box = await world.lease(forwards={8000: f"tcp://127.0.0.1:{port}"})
        await box.start('to(8000, b"a").recv(1)\ntime.sleep(60)')
        with anyio.fail_after(10):
            while not box.tenancy.traffic.out_bytes:  # noqa: ASYNC110 - bytes have no event
                await anyio.sleep(0.01)
        box.tenancy.used_at = 0.0
        go.set()
        with anyio.fail_after(10):
            while box.tenancy.used_at == 0.0:  # noqa: ASYNC110 - nor has use
                await anyio.sleep(0.01)
